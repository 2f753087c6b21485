//! `ostler profiles`: the credentials and configs of backends. A key is read from stdin or a file, never from an argument,
//! and never printed; only what the server returns about it is printed.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use clap::Subcommand;
use ostler_client::Client;
use ostler_protocol::{
    Failure,
    kernel::provider_profiles::{
        AUTH, AgentKind, CONFIG, ListProfileChanges, MODEL_CATALOG, ProfileChange, ProfileScope, ProviderProfile,
        PutConfig, PutCredential, ValidateProfile, Validation, ValidationStatus,
    },
    limits::PROFILE_FILE_BYTES_MAX,
};
use secrecy::ExposeSecret;

use crate::{
    candidates,
    commands::{
        list::{ListFlags, Listing},
        profile_files::{in_file, key, read},
        profile_table::{PROFILES, owner, render_one},
    },
    connection::Connection,
    errors, exit_codes,
    terminal::{
        confirm::Confirm,
        list_output::ListOutput,
        output::{self, Output, line},
        shell_words::quoted,
        table::Column,
        times::{Times, now},
    },
};

/// The note below a list without a profile that is configured. The list does not say whether the caller may set one.
const NOT_CONFIGURED: &str = "no profile is configured; as the operator, or with the role provide, set one: \
    ostler profiles set codex < key.txt\n";
/// How often the state of a trial is polled.
const POLL: Duration = Duration::from_millis(500);

/// Set and test the credentials and configs of backends
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler profiles list\n  ostler profiles set codex < key.txt\n  \
    ostler profiles validate codex")]
pub(crate) struct ProfilesArgs {
    #[command(subcommand)]
    verb: ProfilesVerb,
}

#[derive(Subcommand, Debug)]
enum ProfilesVerb {
    List(ListProfilesArgs),
    Show(ShowProfileArgs),
    Set(SetProfileArgs),
    Config(ConfigProfileArgs),
    Validate(ValidateProfileArgs),
    Delete(DeleteProfileArgs),
    History(HistoryProfileArgs),
}

/// The owner of the profile
#[derive(clap::Args, Debug)]
struct OwnerArgs {
    /// The tenant that owns the profile [default: the operator, or the tenant of the token]
    #[arg(long)]
    tenant: Option<String>,
}

impl OwnerArgs {
    fn scope(&self) -> ProfileScope {
        ProfileScope { tenant_id: self.tenant.clone() }
    }
}

/// List provider profiles: the operator's and those of tenants
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler profiles list\n  \
    ostler profiles list -o jsonl | jq -r 'select(.configured) | .profile'")]
struct ListProfilesArgs {
    /// Show only this tenant's profiles and the operator's
    #[arg(long)]
    tenant: Option<String>,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    output: ListOutput,
}

/// Show a profile; never its secret values
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler profiles show codex")]
struct ShowProfileArgs {
    #[arg(add = candidates::profiles())]
    profile: String,
    #[command(flatten)]
    owner: OwnerArgs,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    output: Output,
}

/// Set a profile's credential, from stdin or a file
///
/// The provider's key is read from stdin; at a terminal it is typed without echo. `--auth` gives a whole `auth.json` instead.
/// Files that are not given are not changed.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler profiles set codex < key.txt\n  \
    ostler profiles set deepseek --key-file key.txt --config deepseek.toml\n  \
    ostler profiles set codex --auth auth.json --config config.toml")]
struct SetProfileArgs {
    /// A built-in profile, or a slug of your own
    #[arg(add = candidates::profiles())]
    profile: String,
    /// Read the key from this file
    #[arg(long, value_name = "FILE", conflicts_with = "auth")]
    key_file: Option<PathBuf>,
    /// Use this file as the whole auth.json
    #[arg(long, value_name = "FILE")]
    auth: Option<PathBuf>,
    /// Set config.toml too, from this file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set model-catalog.json too, from this file; for `dsflash-go`
    #[arg(long, value_name = "FILE")]
    model_catalog: Option<PathBuf>,
    #[command(flatten)]
    owner: OwnerArgs,
    #[command(flatten)]
    output: Output,
}

/// Print a profile's config.toml, or replace it
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler profiles config deepseek > deepseek.toml\n  \
    ostler profiles config deepseek --file deepseek.toml")]
struct ConfigProfileArgs {
    #[arg(add = candidates::profiles())]
    profile: String,
    /// Replace it by this file; `-` is stdin. The credential is kept unless the file names another server or command
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    owner: OwnerArgs,
    #[command(flatten)]
    output: Output,
}

