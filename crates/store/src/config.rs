//! Which store is opened, and how it writes.

use std::path::PathBuf;

/// How SQLite waits for the disk. Anything below `Full` loses answered writes in a power cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Synchronous {
    Off,
    Normal,
    #[default]
    Full,
}

#[derive(Clone, Debug)]
pub enum StoreConfig {
    Sqlite { file: PathBuf, synchronous: Synchronous },
    Postgres { url: String },
}

/// Settings that would let an answered write be lost, by name and value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Durability {
    pub weak_settings: Vec<String>,
}
