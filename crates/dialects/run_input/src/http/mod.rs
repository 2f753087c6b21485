//! `/api/v1/agent…`: the run input dialect, for chat front ends. Its failures carry a code of its own (`problem.rs`).

pub mod attachments;
pub mod history;
pub mod runs;
pub mod sessions;
