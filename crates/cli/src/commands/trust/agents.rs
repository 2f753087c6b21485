//! `ostler agents`: agents and their capability manifests. `diff` shows the effect of a change before it is made: whether
//! people who granted scopes will be asked again.

use std::path::PathBuf;

use clap::Subcommand;
use ostler_client::Client;
use ostler_protocol::{
    Failure,
    ids::{AgentId, prefix_range},
    limits::PAGE_ITEMS_MAX,
    trust::{
        agents::{Agent, CreateAgent, DiffManifest, ListAgents, SavedAgent, TriedManifest, UpdateAgent},
        manifest::Warning,
    },
};

use crate::{
    commands::{
        list::{ListFlags, Listing, all_pages},
        trust::manifests::{self, CheckManifestArgs, InitManifestArgs},
    },
    connection::Connection,
    errors, exit_codes,
    terminal::{
        confirm::Confirm,
        output::{self, Output, count, line, value_change},
        table::{Column, table},
    },
};

/// The most that is printed of a changed value.
const VALUE_CHARS_MAX: usize = 60;
/// The values of a change are shortened to this before their place is wrapped.
const VALUES_CHARS_LEAST: usize = 24;

/// Write and check manifests; make, show, change and retire agents
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler agents init reader\n  ostler agents check reader.manifest.json\n  \
    ostler agents create reader --manifest reader.manifest.json\n  ostler agents list\n  \
    ostler agents diff AGENT --manifest new.json")]
pub(crate) struct AgentsArgs {
    #[command(subcommand)]
    verb: AgentsVerb,
}

impl AgentsArgs {
    /// Whether the verb needs no server.
    pub(crate) fn is_offline(&self) -> bool {
        matches!(self.verb, AgentsVerb::Init(_) | AgentsVerb::Check(_))
    }
}

#[derive(Subcommand, Debug)]
enum AgentsVerb {
    Init(InitManifestArgs),
    Check(CheckManifestArgs),
    Create(CreateAgentArgs),
    Show(ShowAgentArgs),
    List(ListAgentsArgs),
    Diff(DiffAgentArgs),
    Update(UpdateAgentArgs),
    Retire(RetireAgentArgs),
}

/// Make an agent; it belongs to you
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler agents create reader --manifest manifest.json --profile codex\n  \
    jq . manifest.json | ostler agents create reader --manifest -")]
