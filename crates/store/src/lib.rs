//! All SQL of Ostler, one file per noun, on SQLite and on Postgres. Nouns of the kernel and of each dialect have a folder.
//!
//! Hot writes go through the [`lane`]s, which commit whatever waits together; reads are free functions with fixed verbs
//! over a [`Db`]. Nothing here reads a clock. Decisions about sessions, runs and commands are made by
//! `protocol::kernel::operations`. Mailboxes of the mesh are the exception: numbers, duplicates, limits and
//! acknowledgements of messages are decided in SQL (`mesh/messages/postgres.rs`, `mesh/messages/sqlite.rs`). Tests hold both equal to the
//! rule in `protocol::mesh::mailbox`.

pub mod attempts;
pub mod backup;
pub mod clock;
mod config;
pub mod daemon;
pub mod db;
mod error;
pub mod failures;
pub mod health;
pub mod kernel;
pub mod lane;
pub mod mesh;
pub mod migrate;
mod postgres;
pub mod probe;
mod record;
pub mod retention;
pub mod run_input;
pub mod signing_keys;
mod sqlite;
#[cfg(feature = "statement-log")]
pub mod statement_log;
mod tables;
pub mod tokens;
pub mod trust;
pub mod users;
pub mod wakeups;

pub use config::{Durability, ReplicaConfig, StoreConfig, Synchronous};
pub use db::Db;
pub use error::{StoreError, StoreFault};
pub use health::WriteHealth;
pub use postgres::address::database_url_problem;
pub use tables::{DeclaredTable, declared_tables};
