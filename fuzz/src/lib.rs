//! What strangers send, bent and broken at random: the parsers of the mesh, the daemon and the MCP server must neither panic nor
//! take what they should not.
//!
//! It runs on the stable compiler, so nothing guides it through the code; it starts from good inputs instead, knows the words
//! of each language, and cuts, repeats and splices them. Cases follow from a number, so that a failure can be had again.

#![expect(clippy::expect_used, reason = "a target reports what is wrong by a panic")]

mod certificates;
mod domain;
mod files;
mod mcp_messages;
mod mutate;
mod prompts;
mod text;

pub use mutate::{Dice, Mutator};

/// Something that reads what strangers send.
pub struct Target {
    pub name: &'static str,
    /// Good inputs to begin with.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Words of the language, spliced in.
    pub words: &'static [&'static str],
    /// Panics when something is wrong.
    pub attempt: fn(&[u8]),
}

pub const TARGETS: [&Target; 8] = [
    &text::FRAME,
    &certificates::ENVELOPE,
    &text::AGENT_MD,
    &certificates::CERTIFICATE,
    &files::PATH,
    &files::GLOB,
    &prompts::PROMPT,
    &mcp_messages::MESSAGE,
];

impl Target {
    pub fn find(name: &str) -> Option<&'static Target> {
        TARGETS.into_iter().find(|target| target.name == name)
    }

    /// Cases from this number on, without end.
    pub fn cases(&'static self, from: u64) -> impl Iterator<Item = (u64, Vec<u8>)> {
        let mutator = Mutator::new((self.seeds)(), self.words);
        (from..).map(move |number| (number, mutator.case(number)))
    }

    /// Tries one. `Err`: what was wrong, with the case as Rust writes it.
    pub fn try_one(&self, number: u64, case: &[u8]) -> Result<(), String> {
        std::panic::catch_unwind(|| (self.attempt)(case))
            .map_err(|_| format!("{} {number}: b\"{}\"", self.name, case.escape_ascii()))
    }
}
