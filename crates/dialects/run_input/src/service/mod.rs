//! Verbs of the run input dialect. Each authorises its caller and returns wire types.

pub(crate) mod attachments;
pub(crate) mod history;
pub(crate) mod runs;
pub(crate) mod threads;
