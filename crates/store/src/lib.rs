//! All SQL of Ostler, one file per noun, on SQLite and on Postgres. Nouns of the kernel and of each dialect have a folder.
//!
//! Hot writes go through the [`lane`]s, which commit whatever waits together; reads are free functions with fixed verbs
//! over a [`Db`]. Nothing here reads a clock. Decisions about sessions, runs and commands are made by
//! `protocol::kernel::operations`. Mailboxes of the mesh are the exception: numbers, duplicates, limits and
//! acknowledgements of messages are decided in SQL (`postgres/posts.rs`, `sqlite/posts.rs`). Tests hold both equal to the
//! rule in `protocol::mesh::mailbox`.

pub mod clock;
pub mod db;
pub mod failures;
pub mod health;
pub mod kernel;
pub mod lane;
pub mod mesh;
pub mod migrate;
mod postgres;
mod record;
pub mod run_input;
pub mod signing_keys;
mod sqlite;
pub mod tokens;
pub mod trust;
pub mod users;
pub mod wakeups;

pub use db::{Db, Durability, StoreConfig, StoreError, Synchronous};
pub use health::{StoreFault, WriteHealth};
pub use record::{DeclaredTable, declared_tables};
