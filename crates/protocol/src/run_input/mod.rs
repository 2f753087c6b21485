pub mod agui;
pub mod attachments;
pub mod failures;
pub mod history;
pub mod runs;
pub mod ui;
