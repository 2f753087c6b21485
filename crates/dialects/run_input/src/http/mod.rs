//! `/api/v1/agent…`: the run input dialect, for chat front ends. Its failures carry a code of its own (`problem.rs`).

pub(crate) mod attachments;
pub(crate) mod history;
pub(crate) mod runs;
pub(crate) mod sessions;
