//! Verbs of the run input dialect. Each authorises its caller and returns wire types.

pub mod attachments;
pub mod history;
pub mod runs;
pub mod threads;
