//! Verbs of the run input dialect. Each authorises its caller and returns wire types.

pub(crate) mod attachments;
pub(crate) mod automations;
pub(crate) mod calendar_events;
pub(crate) mod calendar_source;
pub(crate) mod calendar_tools;
pub(crate) mod history;
pub(crate) mod owners;
pub(crate) mod runs;
pub(crate) mod threads;
pub(crate) mod transcription;
