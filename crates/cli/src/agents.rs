//! `ostler agents`: what agents say they can do. A change is shown before it is made: `diff` tells whether people who
//! granted something will be asked again.

use std::{io::Read, path::PathBuf};

use clap::Subcommand;
use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind, RawJson, Timestamp,
    ids::{AgentId, prefix_range},
    limits::PAGE_ITEMS_MAX,
    trust::{
        agents::{Agent, CreateAgent, DiffManifest, ListAgents, SavedAgent, TriedManifest, UpdateAgent},
        manifest::Warning,
    },
};

use crate::{
    confirm::Confirm,
    connect::Connection,
    errors, exit_codes,
    output::{self, Output, count, line, moved},
    table::table,
    times::{Times, now},
};

/// How much of a value that changed is shown.
const VALUE_CHARS_MAX: usize = 60;

/// Make, show, change and retire agents, and see what a change of a manifest would do
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler agents create reader --manifest manifest.json\n  ostler agents list\n  \
    ostler agents diff AGENT --manifest new.json")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    Create(CreateArgs),
    Show(ShowArgs),
    List(ListArgs),
    Diff(DiffArgs),
    Update(UpdateArgs),
    Retire(RetireArgs),
}

/// Make an agent; it belongs to you
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler agents create reader --manifest manifest.json --profile codex\n  \
    jq . manifest.json | ostler agents create reader --manifest -")]
