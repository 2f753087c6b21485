//! The program `ostler`, run as people run it: real processes, real signals, real disks, on both engines. The folders
//! `commands` and `terminal` mirror the sources.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test program: a failed unwrap is a failed test")]
#![expect(clippy::print_stdout, reason = "tests of reliability print what they counted")]
#![expect(clippy::disallowed_methods, reason = "real processes live in real time")]

mod commands;
mod documents;
mod fixtures;
mod interop;
mod isolation;
mod reliability;
mod terminal;