struct CreateAgentArgs {
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
struct ShowAgentArgs {
    #[arg(help = NAMED)]
    agent: String,
    #[command(flatten)]
    output: Output,
}

/// List agents, newest first
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler agents list\n  ostler agents list --name read -o jsonl | jq -r .id")]
struct ListAgentsArgs {
    /// Only agents whose name contains this, ignoring the case of ASCII letters
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    #[command(flatten)]
    list: ListFlags,
}

/// Preview the effect of a new manifest
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler agents diff AGENT --manifest new.json\n  \
    ostler agents diff AGENT --manifest new.json -o json | jq .breaking")]
struct DiffAgentArgs {
    #[arg(help = NAMED)]
    agent: String,
    /// A file with the new manifest; `-` reads stdin
    #[arg(long, value_name = "FILE")]
    manifest: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// Change an agent's profile or manifest; its name cannot be changed
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler agents update AGENT --manifest new.json\n  \
    ostler agents update AGENT --profile scripted")]
struct UpdateAgentArgs {
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

/// Retire an agent permanently, and end every relation with it
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler agents retire AGENT --yes")]
struct RetireAgentArgs {
    #[arg(help = NAMED)]
    agent: String,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn agents(connection: &Connection, args: &AgentsArgs) -> Result<u8, Failure> {
    match &args.verb {
        AgentsVerb::Init(args) => manifests::init(args),
        AgentsVerb::Check(args) => manifests::check(args),
        AgentsVerb::Create(args) => create(connection, args).await,
        AgentsVerb::Show(args) => show(connection, args).await,
        AgentsVerb::List(args) => list(connection, args).await,
        AgentsVerb::Diff(args) => diff(connection, args).await,
        AgentsVerb::Update(args) => update(connection, args).await,
        AgentsVerb::Retire(args) => retire(connection, args).await,
    }
}

async fn create(connection: &Connection, args: &CreateAgentArgs) -> Result<u8, Failure> {
    let request = CreateAgent {
        name: args.name.clone(),
        backend_profile: args.profile.clone(),
        capability_manifest: args.manifest.as_ref().map(|file| manifests::read(file)).transpose()?,
    };
    let client = connection.client()?;
    let saved = client.create_agent(&request).await?;
    warn(&saved.warnings);
    args.output.one(&saved, || format!("{}\n", saved.agent.id));
    note_same_name(&client, &saved.agent).await;
    Ok(exit_codes::OK)
}

/// Notes on stderr which other agents have the name of a new one: commands then need ids. The agent was created, so a list that
/// cannot be read is not reported.
async fn note_same_name(client: &Client, created: &Agent) {
    let query = ListAgents { name: Some(created.name.clone()), limit: Some(PAGE_ITEMS_MAX), cursor: None };
    let Ok(page) = client.list_agents(&query).await else { return };
    let others = page.agents.iter().filter(|agent| agent.name == created.name && agent.id != created.id);
    let ids: Vec<_> = others.map(|agent| agent.id.to_string()).collect();
    let others = match ids.len() {
        0 => return,
        1 => "another agent has".to_owned(),
        several => format!("{several} other agents have"),
    };
    let (name, ids) = (line(&created.name, 200), line(&ids.join(", "), 2_000));
    output::message(&format!("note: {others} the name {name}: {ids}; commands need the id of each\n"));
}

async fn show(connection: &Connection, args: &ShowAgentArgs) -> Result<u8, Failure> {
    let agent = find(&connection.client()?, &args.agent).await?;
    let text = describe(&agent, output::width())?;
    args.output.one(&agent, || text);
    Ok(exit_codes::OK)
}

async fn list(connection: &Connection, args: &ListAgentsArgs) -> Result<u8, Failure> {
    let (limit, times, output) = args.list.parts();
    let query = ListAgents { name: args.name.clone(), limit: Some(limit), cursor: None };
    let page = connection.client()?.list_agents(&query).await?;
    AGENTS.print(&page.agents, page.next_cursor.is_some(), times, output)
}

async fn diff(connection: &Connection, args: &DiffAgentArgs) -> Result<u8, Failure> {
    let request = DiffManifest { capability_manifest: manifests::read(&args.manifest)? };
    let client = connection.client()?;
    let agent = find(&client, &args.agent).await?;
    let tried = client.diff_manifest(&agent.id.to_string(), &request).await.map_err(missing)?;
    warn(&tried.warnings);
    let is_same = agent.capability_manifest_hash.as_ref() == Some(&tried.capability_manifest_hash);
    args.output.one(&tried, || if is_same { "no change\n".to_owned() } else { describe_diff(&tried, output::width()) });
    Ok(exit_codes::OK)
}

async fn update(connection: &Connection, args: &UpdateAgentArgs) -> Result<u8, Failure> {
    if args.profile.is_none() && args.manifest.is_none() {
        let hint = "name what to change: `--manifest FILE`, `--profile PROFILE`, or both";
        return Err(errors::usage("there is nothing to change", hint));
    }
    let change = UpdateAgent {
        name: None,
        backend_profile: args.profile.clone().map(Some),
        capability_manifest: args.manifest.as_ref().map(|file| manifests::read(file)).transpose()?,
    };
    let client = connection.client()?;
    let id = find_id(&client, &args.agent).await?.to_string();
    let saved = client.update_agent(&id, &change).await.map_err(missing)?;
    warn(&saved.warnings);
    args.output.one(&saved, || update_summary(&saved));
    Ok(exit_codes::OK)
}

/// The effect of an update, and which scopes people are asked about again.
fn update_summary(saved: &SavedAgent) -> String {
    let (id, version) = (saved.agent.id, saved.agent.capability_manifest_version);
    let what = match saved.manifest_changed {
        false => "unchanged".to_owned(),
        true => effect_on_people(saved.breaking, &saved.scopes_requiring_reauth),
    };
    format!("{id} manifest version {version}, {what}\n")
}

/// Whether people who granted scopes are asked again because of a new manifest.
pub(crate) fn effect_on_people(is_breaking: bool, scopes: &[String]) -> String {
    if !is_breaking {
        return "silent: no one is asked again".to_owned();
    }
    let number = count(scopes.len() as i64, "scope");
    format!("breaking: people are asked again about {number}, {}", line(&scopes.join(", "), 2_000))
}

async fn retire(connection: &Connection, args: &RetireAgentArgs) -> Result<u8, Failure> {
    let client = connection.client()?;
    let agent = find(&client, &args.agent).await?;
    let question =
        format!("Retire {} permanently, and end every relation that people have with it?", line(&agent.name, 200));
    if !args.confirm.ask(&question)? {
        return Ok(exit_codes::OK);
    }
    let retired = client.retire_agent(&agent.id.to_string()).await.map_err(missing)?;
    args.output.one(&retired, || format!("{} retired\n", retired.id));
    Ok(exit_codes::OK)
}

pub(crate) fn warn(warnings: &[Warning]) {
    for Warning { rule, pointer, message } in warnings {
        output::message(&format!("warning: {}: {} ({})\n", line(pointer, 200), line(message, 200), line(rule, 60)));
    }
}

fn missing(failure: Failure) -> Failure {
    errors::listed_by(failure, "ostler agents list")
}

/// The help of every argument that names an agent.
pub(crate) const NAMED: &str = "The agent's id, the beginning of it, or its name";

/// The agent with this id or name, or the only one whose id begins with the word.
pub(crate) async fn find(client: &Client, word: &str) -> Result<Agent, Failure> {
    client.get_agent(&find_id(client, word).await?.to_string()).await.map_err(missing)
}

/// The id of that agent. A complete id is returned without a lookup.
pub(crate) async fn find_id(client: &Client, word: &str) -> Result<AgentId, Failure> {
    // Tables end a shortened id with this mark.
    let word = word.trim_end_matches('…');
    if let Ok(id) = word.parse() {
        return Ok(id);
    }
    // The server filters by name, not by id.
    let name = beginning(word).is_none().then(|| word.to_owned());
    // Every page: an owner with a thousand agents must not push this one out of the result.
    let all = all_pages(async |cursor| {
        let query = ListAgents { name: name.clone(), limit: Some(PAGE_ITEMS_MAX), cursor };
        let page = client.list_agents(&query).await?;
        Ok((page.agents, page.next_cursor))
    });
    let matching = all.await?.into_iter().filter(|agent| matches(word, agent.id, &agent.name));
    let found: Vec<AgentId> = matching.map(|agent| agent.id).collect();
    match found.as_slice() {
        [one] => Ok(*one),
        [] => Err(missing(Failure::not_found("agent"))),
        several => {
            let ids: Vec<_> = several.iter().map(AgentId::to_string).collect();
            let shared = if beginning(word).is_some() { "ids begin with this" } else { "agents have this name" };
            let hint = format!("name one: {}", line(&ids.join(", "), 2_000));
            Err(errors::usage(format!("{} {shared}", ids.len()), hint))
        }
    }
}

/// Whether a word on the command line names this agent.
pub(crate) fn matches(word: &str, id: AgentId, name: &str) -> bool {
    let word = word.trim_end_matches('…');
    name == word || beginning(word).is_some_and(|beginning| id.to_string().starts_with(&beginning))
}

/// The beginning of an agent's id, `agt_` and at least one digit.
fn beginning(word: &str) -> Option<String> {
    let digits = word.strip_prefix(AgentId::PREFIX)?;
    prefix_range(AgentId::PREFIX, digits).filter(|_| !digits.is_empty()).map(|(from, _)| from)
}

fn describe(agent: &Agent, width: Option<usize>) -> Result<String, Failure> {
    let mut text = format!("{}  {}\n", agent.id, line(&agent.name, 200));
    text += &format!("profile {}\n", agent.backend_profile.as_deref().unwrap_or("none"));
    let Some(checked) = agent.manifest()? else { return Ok(text + "no manifest\n") };
    text += &format!("manifest version {}, {}\n\n", agent.capability_manifest_version, checked.canonical.hash);
    let manifest = checked.manifest;
    let scopes = manifest.permission_scopes.iter();
    let scopes = scopes.map(|scope| vec![line(&scope.id, 64), scope.sensitivity.as_str().to_owned()]);
    text += &table(&[Column::whole("SCOPE"), Column::whole("SENSITIVITY")], scopes.collect(), width);
    let tools = manifest.tools.iter().map(|tool| vec![line(&tool.name, 32), line(&tool.permission_scope, 64)]);
    Ok(text + "\n" + &table(&[Column::whole("TOOL"), Column::whole("NEEDS")], tools.collect(), width))
}

fn describe_diff(tried: &TriedManifest, width: Option<usize>) -> String {
    let diff = &tried.diff;
    let rows = diff.changes.iter().map(|change| {
        let verdict = if change.breaking { "breaking" } else { "silent" };
        let values = value_change(&change.old, &change.new, VALUE_CHARS_MAX);
        vec![verdict.to_owned(), change.rule.as_str().to_owned(), line(&change.pointer, 400), values]
    });
    let mut text = String::new();
    if !diff.changes.is_empty() {
        // A pointer is wrapped, because its end names the place.
        let columns = [
            Column::whole(""),
            Column::text(4, "CHANGE"),
            Column::wrapped(2, "WHERE"),
            Column::long_text(1, VALUES_CHARS_LEAST, 3, "WHAT"),
        ];
        text += &table(&columns, rows.collect(), width);
    }
    match diff.breaking {
        true => {
            text + &format!("breaking: people will be asked again about {}\n", diff.scopes_requiring_reauth.join(", "))
        }
        false => text + "silent: no one is asked again\n",
    }
}

const AGENTS: Listing<Agent> = Listing {
    nothing: "no agents; make one: ostler agents create NAME --manifest FILE\n",
    columns: &[
        Column::whole("AGENT"),
        Column::text(4, "NAME"),
        Column::spare(1, "VERSION"),
        Column::spare(3, "PROFILE"),
        Column::spare(2, "MADE"),
    ],
    row: |agent, times, now| {
        vec![
            agent.id.to_string(),
            line(&agent.name, 200),
            agent.capability_manifest_version.to_string(),
            agent.backend_profile.clone().unwrap_or_else(|| "-".into()),
            times.ago(agent.created_at, now),
        ]
    },
};

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_diff_shows_breaking_changes_and_the_scopes_to_confirm() {
        let change = |rule: &str, breaking: bool| json!({"rule": rule, "pointer": "/tools/0", "old": null, "new": 1, "breaking": breaking});
        let tried = |breaking: bool, changes: serde_json::Value| -> TriedManifest {
            let scopes = if breaking { vec!["a:read"] } else { vec![] };
            serde_json::from_value(json!({"breaking": breaking, "changes": changes, "scopes_requiring_reauth": scopes,
                "capability_manifest_hash": "h", "capability_manifest_version": 2, "warnings": []}))
            .unwrap()
        };
        let breaking = tried(true, json!([change("scope-added", true), change("tool-added", false)]));
        let text = describe_diff(&breaking, None);
        assert!(
            text.contains("breaking  scope-added  /tools/0  + 1\nsilent    tool-added   /tools/0  + 1\n"),
            "{text}"
        );
        assert!(text.ends_with("breaking: people will be asked again about a:read\n"), "{text}");
        assert_eq!(describe_diff(&tried(false, json!([])), None), "silent: no one is asked again\n");
    }