struct CreateArgs {
    name: String,
    /// A file with its capability manifest; `-` reads stdin
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    /// The backend profile that runs it
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// Show an agent: its tools and the scopes they need
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler agents show AGENT\n  \
    ostler agents show AGENT -o json | jq .capability_manifest")]
struct ShowArgs {
    #[arg(help = NAMED)]
    agent: String,
    #[command(flatten)]
    output: Output,
}

/// List agents, newest first
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler agents list\n  ostler agents list --name read -o jsonl | jq -r .id")]
struct ListArgs {
    /// Only agents whose name holds this, in any case
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    /// Show at most this many
    #[arg(short = 'n', long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    output: Output,
}

/// See what a change of the manifest would do, before it is done
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler agents diff AGENT --manifest new.json\n  \
    ostler agents diff AGENT --manifest new.json -o json | jq .breaking")]
struct DiffArgs {
    #[arg(help = NAMED)]
    agent: String,
    /// A file with the new manifest; `-` reads stdin
    #[arg(long, value_name = "FILE")]
    manifest: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// Change an agent: what runs it, its manifest. Its name stays
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler agents update AGENT --manifest new.json\n  \
    ostler agents update AGENT --profile scripted")]
struct UpdateArgs {
    #[arg(help = NAMED)]
    agent: String,
    /// The backend profile that runs it
    #[arg(long, value_name = "PROFILE")]
    profile: Option<String>,
    /// A file with the new manifest; `-` reads stdin
    #[arg(long, value_name = "FILE")]
    manifest: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

/// End an agent for good, and every relation with it
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler agents retire AGENT --yes")]
struct RetireArgs {
    #[arg(help = NAMED)]
    agent: String,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

pub async fn agents(connection: &Connection, args: &Args) -> Result<u8, Failure> {
    match &args.verb {
        Verb::Create(args) => create(connection, args).await,
        Verb::Show(args) => show(connection, args).await,
        Verb::List(args) => list(connection, args).await,
        Verb::Diff(args) => diff(connection, args).await,
        Verb::Update(args) => update(connection, args).await,
        Verb::Retire(args) => retire(connection, args).await,
    }
}

async fn create(connection: &Connection, args: &CreateArgs) -> Result<u8, Failure> {
    let asked = CreateAgent {
        name: args.name.clone(),
        backend_profile: args.profile.clone(),
        capability_manifest: args.manifest.as_ref().map(manifest).transpose()?,
    };
    let saved = connection.client()?.create_agent(&asked).await?;
    warn(&saved.warnings);
    args.output.one(&saved, || format!("{}\n", saved.agent.id));
    Ok(exit_codes::OK)
}

async fn show(connection: &Connection, args: &ShowArgs) -> Result<u8, Failure> {
    let agent = find(&connection.client()?, &args.agent).await?;
    let text = described(&agent, output::width())?;
    args.output.one(&agent, || text);
    Ok(exit_codes::OK)
}

async fn list(connection: &Connection, args: &ListArgs) -> Result<u8, Failure> {
    let query = ListAgents { name: args.name.clone(), limit: Some(args.limit), cursor: None };
    let page = connection.client()?.list_agents(&query).await?;
    let nothing = "no agents; make one: ostler agents create NAME --manifest FILE\n";
    let text = || render(&page.agents, args.times, now(), output::width());
    args.output.page(&page.agents, page.next_cursor.is_some(), nothing, text);
    Ok(exit_codes::OK)
}

async fn diff(connection: &Connection, args: &DiffArgs) -> Result<u8, Failure> {
    let asked = DiffManifest { capability_manifest: manifest(&args.manifest)? };
    let client = connection.client()?;
    let agent = find(&client, &args.agent).await?;
    let tried = client.diff_manifest(&agent.id.to_string(), &asked).await.map_err(missing)?;
    warn(&tried.warnings);
    let is_same = agent.capability_manifest_hash.as_ref() == Some(&tried.capability_manifest_hash);
    args.output.one(&tried, || if is_same { "no change\n".to_owned() } else { foretold(&tried, output::width()) });
    Ok(exit_codes::OK)
}

async fn update(connection: &Connection, args: &UpdateArgs) -> Result<u8, Failure> {
    if args.profile.is_none() && args.manifest.is_none() {
        let hint = "name what to change: `--manifest FILE`, `--profile PROFILE`, or both";
        return Err(errors::usage("there is nothing to change", hint));
    }
    let change = UpdateAgent {
        name: None,
        backend_profile: args.profile.clone().map(Some),
        capability_manifest: args.manifest.as_ref().map(manifest).transpose()?,
    };
    let client = connection.client()?;
    let id = find_id(&client, &args.agent).await?.to_string();
    let saved = client.update_agent(&id, &change).await.map_err(missing)?;
    warn(&saved.warnings);
    args.output.one(&saved, || done(&saved));
    Ok(exit_codes::OK)
}

/// What an update did, and whom it asks again.
fn done(saved: &SavedAgent) -> String {
    let (id, version) = (saved.agent.id, saved.agent.capability_manifest_version);
    let asked = &saved.scopes_requiring_reauth;
    let what = match (saved.manifest_changed, saved.breaking) {
        (false, _) => "unchanged".to_owned(),
        (true, false) => "silent: nobody is asked again".to_owned(),
        (true, true) => {
            let scopes = count(asked.len() as i64, "scope");
            format!("breaking: people are asked again about {scopes}, {}", line(&asked.join(", "), 2_000))
        }
    };
    format!("{id} manifest version {version}, {what}\n")
}

async fn retire(connection: &Connection, args: &RetireArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let agent = find(&client, &args.agent).await?;
    let question = format!("Retire {} for good, with every relation that people have with it?", line(&agent.name, 200));
    if !args.confirm.ask(&question)? {
        return Ok(exit_codes::OK);
    }
    let retired = client.retire_agent(&agent.id.to_string()).await.map_err(missing)?;
    args.output.one(&retired, || format!("{} retired\n", retired.id));
    Ok(exit_codes::OK)
}

/// The text goes to the server as it stands: it refuses what a lenient reader here would mend.
fn manifest(path: &PathBuf) -> Result<RawJson, Failure> {
    let read = if path.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    let unreadable = |error: &dyn std::fmt::Display| {
        Failure::rule(FailureKind::SchemaInvalid, "manifest-file", format!("{}: {error}", path.display()))
    };
    let text = read.map_err(|error| unreadable(&error))?;
    RawJson::parse(text).map_err(|error| unreadable(&error))
}

fn warn(warnings: &[Warning]) {
    for Warning { rule, pointer, message } in warnings {
        output::words(&format!("warning: {}: {} ({})\n", line(pointer, 200), line(message, 200), line(rule, 60)));
    }
}

fn missing(failure: Failure) -> Failure {
    errors::listed_by(failure, "ostler agents list")
}

/// What every command that takes an agent says of it.
pub const NAMED: &str = "The agent's id, the beginning of it, or its name";

/// The agent of this id, or the only one whose id begins so or that has this name.
pub async fn find(client: &Client, word: &str) -> Result<Agent, Failure> {
    client.get_agent(&find_id(client, word).await?.to_string()).await.map_err(missing)
}

/// The same, of whoever needs no more than its id. A whole id is not looked up.
pub async fn find_id(client: &Client, word: &str) -> Result<AgentId, Failure> {
    // Tables mark what they cut.
    let word = word.trim_end_matches('…');
    if let Ok(id) = word.parse() {
        return Ok(id);
    }
    // A list is asked for by name, not by id.
    let name = beginning(word).is_none().then(|| word.to_owned());
    let mut query = ListAgents { name, limit: Some(PAGE_ITEMS_MAX), cursor: None };
    let mut found = vec![];
    // All of them: whoever makes a thousand agents must not push the one that is meant out of sight.
    loop {
        let page = client.list_agents(&query).await?;
        found.extend(page.agents.into_iter().filter(|known| is_meant(word, known.id, &known.name)).map(|one| one.id));
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            break;
        }
    }
    match found.as_slice() {
        [one] => Ok(*one),
        [] => Err(missing(Failure::not_found("agent"))),
        several => {
            let ids: Vec<_> = several.iter().map(AgentId::to_string).collect();
            let shared = if beginning(word).is_some() { "ids begin so" } else { "agents have this name" };
            let hint = format!("name one: {}", line(&ids.join(", "), 2_000));
            Err(errors::usage(format!("{} {shared}", ids.len()), hint))
        }
    }
}

/// Whether a word on the command line means this agent.
pub fn is_meant(word: &str, id: AgentId, name: &str) -> bool {
    let word = word.trim_end_matches('…');
    name == word || beginning(word).is_some_and(|beginning| id.to_string().starts_with(&beginning))
}

/// The beginning of an agent's id, `agt_` and at least one digit.
fn beginning(word: &str) -> Option<String> {
    let digits = word.strip_prefix(AgentId::PREFIX)?;
    prefix_range(AgentId::PREFIX, digits).filter(|_| !digits.is_empty()).map(|(from, _)| from)
}

fn described(agent: &Agent, width: Option<usize>) -> Result<String, Failure> {
    let mut text = format!("{}  {}\n", agent.id, line(&agent.name, 200));
    text += &format!("runs on {}\n", agent.backend_profile.as_deref().unwrap_or("nothing"));
    let Some(checked) = agent.manifest()? else { return Ok(text + "no manifest\n") };
    text += &format!("manifest version {}, {}\n\n", agent.capability_manifest_version, checked.canonical.hash);
    let manifest = checked.manifest;
    let scopes = manifest.permission_scopes.iter();
    let scopes = scopes.map(|scope| vec![line(&scope.id, 64), scope.sensitivity.as_str().to_owned()]);
    text += &table(&["SCOPE", "SENSITIVITY"], scopes.collect(), &[], width);
    let tools = manifest.tools.iter().map(|tool| vec![line(&tool.name, 32), line(&tool.permission_scope, 64)]);
    Ok(text + "\n" + &table(&["TOOL", "NEEDS"], tools.collect(), &[], width))
}

fn foretold(tried: &TriedManifest, width: Option<usize>) -> String {
    let diff = &tried.diff;
    let rows = diff.changes.iter().map(|change| {
        let verdict = if change.breaking { "breaking" } else { "silent" };
        let moved = moved(&change.old, &change.new, VALUE_CHARS_MAX);
        vec![verdict.to_owned(), change.rule.as_str().to_owned(), line(&change.pointer, 400), moved]
    });
    let mut text = String::new();
    if !diff.changes.is_empty() {
        text += &table(&["", "CHANGE", "WHERE", "WHAT"], rows.collect(), &[2, 3], width);
    }
    match diff.breaking {
        true => {
            text + &format!("breaking: people will be asked again about {}\n", diff.scopes_requiring_reauth.join(", "))
        }
        false => text + "silent: nobody is asked again\n",
    }
}

fn render(agents: &[Agent], times: Times, now: Timestamp, width: Option<usize>) -> String {
    let rows = agents.iter().map(|agent| {
        vec![
            agent.id.to_string(),
            line(&agent.name, 200),
            agent.capability_manifest_version.to_string(),
            agent.backend_profile.clone().unwrap_or_else(|| "-".into()),
            times.ago(agent.created_at, now),
        ]
    });
    table(&["AGENT", "NAME", "VERSION", "PROFILE", "MADE"], rows.collect(), &[1], width)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_diff_says_what_breaks_and_who_is_asked() {
        let change = |rule: &str, breaking: bool| json!({"rule": rule, "pointer": "/tools/0", "old": null, "new": 1, "breaking": breaking});
        let tried = |breaking: bool, changes: serde_json::Value| -> TriedManifest {
            let scopes = if breaking { vec!["a:read"] } else { vec![] };
            serde_json::from_value(json!({"breaking": breaking, "changes": changes, "scopes_requiring_reauth": scopes,
                "capability_manifest_hash": "h", "capability_manifest_version": 2, "warnings": []}))
            .unwrap()
        };
        let breaking = tried(true, json!([change("scope-added", true), change("tool-added", false)]));
        let text = foretold(&breaking, None);
        assert!(
            text.contains("breaking  scope-added  /tools/0  + 1\nsilent    tool-added   /tools/0  + 1\n"),
            "{text}"
        );
        assert!(text.ends_with("breaking: people will be asked again about a:read\n"), "{text}");
        assert_eq!(foretold(&tried(false, json!([])), None), "silent: nobody is asked again\n");
    }

    #[test]
    fn an_agent_is_meant_by_its_name_its_id_or_the_beginning_of_it() {
        let id: AgentId = "agt_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d".parse().unwrap();
        for word in ["reader", "agt_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d", "agt_0197", "agt_0197c1…"] {
            assert!(is_meant(word, id, "reader"), "{word}");
        }
        for word in ["read", "agt_", "0197", "agt_0198", "agt_0197x", ""] {
            assert!(!is_meant(word, id, "reader"), "{word}");
        }
    }
}
