//! All SQL of Ostler, one file per noun, on SQLite and on Postgres.
//!
//! Hot writes go through the [`lane`]s, which commit whatever waits together; reads are free functions with fixed verbs
//! over a [`Db`]. Nothing here reads a clock. Decisions about sessions, runs and commands are made by
//! `protocol::kernel::operations`. Mailboxes of the mesh are the exception: numbers, duplicates, limits and
//! acknowledgements of messages are decided in SQL (`postgres/posts.rs`, `sqlite/posts.rs`).

pub mod agent_md;
pub mod agents;
pub mod aliases;
pub mod attachments;
pub mod backends;
pub mod clock;
pub mod commands;
pub mod db;
pub mod erasures;
pub mod events;
pub mod health;
pub mod history;
pub mod identities;
pub mod lane;
pub mod leases;
pub mod manifests;
pub mod mesh_logins;
pub mod mesh_messages;
pub mod mesh_prekeys;
pub mod mesh_presence;
pub mod mesh_queue;
pub mod migrate;
pub mod permissions;
mod postgres;
pub mod provider_profiles;
pub mod readers;
pub mod receipts;
mod record;
pub mod relations;
pub mod results;
pub mod runner_jobs;
pub mod runners;
pub mod runs;
pub mod sessions;
pub mod signing_keys;
mod sqlite;
pub mod tokens;
pub mod users;
pub mod wakeups;
pub mod webhooks;

pub use db::{Db, Durability, StoreConfig, StoreError, Synchronous};
pub use health::{StoreFault, WriteHealth};
