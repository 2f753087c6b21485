pub mod agui;
pub mod attachments;
pub mod automations;
pub mod calendar;
pub mod failures;
pub mod history;
#[cfg(test)]
mod judges;
pub mod local_times;
pub mod runs;
pub mod transcription;
pub mod ui;
