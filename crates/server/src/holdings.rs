//! The data that the engine itself stores: the kernel's tables, users and tokens, and its files in the data directory.

use crate::{
    config::{Config, SecretsPlace},
    dialect::{
        Backup::{BackendFiles, ByTables, Copied, LeftOut, Workspaces},
        ConfiguredPlace,
        Erasure::{ContentsOnly, OfRuns, OfSession, OutlivesOwner, Untouched, WithSession},
        Holding,
        Retention::{self, Expires, Kept, Proof},
    },
};

pub(crate) const ENGINE: &[Holding] = &[
    Holding::table("sessions", Copied, Kept, ContentsOnly),
    Holding::table("commands", Copied, Retention::WithSession, OfRuns),
    Holding::table("command_payloads", Copied, Retention::WithSession, OfSession),
    Holding::table("command_aliases", Copied, Retention::WithSession, OfSession),
    // Digests stay, so that the chain can be verified after payloads are erased.
    Holding::table("events", Copied, Proof, ContentsOnly),
    // It is what was used, without contents. An erasure removes the user from it.
    Holding::table("usage", Copied, Kept, ContentsOnly),
    // Only SQLite has them: the labels in the rows of runs and sessions, for searches. Triggers write them.
    Holding::table("run_labels", LeftOut, Retention::WithSession, WithSession),
    Holding::table("session_labels", LeftOut, Kept, ContentsOnly),
    Holding::table("append_batches", Copied, Retention::WithSession, OfRuns),
    Holding::table("leases", Copied, Retention::WithSession, OfRuns),
    Holding::table("permissions", Copied, Retention::WithSession, OfRuns),
    Holding::table("runner_jobs", Copied, Retention::WithSession, OfRuns),
    Holding::table("runners", Copied, Kept, Untouched),
    Holding::table("session_readers", Copied, Kept, Untouched),
    Holding::table("session_read_cursors", Copied, Retention::WithSession, OfSession),
    Holding::table("backends", Copied, Kept, Untouched),
    Holding::table("provider_profile_changes", Copied, Proof, Untouched),
    Holding::table("provider_validations", Copied, Kept, Untouched),
    Holding::table("workspace_switches", Copied, Kept, Untouched),
    Holding::table("retention_holds", Copied, Proof, Untouched),
    Holding::table("retention_gate", LeftOut, Kept, Untouched),
    // Records which payloads may be missing.
    Holding::table("payload_removals", Copied, Retention::WithSession, OfRuns),
    Holding::table("session_payload_removals", Copied, Retention::WithSession, OfSession),
    Holding::table("bundle_commits", Copied, Retention::WithSession, OfRuns),
    Holding::table("runs", Copied, Retention::WithSession, OfRuns),
    Holding::table("users", Copied, Kept, OutlivesOwner),
    Holding::table("tokens", Copied, Kept, OutlivesOwner),
    Holding::table("signing_keys", Copied, Kept, Untouched),
    Holding::table("schema_migrations", Copied, Kept, Untouched),
    Holding::table("wakeups", LeftOut, Expires, Untouched),
    Holding::table("store_probe", LeftOut, Kept, Untouched),
    Holding::table("store_clock", LeftOut, Kept, Untouched),
    Holding::path("ostler.db", ByTables, Kept, ContentsOnly),
    Holding::path("token", Copied, Kept, Untouched),
    Holding::path("signing-key", Copied, Kept, Untouched),
    Holding::path("secrets-key", Copied, Kept, Untouched).placed_by(sealing_key),
    // Credentials belong to profiles, and are deleted with them.
    Holding::path("secrets", Copied, Kept, Untouched).placed_by(secrets),
    Holding::path("sessions", BackendFiles, Expires, WithSession),
    // Clones that are fetched again when they are missing.
    Holding::path("git", LeftOut, Kept, Untouched),
    // Made for each runner and deleted after it.
    Holding::path("homes", LeftOut, Expires, Untouched),
    // Made for each MCP server that runs, and deleted after it.
    Holding::path("mcp-homes", LeftOut, Expires, Untouched),
    // Extensions and subagents that clients gave to agents, for all their sessions.
    Holding::path("agent-homes", Copied, Kept, Untouched),
    Holding::path("git-credentials", Copied, Kept, Untouched),
    Holding::path("workspaces", Workspaces, Expires, WithSession),
];

/// Secrets of a cluster are backed up with the cluster.
fn secrets(config: &Config) -> ConfiguredPlace {
    if config.secrets_place() == SecretsPlace::Kubernetes {
        let place = "the secrets of provider profiles (secrets.store, Kubernetes Secrets)";
        return ConfiguredPlace::Elsewhere(place.into());
    }
    config.secrets.directory.clone().map_or(ConfiguredPlace::DataDir, ConfiguredPlace::At)
}

/// A key that the operator keeps apart from the data stays apart from its backup.
fn sealing_key(config: &Config) -> ConfiguredPlace {
    let section = &config.secrets;
    let elsewhere = |place: String| ConfiguredPlace::Elsewhere(format!("the key that seals secrets ({place})"));
    match (&section.key, &section.key_file) {
        (Some(_), _) => elsewhere("secrets.key".into()),
        (None, Some(file)) => elsewhere(format!("secrets.key_file, {}", file.display())),
        (None, None) => ConfiguredPlace::DataDir,
    }
}
