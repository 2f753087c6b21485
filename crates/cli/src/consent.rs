//! `ostler consent`: what a person grants agents, and the ledger of it. Screens and questions go to stderr, what came of
//! them to stdout.

mod choice;
mod review;
mod words;

use std::{
    collections::BTreeSet,
    io::{BufRead, Read},
};

use clap::{Subcommand, ValueEnum};
use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind, Timestamp,
    ids::AgentId,
    limits::PAGE_ITEMS_MAX,
    trust::{
        agents::Agent,
        i18n::Language,
        manifest::Manifest,
        receipts::{Broken, RECEIPT_BYTES_MAX, Verifier},
        relations::{CreateRelation, GRANT_LIFE_MS_MAX, ListRelations, RelationView, ScopeStanding, ScopeState, Terms},
    },
};
use serde_json::json;

use self::choice::{Choice, Said};
use crate::{
    agents,
    confirm::Confirm,
    connect::Connection,
    errors, exit_codes,
    output::{self, Output, count, line},
    paint::Paint,
    table::table,
    times::{Times, age_ms, now, parse_ms},
};

/// Grant agents scopes, review what changed, take grants back
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler consent grant notes-helper\n  ostler consent review --lang zh\n  \
    ostler consent list\n  ostler consent export > ledger.jsonl && ostler consent verify ledger.jsonl")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    Grant(GrantArgs),
    Review(ReviewArgs),
    List(ListArgs),
    Revoke(RevokeArgs),
    Export(ExportArgs),
    Verify(VerifyArgs),
}

#[derive(clap::Args, Debug)]
struct Answering {
    /// The language of the screen: en or zh [default: the environment's]
    #[arg(long, value_name = "LANG", value_enum, hide_possible_values = true)]
    lang: Option<Spoken>,
    /// Grant this scope, and none that is not named, without a screen; `…=1h` for a time, `…=once` for one call, `…=always`
    /// for good; without any of them it keeps the limits it has
    #[arg(long = "grant", value_name = "SCOPE[=HOW]", conflicts_with = "none")]
    grants: Vec<String>,
    /// Refuse this scope for good
    #[arg(long = "never", value_name = "SCOPE")]
    refusals: Vec<String>,
    /// Grant nothing, without a screen
    #[arg(long)]
    none: bool,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Spoken {
    En,
    Zh,
}

/// Choose the scopes that an agent may use
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler consent grant notes-helper\n  \
    ostler consent grant agt_01… --grant notes:read --grant filesystem:read=1h --yes")]
struct GrantArgs {
    #[arg(help = agents::NAMED)]
    agent: String,
    #[command(flatten)]
    answering: Answering,
}

/// See what changed about an agent since you consented, and answer
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler consent review\n  ostler consent review notes-helper --lang zh")]
struct ReviewArgs {
    #[arg(help = "The agent's id, the beginning of it, or its name [default: the one that waits for an answer]")]
    agent: Option<String>,
    #[command(flatten)]
    answering: Answering,
}

/// List what you have granted
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler consent list\n  ostler consent list -o jsonl | jq -r .agent_id")]
struct ListArgs {
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    output: Output,
}

/// End a relation with an agent, and everything granted in it
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler consent revoke notes-helper")]
struct RevokeArgs {
    #[arg(help = agents::NAMED)]
    agent: String,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

/// Write your consent ledger to stdout, a receipt per line
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler consent export > ledger.jsonl")]
struct ExportArgs {}

/// Check that no receipt of a ledger was changed, dropped, swapped or inserted
///
/// Needs no server. The exit code is 1 if a receipt does not fit.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler consent verify ledger.jsonl\n  ostler consent export | ostler consent verify -"
)]
struct VerifyArgs {
    #[arg(help = "A ledger as `ostler consent export` writes it; - for stdin")]
    file: String,
    /// The hash of the last receipt, if you have kept it: shows that nothing was cut off
    #[arg(long, value_name = "HASH")]
    head: Option<String>,
    #[command(flatten)]
    output: Output,
}

impl Args {
    /// Whether it talks to a server at all.
    pub fn is_offline(&self) -> bool {
        matches!(self.verb, Verb::Verify(_))
    }
}

pub async fn consent(connection: &Connection, args: &Args) -> Result<u8, Failure> {
    if let Verb::Verify(args) = &args.verb {
        return verify(args);
    }
    let client = &connection.client()?;
    match &args.verb {
        Verb::Grant(args) => grant(client, args).await,
        Verb::Review(args) => review(client, args).await,
        Verb::List(args) => list(client, args).await,
        Verb::Revoke(args) => revoke(client, args).await,
        Verb::Export(_) => export(client).await,
        Verb::Verify(args) => verify(args),
    }
}

