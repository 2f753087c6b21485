//! Wire types and rules of the daemon dialect: what editors and SDKs send and receive.

pub mod cells;
pub mod clients;
pub mod failures;
pub mod files;
pub mod frames;
pub mod languages;
pub mod memory;
pub mod models;
pub mod prompts;
pub mod sessions;
pub mod settings;
pub mod stats;
pub mod streams;
pub mod tasks;
pub mod translate;
pub mod votes;
pub mod workspace;
