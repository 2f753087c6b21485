//! Verbs on the daemon's nouns.

pub(crate) mod clients;
mod documents;
pub(crate) mod environment;
pub(crate) mod files;
pub(crate) mod health;
pub(crate) mod languages;
pub(crate) mod lookup;
pub(crate) mod memory;
pub(crate) mod models;
pub(crate) mod notes;
pub(crate) mod preflight;
mod profiles;
pub(crate) mod prompts;
pub(crate) mod providers;
pub(crate) mod sessions;
pub(crate) mod settings;
mod settings_file;
pub(crate) mod stats;
pub(crate) mod stream;
pub(crate) mod tasks;
pub(crate) mod votes;
pub(crate) mod workspace;
pub(crate) mod workspace_init;