async fn grant(client: &Client, args: &GrantArgs) -> Result<u8, Failure> {
    let agent = agents::find(client, &args.agent).await?;
    let relation = with_agent(client, agent.id).await?;
    answer(client, &agent, relation.as_ref(), &args.answering).await
}

async fn review(client: &Client, args: &ReviewArgs) -> Result<u8, Failure> {
    let relation = match &args.agent {
        Some(agent) => related(client, agent).await?,
        None => match waiting(client).await? {
            Some(relation) => relation,
            None => {
                output::words(&format!("{}\n", words::words(args.answering.language()).nothing_waits));
                return Ok(exit_codes::OK);
            }
        },
    };
    let agent = client.get_agent(&relation.agent_id.to_string()).await?;
    let changes = client.relation_changes(relation.id).await?;
    let language = args.answering.language();
    let (manifest, _) = manifest(&agent)?;
    output::words(&review::render(&agent.name, &manifest, &changes, language, Paint::stderr()));
    if !relation.reauth_required && !args.answering.is_given() {
        args.answering.output.one(&relation, || shown(&relation, language));
        return Ok(exit_codes::OK);
    }
    answer(client, &agent, Some(&relation), &args.answering).await
}

/// Asks, and sends what was answered for exactly the manifest that was shown.
async fn answer(
    client: &Client,
    agent: &Agent,
    relation: Option<&RelationView>,
    args: &Answering,
) -> Result<u8, Failure> {
    let (manifest, hash) = manifest(agent)?;
    let language = args.language();
    let mut choice = Choice::new(agent, &manifest, relation, language, now());
    if args.is_given() {
        args.apply(&mut choice)?;
        output::words(&choice.render(Paint::stderr()));
    } else if choice.ask()?.is_none() {
        output::words(&format!("{}\n", words::words(language).nothing_done));
        return Ok(exit_codes::OK);
    }
    if !args.confirm.ask_or_say(&choice.question(), words::words(language).nothing_done)? {
        return Ok(exit_codes::OK);
    }
    let answers = choice.answers(hash);
    let answered = match relation {
        None => client.create_relation(&CreateRelation::new(agent.id, answers)).await,
        Some(relation) => client.update_relation(relation.id, &answers).await,
    };
    let answered = answered.map_err(stale)?;
    args.output.one(&answered, || shown(&answered, language));
    Ok(exit_codes::OK)
}

impl Answering {
    fn language(&self) -> Language {
        match self.lang {
            Some(Spoken::En) => Language::En,
            Some(Spoken::Zh) => Language::Zh,
            None => of_environment(|name| std::env::var(name).ok()),
        }
    }

    /// Whether the answers stand on the command line.
    fn is_given(&self) -> bool {
        self.none || !self.grants.is_empty() || !self.refusals.is_empty()
    }

    fn apply(&self, choice: &mut Choice<'_>) -> Result<(), Failure> {
        choice.clear();
        let scopes = self.grants.iter().map(|grant| scope_and_how(grant).0);
        let mut named = BTreeSet::new();
        if let Some(twice) = scopes.chain(self.refusals.iter().map(String::as_str)).find(|scope| !named.insert(*scope))
        {
            let message = format!("two things are said about the scope {:?}", line(twice, 64));
            return Err(errors::usage(message, "name it once, with `--grant` or with `--never`"));
        }
        for grant in &self.grants {
            let (scope, how) = scope_and_how(grant);
            let terms = match how {
                None => None,
                Some("always") => Some(Terms::default()),
                Some("once") => Some(Terms { once: true, expires_in_ms: None }),
                Some(time) => {
                    let hint = "say `scope=1h`, `scope=once` or `scope=always`";
                    let ms = parse_ms(time).map_err(|why| errors::usage(why, hint))?;
                    if ms > GRANT_LIFE_MS_MAX {
                        let message = format!("{} is longer than a grant can last", line(time, 80));
                        let most = age_ms(GRANT_LIFE_MS_MAX);
                        return Err(errors::usage(message, format!("{most} at most, or `scope=always`")));
                    }
                    Some(Terms { once: false, expires_in_ms: Some(ms) })
                }
            };
            choice.say(scope, terms.map(Said::Granted))?;
        }
        self.refusals.iter().try_for_each(|scope| choice.say(scope, Some(Said::Never)))
    }
}

/// `scope=how`, or a scope alone.
fn scope_and_how(grant: &str) -> (&str, Option<&str>) {
    grant.split_once('=').map_or((grant, None), |(scope, how)| (scope, Some(how)))
}

