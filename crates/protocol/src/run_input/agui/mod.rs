//! The run input dialect, as pure rules: what a chat front end posts (`RunAgentInput`), and AG-UI 1.0 events made from the
//! kernel's. Nothing here is kept anywhere: a stream is the translation of a command's events, and the same each time.

mod client_time;
pub mod events;
mod fields;
pub mod input;
pub mod messages;
pub mod refused;
pub mod replay;
pub mod replies;
pub mod tools;
pub mod translate;
pub mod verify;

#[cfg(test)]
mod tests;
