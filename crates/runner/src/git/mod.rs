//! The system's git: whether there is one, and how repositories of strangers are fetched with it.

mod client;
mod missing;
mod route;

pub use client::Git;
pub use missing::git_missing;
