//! Which store is opened, and how it writes.

use std::{path::PathBuf, time::Duration};

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

/// A standby of the store's Postgres that answers reads which tolerate staleness. It has no `Debug`, because the URL may hold a
/// password.
#[derive(Clone)]
pub struct ReplicaConfig {
    pub url: String,
    /// Reads go to the primary while the replica may lag more than this.
    pub lag_max: Duration,
}

/// Settings that would let an answered write be lost, by name and value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Durability {
    pub weak_settings: Vec<String>,
}