    #[test]
    fn the_place_of_a_change_is_wrapped_and_never_shortened() {
        let pointer = "/tools/0/input_schema/properties/path/enum";
        let tried = |old: &str| -> TriedManifest {
            let change =
                json!({"rule": "enum-value-removed", "pointer": pointer, "old": old, "new": null, "breaking": true});
            serde_json::from_value(json!({"breaking": true, "changes": [change], "scopes_requiring_reauth": ["a:read"],
                "capability_manifest_hash": "h", "capability_manifest_version": 2, "warnings": []}))
            .unwrap()
        };
        assert!(describe_diff(&tried("a"), Some(80)).contains(&format!("enum-value-removed  {pointer}  - \"a\"\n")));
        let narrow = describe_diff(&tried("a"), Some(60));
        assert!(
            narrow.starts_with(
                "          CHANGE             WHERE                     WHAT\n\
                 breaking  enum-value-remov…  /tools/0/input_schema/pr  - \"a\"\n\
                 \x20                            operties/path/enum\n"
            ),
            "{narrow}"
        );
        for width in 44..120 {
            let text = describe_diff(&tried(&"x".repeat(50)), Some(width));
            let table = text.split("breaking: ").next().unwrap();
            assert!(table.lines().all(|line| line.chars().count() <= width), "{width}: {text}");
            let found: String = table.split_whitespace().filter(|word| pointer.contains(word)).collect();
            assert_eq!(found, pointer, "{width}: {text}");
        }
    }

    #[test]
    fn an_agent_is_named_by_its_name_its_id_or_the_beginning_of_it() {
        let id: AgentId = "agt_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d".parse().unwrap();
        for word in ["reader", "agt_0197c1d2e3f47a6b8c9d0e1f2a3b4c5d", "agt_0197", "agt_0197c1…"] {
            assert!(matches(word, id, "reader"), "{word}");
        }
        for word in ["read", "agt_", "0197", "agt_0198", "agt_0197x", ""] {
            assert!(!matches(word, id, "reader"), "{word}");
        }
    }
}