/// As POSIX has it: the first of these that says anything.
fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Language {
    let said = ["LC_ALL", "LC_MESSAGES", "LANG"].into_iter().find_map(|name| variable(name).filter(|v| !v.is_empty()));
    Language::of_locale(&said.unwrap_or_default())
}

/// What the agent asks for, and the hash of it.
fn manifest(agent: &Agent) -> Result<(Manifest, &str), Failure> {
    match (agent.manifest()?, &agent.capability_manifest_hash) {
        (Some(checked), Some(hash)) => Ok((checked.manifest, hash)),
        _ => {
            let message = format!("{} has no manifest, so there is nothing to grant", line(&agent.name, 200));
            Err(Failure::new(FailureKind::StateConflict, message))
        }
    }
}

async fn all(client: &Client, agent_id: Option<AgentId>) -> Result<Vec<RelationView>, Failure> {
    let mut query = ListRelations { agent_id, limit: Some(PAGE_ITEMS_MAX), cursor: None };
    let mut relations = vec![];
    loop {
        let page = client.list_relations(&query).await?;
        relations.extend(page.relations);
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            return Ok(relations);
        }
    }
}

async fn with_agent(client: &Client, agent_id: AgentId) -> Result<Option<RelationView>, Failure> {
    Ok(all(client, Some(agent_id)).await?.pop())
}

/// The one relation that waits for an answer.
async fn waiting(client: &Client) -> Result<Option<RelationView>, Failure> {
    match client.pending_consents().await?.pending.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(client.get_relation(one.relation_id).await?)),
        several => {
            let agents: Vec<_> = several.iter().map(|one| one.agent_id.to_string()).collect();
            let message = format!("{} agents wait for an answer: {}", agents.len(), agents.join(", "));
            Err(errors::usage(message, "name one: ostler consent review AGENT"))
        }
    }
}

async fn list(client: &Client, args: &ListArgs) -> Result<u8, Failure> {
    let relations = all(client, None).await?;
    if relations.is_empty() && args.output.is_text() {
        output::words("you have granted nothing\n");
    }
    args.output.many(&relations, || render(&relations, args.times, now(), output::width()));
    Ok(exit_codes::OK)
}

fn render(relations: &[RelationView], times: Times, now: Timestamp, width: Option<usize>) -> String {
    let rows = relations.iter().map(|relation| {
        vec![
            line(&relation.agent_name, 80),
            relation.agent_id.to_string(),
            line(&granted(relation, now).join(", "), 400),
            if relation.reauth_required { "review" } else { "ok" }.to_owned(),
            line(&relation.suspended_scopes.join(", "), 400),
            times.ago(relation.updated_at, now),
        ]
    });
    table(&["NAME", "AGENT", "GRANTED", "STATE", "PAUSED", "ANSWERED"], rows.collect(), &[2, 4, 0], width)
}

/// What is in force, each with its limits: `notes:read (once)`, `location:read (1h left)`.
fn granted(relation: &RelationView, now: Timestamp) -> Vec<String> {
    let limits = |scope: &ScopeStanding| match (scope.once, scope.expires_at) {
        (true, _) => " (once)".to_owned(),
        (false, Some(end)) => format!(" ({} left)", age_ms(end.duration_since(now).as_millis() as i64)),
        (false, None) => String::new(),
    };
    let in_force = relation.scopes.iter().filter(|scope| scope.state == ScopeState::Granted);
    in_force.map(|scope| format!("{}{}", scope.id, limits(scope))).collect()
}

fn shown(relation: &RelationView, language: Language) -> String {
    let words = words::words(language);
    let granted = match relation.granted_scopes.as_slice() {
        [] => words.nothing_granted.to_owned(),
        scopes => (words.granted)(&line(&scopes.join(", "), 2_000)),
    };
    format!("{} {granted}\n", relation.id)
}

async fn revoke(client: &Client, args: &RevokeArgs) -> Result<u8, Failure> {
    let relation = related(client, &args.agent).await?;
    let agent = line(&relation.agent_name, 200);
    let lost: Vec<_> = relation.granted_scopes.iter().chain(&relation.suspended_scopes).map(String::as_str).collect();
    let lost = match lost.as_slice() {
        [] => String::new(),
        lost => format!(", and take back {}", line(&lost.join(", "), 2_000)),
    };
    if !args.confirm.ask_or_say(&format!("End the relation with {agent}{lost}?"), "nothing was done")? {
        return Ok(exit_codes::OK);
    }
    let ended = client.revoke_relation(relation.id).await?;
    args.output.one(&ended, || format!("{} ended\n", ended.id));
    Ok(exit_codes::OK)
}

