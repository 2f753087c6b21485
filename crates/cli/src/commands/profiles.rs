//! `ostler profiles`: the credentials and configs of backends. A key is read from stdin or a file, never from an argument,
//! and never printed; only what the server returns about it is printed.

use std::{
    collections::BTreeMap,
    io::{IsTerminal, Read},
    path::{Path, PathBuf},
    time::Duration,
};

use clap::Subcommand;
use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind, Timestamp,
    kernel::provider_profiles::{
        AUTH, AgentKind, CONFIG, ListProfileChanges, MODEL_CATALOG, ProfileChange, ProfileScope, ProviderProfile,
        PutConfig, PutCredential, ValidateProfile, Validation, ValidationStatus,
    },
    limits::{API_KEY_BYTES_MAX, PROFILE_FILE_BYTES_MAX},
};
use secrecy::{ExposeSecret, SecretString};

use crate::{
    candidates,
    commands::list::{ListFlags, Listing},
    connection::Connection,
    errors, exit_codes,
    terminal::{
        confirm::Confirm,
        list_output::ListOutput,
        output::{self, Output, line},
        secret_input,
        table::Column,
        times::{Times, now},
    },
};

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
    ostler profiles set codex --auth ~/.codex/auth.json --config ~/.codex/config.toml")]
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
    after_help = "Examples:\n  ostler profiles validate codex\n  ostler profiles validate codex --tenant hwlab -o json"
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
        output::message("no profile is configured; set one: ostler profiles set codex < key.txt\n");
    }
    Ok(exit_codes::OK)
}

async fn set(connection: &Connection, args: &SetProfileArgs) -> Result<u8, Failure> {
    let file = |path: &Option<PathBuf>| path.as_deref().map(|path| read(path, PROFILE_FILE_BYTES_MAX)).transpose();
    let files = [(AUTH, file(&args.auth)?), (CONFIG, file(&args.config)?), (MODEL_CATALOG, file(&args.model_catalog)?)];
    let given: BTreeMap<_, _> = files.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text?))).collect();
    let request = PutCredential {
        api_key: if given.contains_key(AUTH) { None } else { Some(key(args.key_file.as_deref())?) },
        files: (!given.is_empty()).then_some(given),
        ..PutCredential::default()
    };
    let set = connection.client()?.put_credential(&args.profile, &args.owner.scope(), &request).await?;
    args.output.one(&set, || format!("{} set\n", set.profile));
    let next = match &set.message {
        Some(message) if !set.configured => format!("{}\n", line(message, 300)),
        _ => format!("test it: {} profiles validate {}{}\n", connection.invocation(), set.profile, tenant_flag(&set)),
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
    let set = client.put_profile_config(&args.profile, &args.owner.scope(), &request).await?;
    args.output.one(&set, || config_outcome(&set));
    if set.credential_dropped {
        output::message(&format!(
            "the config names another server or command than the credential was set for\nset it again: {} profiles set {}{}\n",
            connection.invocation(),
            set.profile,
            tenant_flag(&set),
        ));
        return Ok(exit_codes::OK);
    }
    if let Some(message) = set.message.as_ref().filter(|_| !set.configured) {
        output::message(&format!("{}\n", line(message, 300)));
    }
    Ok(exit_codes::OK)
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
    set.tenant_id.as_ref().map(|tenant| format!(" --tenant {}", line(tenant, 200))).unwrap_or_default()
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

fn owner(tenant_id: Option<&str>) -> String {
    tenant_id.map_or("operator".into(), |tenant_id| line(tenant_id, 200))
}

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

/// Reads the provider's key from a file, a pipe, or the terminal without echo.
fn key(file: Option<&Path>) -> Result<SecretString, Failure> {
    let key = match file {
        Some(path) => read(path, API_KEY_BYTES_MAX)?,
        None if std::io::stdin().is_terminal() => secret_input::ask("key (not echoed): ", API_KEY_BYTES_MAX)?,
        None => read(Path::new("-"), API_KEY_BYTES_MAX)?,
    };
    if key.expose_secret().trim().is_empty() {
        return Err(errors::usage("no key was given", "pipe it in: ostler profiles set codex < key.txt"));
    }
    Ok(key.expose_secret().trim().to_owned().into())
}

/// Reads a file of at most `bytes_max` bytes; `-` is stdin.
fn read(path: &Path, bytes_max: usize) -> Result<SecretString, Failure> {
    let unreadable =
        |why: String| errors::usage(format!("cannot read {}: {why}", path.display()), "check the file's name");
    let mut bytes = vec![];
    let limit = bytes_max as u64 + 1;
    let read = match path.to_str() {
        Some("-") => std::io::stdin().lock().take(limit).read_to_end(&mut bytes),
        _ => std::fs::File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)),
    };
    read.map_err(|error| unreadable(error.to_string()))?;
    if bytes.len() > bytes_max {
        return Err(Failure::new(
            FailureKind::PayloadTooLarge,
            format!("{} is over {bytes_max} bytes", path.display()),
        ));
    }
    String::from_utf8(bytes).map(SecretString::from).map_err(|_| unreadable("it is not UTF-8".into()))
}