/// Test a profile with a short run, and wait for its end
///
/// The exit code is 0 only if the test passed.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler profiles validate codex\n  ostler profiles validate codex --tenant acme -o json"
)]
struct ValidateProfileArgs {
    #[arg(add = candidates::profiles())]
    profile: String,
    #[arg(
        long,
        help = "The tenant to run for [default: the context's, else OSTLER_TENANT, else the token's only one, else local if the token has it]"
    )]
    tenant: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// Delete a profile's credential and config
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler profiles delete deepseek --yes")]
struct DeleteProfileArgs {
    #[arg(add = candidates::profiles())]
    profile: String,
    #[command(flatten)]
    owner: OwnerArgs,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

/// List changes of profiles, newest first: who changed what; never values
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler profiles history\n  ostler profiles history codex -o jsonl")]
struct HistoryProfileArgs {
    /// Only changes of this profile
    #[arg(add = candidates::profiles())]
    profile: Option<String>,
    /// Only changes of this tenant's profiles
    #[arg(long)]
    tenant: Option<String>,
    #[command(flatten)]
    list: ListFlags,
}

pub(crate) async fn profiles(connection: &Connection, args: &ProfilesArgs) -> Result<u8, Failure> {
    match &args.verb {
        ProfilesVerb::List(args) => list(connection, args).await,
        ProfilesVerb::Show(args) => {
            let found = connection.client()?.get_provider_profile(&args.profile, &args.owner.scope()).await;
            let profile = found.map_err(missing)?;
            args.output.one(&profile, || render_one(&profile, args.times, now()));
            Ok(exit_codes::OK)
        }
        ProfilesVerb::Set(args) => set(connection, args).await,
        ProfilesVerb::Config(args) => config(connection, args).await,
        ProfilesVerb::Validate(args) => validate(connection, args).await,
        ProfilesVerb::Delete(args) => {
            if !args.confirm.ask(&format!("delete the credential and config of {}?", line(&args.profile, 63)))? {
                return Ok(exit_codes::OK);
            }
            let deleted = connection.client()?.delete_provider_profile(&args.profile, &args.owner.scope()).await;
            let deleted = deleted.map_err(missing)?;
            args.output.one(&deleted, || format!("{} deleted\n", deleted.profile));
            Ok(exit_codes::OK)
        }
        ProfilesVerb::History(args) => history(connection, args).await,
    }
}

fn missing(failure: Failure) -> Failure {
    errors::listed_by(failure, "ostler profiles list")
}

async fn list(connection: &Connection, args: &ListProfilesArgs) -> Result<u8, Failure> {
    let scope = ProfileScope { tenant_id: args.tenant.clone() };
    let all = connection.client()?.list_provider_profiles(&scope).await?.provider_profiles;
    PROFILES.print(&all, false, args.times, &args.output)?;
    if !all.iter().any(|profile| profile.configured) {
        output::message(NOT_CONFIGURED);
    }
    Ok(exit_codes::OK)
}

async fn set(connection: &Connection, args: &SetProfileArgs) -> Result<u8, Failure> {
    let file = |path: &Option<PathBuf>| path.as_deref().map(|path| read(path, PROFILE_FILE_BYTES_MAX)).transpose();
    let files = [(AUTH, file(&args.auth)?), (CONFIG, file(&args.config)?), (MODEL_CATALOG, file(&args.model_catalog)?)];
    let given: BTreeMap<_, _> = files.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text?))).collect();
    let request = PutCredential {
        api_key: if given.contains_key(AUTH) { None } else { Some(key(&args.profile, args.key_file.as_deref())?) },
        files: (!given.is_empty()).then_some(given),
        ..PutCredential::default()
    };
    let set = connection.client()?.put_credential(&args.profile, &args.owner.scope(), &request).await;
    let set = set.map_err(|failure| args.config.iter().fold(failure, |failure, file| in_file(failure, file)))?;
    args.output.one(&set, || format!("{} set\n", set.profile));
    let next = match &set.message {
        Some(message) if !set.configured => format!("{}\n", line(message, 300)),
        _ => format!(
            "test it: {} profiles validate {}{}\n",
            connection.invocation(),
            quoted(&set.profile),
            tenant_flag(&set)
        ),
    };
    output::message(&next);
    Ok(exit_codes::OK)
}

async fn config(connection: &Connection, args: &ConfigProfileArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let Some(path) = &args.file else {
        let found = client.get_profile_config(&args.profile, &args.owner.scope()).await.map_err(missing)?;
        args.output.one(&found, || found.config.clone());
        return Ok(exit_codes::OK);
    };
    let text = read(path, PROFILE_FILE_BYTES_MAX)?.expose_secret().to_owned();
    let request = PutConfig { config: text, resource_version: None };
    let set = client.put_profile_config(&args.profile, &args.owner.scope(), &request).await;
    let set = set.map_err(|failure| in_file(failure, path))?;
    args.output.one(&set, || config_outcome(&set));
    report_missing(connection, &set);
    Ok(exit_codes::OK)
}