/// The relation with the agent that is meant, among the caller's own: other agents of that name do not matter.
async fn related(client: &Client, agent: &str) -> Result<RelationView, Failure> {
    let mut named = all(client, agent.parse().ok()).await?;
    named.retain(|known| agents::is_meant(agent, known.agent_id, &known.agent_name));
    match named.len() {
        0 => Err(no_relation(agent)),
        1 => Ok(named.remove(0)),
        several => {
            let ids: Vec<_> = named.iter().map(|known| known.agent_id.to_string()).collect();
            let message = format!("you have relations with {several} such agents");
            Err(errors::usage(message, format!("name one: {}", ids.join(", "))))
        }
    }
}

async fn export(client: &Client) -> Result<u8, Failure> {
    client
        .ledger(|bytes| {
            output::bytes(bytes);
            Ok(())
        })
        .await?;
    Ok(exit_codes::OK)
}

fn verify(args: &VerifyArgs) -> Result<u8, Failure> {
    let unreadable = |error: std::io::Error| {
        errors::usage(format!("{}: {error}", args.file), "write it with `ostler consent export > FILE`")
    };
    let mut reader: Box<dyn BufRead> = match args.file.as_str() {
        "-" => Box::new(std::io::stdin().lock()),
        file => Box::new(std::io::BufReader::new(std::fs::File::open(file).map_err(unreadable)?)),
    };
    let mut verifier = Verifier::default();
    let mut broken = None;
    let mut bytes = vec![];
    while broken.is_none() {
        bytes.clear();
        let mut bounded = reader.by_ref().take(RECEIPT_BYTES_MAX as u64 + 2);
        if bounded.read_until(b'\n', &mut bytes).map_err(unreadable)? == 0 {
            break;
        }
        let end = bytes.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r')).map_or(0, |last| last + 1);
        broken = verifier.take(&bytes[..end]).err();
    }
    let is_cut = |head: &String| broken.is_none() && !verifier.heads().values().any(|known| known.hash == *head);
    if let Some(head) = args.head.as_ref().filter(|head| is_cut(head)) {
        let reason = format!("no ledger ends with {}", line(head, 80));
        broken = Some(Broken { line: verifier.receipts, id: None, reason });
    }
    if broken.is_none() && verifier.receipts == 0 {
        broken = Some(Broken { line: 0, id: None, reason: "there is no receipt".to_owned() });
    }
    let heads = verifier.heads().iter();
    let heads: Vec<_> =
        heads.map(|(user_id, head)| json!({"user_id": user_id, "seq": head.seq, "hash": head.hash})).collect();
    let report = json!({"receipts": verifier.receipts, "ledgers": heads.len(), "heads": heads, "broken": broken});
    args.output.one(&report, || verdict(&verifier, broken.as_ref(), Paint::stdout()));
    Ok(if broken.is_none() { exit_codes::OK } else { exit_codes::BROKEN })
}

fn verdict(verifier: &Verifier, broken: Option<&Broken>, paint: Paint) -> String {
    let Some(broken) = broken else {
        let heads = verifier.heads().iter();
        let heads: String =
            heads.map(|(user, head)| format!("  {} #{} {}\n", line(user, 80), head.seq, head.hash)).collect();
        return format!("{} {}\n{heads}", paint.green("ok"), count(verifier.receipts as i64, "receipt"));
    };
    let id = broken.id.as_deref().unwrap_or("a receipt");
    format!("{} line {}, {}: {}\n", paint.red("broken"), broken.line, line(id, 80), line(&broken.reason, 400))
}

fn stale(failure: Failure) -> Failure {
    let hint = "the agent has changed while you were choosing; run the command again to see what it asks now";
    if failure.rule_name() == Some("version-conflict") { errors::with_hint(failure, hint) } else { failure }
}

fn no_relation(agent: &str) -> Failure {
    let message = format!("you have no relation with {}", line(agent, 200));
    errors::hinted(FailureKind::NotFound, message, "`ostler consent list` shows what you have granted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_says_the_language() {
        let of = |set: &[(&str, &str)]| {
            of_environment(|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(of(&[]), Language::En);
        assert_eq!(of(&[("LANG", "zh_CN.UTF-8")]), Language::Zh);
        assert_eq!(of(&[("LANG", "zh_CN.UTF-8"), ("LC_ALL", "en_US.UTF-8")]), Language::En);
        assert_eq!(of(&[("LANG", "zh_CN.UTF-8"), ("LC_ALL", "")]), Language::Zh);
    }
}
