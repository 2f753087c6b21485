//! How an answer may be shown. An agent writes [`hints`]: a few descriptive words. They are compiled into a [`schema`], a
//! tree of primitives that a client draws without knowing the agent. One compiler serves live events and history, so
//! both show the same; hints themselves never reach a front end.

mod compile;
pub mod hints;
pub mod schema;

pub use compile::{compile, of_message};

#[cfg(test)]
mod tests;