const PROFILES: Listing<ProviderProfile> = Listing {
    nothing: "",
    columns: &[
        Column::whole("PROFILE"),
        Column::spare(2, "OWNER"),
        Column::spare(3, "AGENT"),
        Column::whole("READY"),
        Column::spare(4, "TRIED"),
        Column::spare(1, "SET"),
        Column::wrapped(5, "NOTE"),
    ],
    row: |profile, times, now| {
        vec![
            line(&profile.profile, 63),
            owner(profile.tenant_id.as_deref()),
            profile.agent.as_str().to_owned(),
            if profile.ready { "yes" } else { "no" }.into(),
            tried(profile),
            profile.updated_at.map_or("-".into(), |at| times.ago(at, now)),
            profile.message.as_deref().map_or(String::new(), |message| shorten_message(message, &profile.profile)),
        ]
    },
};

/// A message about a profile without its beginning, which only names the profile again.
pub(crate) fn shorten_message(message: &str, profile: &str) -> String {
    let message = line(message, 200);
    let begins = [format!("the secret of the profile {profile:?} "), format!("the profile {profile:?} ")];
    let rest = begins.iter().find_map(|begin| message.strip_prefix(begin.as_str()));
    rest.map(|rest| rest.strip_prefix("is ").unwrap_or(rest).to_owned()).unwrap_or(message)
}

/// The result of the last trial, if it was of the current version.
fn tried(profile: &ProviderProfile) -> String {
    match &profile.validation {
        Some(trial) if trial.resource_version == profile.resource_version => trial.status.as_str().into(),
        Some(_) => "before the last change".into(),
        None => "-".into(),
    }
}

fn render_one(profile: &ProviderProfile, times: Times, now: Timestamp) -> String {
    let suffix = |suffix: &Option<String>| suffix.as_ref().map_or("-".to_owned(), |hash| format!("…{hash}"));
    let rows = [
        ("profile", line(&profile.profile, 63)),
        ("owner", owner(profile.tenant_id.as_deref())),
        ("agent", profile.agent.as_str().to_owned()),
        ("configured", if profile.configured { "yes" } else { "no" }.to_owned()),
        ("ready", if profile.ready { "yes" } else { "no" }.to_owned()),
        ("secret", format!("{} ({})", profile.secret_ref.name, profile.secret_ref.keys.join(", "))),
        ("version", profile.resource_version.clone().unwrap_or_else(|| "-".into())),
        ("auth.json", suffix(&profile.credential_hash_suffix)),
        ("config.toml", suffix(&profile.config_hash_suffix)),
        ("set", profile.updated_at.map_or("-".into(), |at| times.ago(at, now))),
        ("tried", tried(profile)),
        ("note", profile.message.as_deref().map_or("-".into(), |message| line(message, 300))),
    ];
    let text: String = rows.into_iter().map(|(name, value)| format!("{name:<12} {value}\n")).collect();
    output::folded(&text, output::width())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_trial_counts_only_for_the_version_it_tested() {
        let profile = |tried: &str| -> ProviderProfile {
            serde_json::from_value(json!({"profile": "codex", "builtIn": true, "agent": "codex", "configured": true,
                "secretRef": {"name": "agentrun-v01-provider-codex", "keys": ["auth.json"]}, "resourceVersion": "2",
                "credentialHashSuffix": "01234567", "configHashSuffix": null, "updatedAt": "2030-01-01T00:00:00Z",
                "validation": {"validationId": format!("val_{:032x}", 1), "status": "passed", "failureKind": null,
                    "resourceVersion": tried, "createdAt": "2030-01-01T00:00:00Z"}, "failureKind": null, "message": null}))
            .unwrap()
        };
        assert_eq!((tried(&profile("2")), tried(&profile("1"))), ("passed".into(), "before the last change".into()));
        let (times, now) = (Times::default(), "2030-01-01T01:00:00Z".parse().unwrap());
        let text = PROFILES.render(&[profile("2")], times, now, None);
        assert!(text.contains("codex") && text.contains("passed") && text.contains("1h"), "{text}");
        assert!(render_one(&profile("2"), times, now).contains("…01234567"));
    }

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
        assert_eq!(tenant_flag(&profile(true, false, Some("hwlab"))), " --tenant hwlab");
        assert_eq!(tenant_flag(&profile(true, false, None)), "");
    }
}
