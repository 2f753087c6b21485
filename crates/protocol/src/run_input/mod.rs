pub mod agui;
pub mod attachments;
pub mod history;
pub mod runs;
pub mod ui;