/// Reports what a profile lacks after a change: the credential that the change has removed, or anything else.
pub(crate) fn report_missing(connection: &Connection, set: &ProviderProfile) {
    if set.credential_dropped {
        output::message(&format!(
            "the config names another server or command than the credential was set for\nset it again: {} profiles set {}{}\n",
            connection.invocation(),
            quoted(&set.profile),
            tenant_flag(set),
        ));
    } else if let Some(message) = set.message.as_ref().filter(|_| !set.configured) {
        output::message(&format!("{}\n", line(message, 300)));
    }
}

/// The state of the profile after a change of its config.
fn config_outcome(set: &ProviderProfile) -> String {
    match (set.credential_dropped, set.configured) {
        (true, _) => format!("{}: credential removed, set it again\n", set.profile),
        (false, true) => format!("{} configured\n", set.profile),
        (false, false) => format!("{}: config changed, not ready yet\n", set.profile),
    }
}

/// The flag that names the tenant of the profile.
fn tenant_flag(set: &ProviderProfile) -> String {
    set.tenant_id.as_ref().map(|tenant| format!(" --tenant {}", quoted(tenant))).unwrap_or_default()
}

async fn history(connection: &Connection, args: &HistoryProfileArgs) -> Result<u8, Failure> {
    let (limit, times, output) = args.list.parts();
    let (profile, tenant_id) = (args.profile.clone(), args.tenant.clone());
    let query = ListProfileChanges { profile, tenant_id, limit: Some(limit), cursor: None };
    let page = connection.client()?.list_profile_changes(&query).await?;
    CHANGES.print(&page.changes, page.next_cursor.is_some(), times, output)
}

const CHANGES: Listing<ProfileChange> = Listing {
    nothing: "no change of a profile has been recorded yet\n",
    columns: &[
        Column::whole("CHANGED"),
        Column::whole("PROFILE"),
        Column::spare(1, "OWNER"),
        Column::whole("ACTION"),
        Column::text(3, "BY"),
        Column::text(2, "FIELDS"),
    ],
    row: |change, times, now| {
        let dropped = if change.credential_dropped { " (credential removed)" } else { "" };
        vec![
            times.ago(change.created_at, now),
            line(&change.profile, 63),
            owner(change.tenant_id.as_deref()),
            format!("{}{dropped}", change.action.as_str()),
            line(&change.by, 100),
            line(&change.fields.join(", "), 300),
        ]
    },
};

async fn validate(connection: &Connection, args: &ValidateProfileArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let tenant_id = connection.tenant(args.tenant.as_deref()).await?;
    let begun = client
        .validate_profile(&args.profile, &ValidateProfile { tenant_id, ..Default::default() })
        .await
        .map_err(missing)?;
    output::message(&format!("testing {} with {}\n", begun.profile, begun.run_id));
    // Without a runner the trial would wait silently.
    let tried = client.get_provider_profile(&begun.profile, &ProfileScope::default()).await;
    if tried.is_ok_and(|profile| profile.agent == AgentKind::External) {
        output::message(&format!("waiting for a runner that claims profile {}\n", begun.profile));
    }
    let ended = ended(&client, begun).await?;
    args.output.one(&ended, || match &ended.message {
        Some(message) => format!("{} {}: {}\n", ended.profile, ended.status.as_str(), line(message, 300)),
        None => format!("{} {}\n", ended.profile, ended.status.as_str()),
    });
    if ended.status == ValidationStatus::Failed {
        output::message(&format!("for details: {} result {}\n", connection.invocation(), ended.run_id));
    }
    Ok(exit_codes::of_outcome(ended.terminal_status))
}

async fn ended(client: &Client, mut trial: Validation) -> Result<Validation, Failure> {
    while trial.status == ValidationStatus::Running {
        tokio::time::sleep(POLL).await;
        match client.get_validation(&trial.profile, &trial.validation_id.to_string()).await {
            Ok(now) => trial = now,
            // The trial continues on the server; retry.
            Err(failure) if ostler_client::is_transient(&failure) && !ostler_client::is_unreachable(&failure) => {}
            Err(failure) => return Err(failure),
        }
    }
    Ok(trial)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_changed_config_shows_the_state_of_the_profile() {
        let profile = |configured: bool, dropped: bool, tenant: Option<&str>| -> ProviderProfile {
            serde_json::from_value(
                json!({"profile": "mine", "builtIn": false, "agent": "model", "configured": configured,
                "credentialDropped": dropped, "tenantId": tenant, "secretRef": {"name": "s", "keys": []}}),
            )
            .unwrap()
        };
        assert_eq!(config_outcome(&profile(true, false, None)), "mine configured\n");
        assert_eq!(config_outcome(&profile(false, true, None)), "mine: credential removed, set it again\n");
        assert_eq!(config_outcome(&profile(false, false, None)), "mine: config changed, not ready yet\n");
        assert_eq!(tenant_flag(&profile(true, false, Some("team"))), " --tenant team");
        assert_eq!(tenant_flag(&profile(true, false, None)), "");
    }
}
