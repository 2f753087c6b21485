//! `ostler consent`: the scopes that a person grants agents, and the ledger of consent. Screens and questions go to stderr, the
//! result to stdout.

mod consent_screen;
mod ledger;
mod review;
mod texts;

use std::collections::BTreeSet;

use clap::{Subcommand, ValueEnum};
use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind, Rule, Timestamp,
    ids::{AgentId, RelationId},
    limits::PAGE_ITEMS_MAX,
    trust::{
        agents::Agent,
        i18n::Language,
        manifest::Manifest,
        relations::{CreateRelation, GRANT_LIFE_MS_MAX, ListRelations, RelationView, ScopeStanding, ScopeState, Terms},
    },
};

use self::consent_screen::{ConsentScreen, ScopeChoice};
use crate::{
    commands::list::{Listing, all_pages},
    commands::trust::agents,
    connection::Connection,
    errors, exit_codes,
    terminal::{
        confirm::Confirm,
        list_output::ListOutput,
        output::{self, Output, line},
        paint::Paint,
        table::Column,
        times::{Times, age_ms, now, parse_ms},
    },
};

/// Grant agents scopes, review changes, revoke grants
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler consent grant notes-helper\n  ostler consent review --lang zh\n  \
    ostler consent list\n  ostler consent export > ledger.jsonl && ostler consent verify ledger.jsonl")]
pub(crate) struct ConsentArgs {
    #[command(subcommand)]
    verb: ConsentVerb,
}

#[derive(Subcommand, Debug)]
enum ConsentVerb {
    Grant(GrantConsentArgs),
    Review(ReviewConsentArgs),
    List(ListConsentArgs),
    Revoke(RevokeConsentArgs),
    Export(ledger::ExportLedgerArgs),
    Verify(ledger::VerifyLedgerArgs),
}

#[derive(clap::Args, Debug)]
struct AnswerArgs {
    /// The language of the screen: en or zh [default: the environment's]
    #[arg(long, value_name = "LANG", value_enum, hide_possible_values = true)]
    lang: Option<LanguageFlag>,
    /// Grant only the named scopes, without a screen; `…=1h` for a limited time, `…=once` for one call, `…=always` without
    /// limits; by default a scope keeps its current limits
    #[arg(long = "grant", value_name = "SCOPE[=HOW]", conflicts_with = "none")]
    grants: Vec<String>,
    /// Refuse this scope permanently
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
enum LanguageFlag {
    En,
    Zh,
}

/// Choose the scopes that an agent may use
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler consent grant notes-helper\n  \
    ostler consent grant agt_01… --grant notes:read --grant files:read=1h --yes")]
struct GrantConsentArgs {
    #[arg(help = agents::NAMED)]
    agent: String,
    #[command(flatten)]
    answer: AnswerArgs,
}

/// Review what changed in an agent since you consented, and answer
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler consent review\n  ostler consent review notes-helper --lang zh")]
struct ReviewConsentArgs {
    #[arg(help = "The agent's id, the beginning of it, or its name [default: the one that needs an answer]")]
    agent: Option<String>,
    #[command(flatten)]
    answer: AnswerArgs,
}

/// List what you have granted
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler consent list\n  ostler consent list -o jsonl | jq -r .agent_id")]
struct ListConsentArgs {
    #[command(flatten)]
    times: Times,
    #[command(flatten)]
    output: ListOutput,
}

/// End a relation with an agent, and everything granted in it
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler consent revoke notes-helper")]
struct RevokeConsentArgs {
    /// The agent, by its name or id, or the relation, by the id that `ostler consent grant` printed
    agent: String,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

impl ConsentArgs {
    /// Whether the command needs no server.
    pub(crate) fn is_offline(&self) -> bool {
        matches!(self.verb, ConsentVerb::Verify(_))
    }
}

pub(crate) async fn consent(connection: &Connection, args: &ConsentArgs) -> Result<u8, Failure> {
    if let ConsentVerb::Verify(args) = &args.verb {
        return ledger::verify(args);
    }
    let client = &connection.client()?;
    match &args.verb {
        ConsentVerb::Grant(args) => grant(client, args).await,
        ConsentVerb::Review(args) => review(client, args).await,
        ConsentVerb::List(args) => list(client, args).await,
        ConsentVerb::Revoke(args) => revoke(client, args).await,
        ConsentVerb::Export(_) => ledger::export(client).await,
        ConsentVerb::Verify(args) => ledger::verify(args),
    }
}

async fn grant(client: &Client, args: &GrantConsentArgs) -> Result<u8, Failure> {
    let agent = agents::find(client, &args.agent).await?;
    let relation = with_agent(client, agent.id).await?;
    answer(client, &agent, relation.as_ref(), &args.answer).await
}

async fn review(client: &Client, args: &ReviewConsentArgs) -> Result<u8, Failure> {
    let relation = match &args.agent {
        Some(agent) => related(client, agent).await?,
        None => match waiting(client).await? {
            Some(relation) => relation,
            None => {
                output::message(&format!("{}\n", texts::texts(args.answer.language()).nothing_waits));
                return Ok(exit_codes::OK);
            }
        },
    };
    let agent = client.get_agent(&relation.agent_id.to_string()).await?;
    let changes = client.relation_changes(relation.id).await?;
    let language = args.answer.language();
    let (manifest, _) = manifest(&agent)?;
    output::message(&review::render(&agent.name, &manifest, &changes, language, Paint::stderr()));
    if !relation.reauth_required && !args.answer.is_given() {
        args.answer.output.one(&relation, || summary(&relation, language));
        return Ok(exit_codes::OK);
    }
    answer(client, &agent, Some(&relation), &args.answer).await
}

/// Asks, and sends the answers for exactly the displayed manifest.
async fn answer(
    client: &Client,
    agent: &Agent,
    relation: Option<&RelationView>,
    args: &AnswerArgs,
) -> Result<u8, Failure> {
    let (manifest, hash) = manifest(agent)?;
    let language = args.language();
    let mut screen = ConsentScreen::new(agent, &manifest, relation, language, now());
    if relation.is_none() {
        screen.mark_refused(&refused_before(client, agent.id).await?);
    }
    if args.is_given() {
        args.apply(&mut screen)?;
        output::message(&screen.render(Paint::stderr()));
    } else if screen.ask()?.is_none() {
        output::message(&format!("{}\n", texts::texts(language).nothing_done));
        return Ok(exit_codes::OK);
    }
    if !args.confirm.ask_reversible(&screen.question(), texts::texts(language).nothing_done)? {
        return Ok(exit_codes::OK);
    }
    let answers = screen.answers(hash);
    let answered = match relation {
        None => client.create_relation(&CreateRelation::new(agent.id, answers)).await,
        Some(relation) => client.update_relation(relation.id, &answers).await,
    };
    let answered = answered.map_err(with_stale_hint)?;
    args.output.one(&answered, || summary(&answered, language));
    Ok(exit_codes::OK)
}

impl AnswerArgs {
    fn language(&self) -> Language {
        match self.lang {
            Some(LanguageFlag::En) => Language::En,
            Some(LanguageFlag::Zh) => Language::Zh,
            None => language_of_locale(|name| std::env::var(name).ok()),
        }
    }

    /// Whether the command line contains the answers.
    fn is_given(&self) -> bool {
        self.none || !self.grants.is_empty() || !self.refusals.is_empty()
    }

    fn apply(&self, screen: &mut ConsentScreen<'_>) -> Result<(), Failure> {
        screen.clear();
        let scopes = self.grants.iter().map(|grant| scope_and_how(grant).0);
        let mut named = BTreeSet::new();
        if let Some(twice) = scopes.chain(self.refusals.iter().map(String::as_str)).find(|scope| !named.insert(*scope))
        {
            let message = format!("scope {:?} is given twice", line(twice, 64));
            return Err(errors::usage(message, "name it once, with `--grant` or with `--never`"));
        }
        for grant in &self.grants {
            let (scope, how) = scope_and_how(grant);
            let terms = match how {
                None => None,
                Some("always") => Some(Terms::default()),
                Some("once") => Some(Terms { once: true, expires_in_ms: None }),
                Some(time) => {
                    let hint = "write `scope=1h`, `scope=once` or `scope=always`";
                    let ms = parse_ms(time).map_err(|why| errors::usage(why, hint))?;
                    if ms > GRANT_LIFE_MS_MAX {
                        let message = format!("{} is longer than a grant can last", line(time, 80));
                        let most = age_ms(GRANT_LIFE_MS_MAX);
                        return Err(errors::usage(message, format!("{most} at most, or `scope=always`")));
                    }
                    Some(Terms { once: false, expires_in_ms: Some(ms) })
                }
            };
            screen.choose(scope, terms.map(ScopeChoice::Granted))?;
        }
        self.refusals.iter().try_for_each(|scope| screen.choose(scope, Some(ScopeChoice::Never)))
    }
}

/// `scope=how`, or a scope alone.
fn scope_and_how(grant: &str) -> (&str, Option<&str>) {
    grant.split_once('=').map_or((grant, None), |(scope, how)| (scope, Some(how)))
}

/// The language of the locale: the first of these variables that is set, as in POSIX.
fn language_of_locale(variable: impl Fn(&str) -> Option<String>) -> Language {
    let locale =
        ["LC_ALL", "LC_MESSAGES", "LANG"].into_iter().find_map(|name| variable(name).filter(|v| !v.is_empty()));
    Language::of_locale(&locale.unwrap_or_default())
}

/// The agent's manifest and its hash.
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
    let pages = all_pages(async |cursor| {
        let query = ListRelations { agent_id, ended: None, limit: Some(PAGE_ITEMS_MAX), cursor };
        let page = client.list_relations(&query).await?;
        Ok((page.relations, page.next_cursor))
    });
    pages.await
}

async fn with_agent(client: &Client, agent_id: AgentId) -> Result<Option<RelationView>, Failure> {
    Ok(all(client, Some(agent_id)).await?.pop())
}

/// The scopes that were refused in the last relation with this agent. A new relation remembers them.
async fn refused_before(client: &Client, agent_id: AgentId) -> Result<Vec<String>, Failure> {
    let query = ListRelations { agent_id: Some(agent_id), ended: Some(true), limit: Some(1), cursor: None };
    let last = client.list_relations(&query).await?.relations.pop();
    Ok(last.map(|relation| relation.denied_scopes).unwrap_or_default())
}

/// The only relation that needs an answer.
async fn waiting(client: &Client) -> Result<Option<RelationView>, Failure> {
    match client.pending_consents().await?.pending.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some(client.get_relation(one.relation_id).await?)),
        several => {
            let agents: Vec<_> = several.iter().map(|one| one.agent_id.to_string()).collect();
            let message = format!("{} agents need an answer: {}", agents.len(), agents.join(", "));
            Err(errors::usage(message, "name one: ostler consent review AGENT"))
        }
    }
}

async fn list(client: &Client, args: &ListConsentArgs) -> Result<u8, Failure> {
    RELATIONS.print(&all(client, None).await?, false, args.times, &args.output)
}

const RELATIONS: Listing<RelationView> = Listing {
    nothing: "you have granted nothing\n",
    columns: &[
        Column::text(5, "NAME"),
        Column::spare(2, "AGENT"),
        Column::text(4, "GRANTED"),
        Column::whole("STATE"),
        Column::text(3, "PAUSED"),
        Column::spare(1, "ANSWERED"),
    ],
    row: |relation, times, now| {
        vec![
            line(&relation.agent_name, 80),
            relation.agent_id.to_string(),
            or_dash(&granted(relation, now)),
            if relation.reauth_required { "review" } else { "ok" }.to_owned(),
            or_dash(&relation.suspended_scopes),
            times.ago(relation.updated_at, now),
        ]
    },
};

/// The scopes of a cell, `-` if there are none.
fn or_dash(scopes: &[String]) -> String {
    if scopes.is_empty() { "-".to_owned() } else { line(&scopes.join(", "), 400) }
}

/// The scopes in force with their limits: `notes:read (once)`, `location:read (1h left)`.
fn granted(relation: &RelationView, now: Timestamp) -> Vec<String> {
    let limits = |scope: &ScopeStanding| match (scope.once, scope.expires_at) {
        (true, _) => " (once)".to_owned(),
        (false, Some(end)) => format!(" ({} left)", age_ms(end.duration_since(now).as_millis() as i64)),
        (false, None) => String::new(),
    };
    let in_force = relation.scopes.iter().filter(|scope| scope.state == ScopeState::Granted);
    in_force.map(|scope| format!("{}{}", scope.id, limits(scope))).collect()
}

fn summary(relation: &RelationView, language: Language) -> String {
    let texts = texts::texts(language);
    let granted = match relation.granted_scopes.as_slice() {
        [] => texts.nothing_granted.to_owned(),
        scopes => (texts.granted)(&line(&scopes.join(", "), 2_000)),
    };
    format!("{} {granted}\n", relation.id)
}

async fn revoke(client: &Client, args: &RevokeConsentArgs) -> Result<u8, Failure> {
    let relation = match args.agent.parse::<RelationId>() {
        Ok(id) => client.get_relation(id).await.map_err(|failure| match failure.kind {
            FailureKind::NotFound => no_relation(&args.agent),
            _ => failure,
        })?,
        Err(_) => related(client, &args.agent).await?,
    };
    let agent = line(&relation.agent_name, 200);
    let lost: Vec<_> = relation.granted_scopes.iter().chain(&relation.suspended_scopes).map(String::as_str).collect();
    let lost = match lost.as_slice() {
        [] => String::new(),
        lost => format!(", and revoke {}", line(&lost.join(", "), 2_000)),
    };
    if !args.confirm.ask_reversible(&format!("End the relation with {agent}{lost}?"), "nothing was done")? {
        return Ok(exit_codes::OK);
    }
    let ended = client.revoke_relation(relation.id).await?;
    args.output.one(&ended, || format!("{} ended\n", ended.id));
    Ok(exit_codes::OK)
}

/// The caller's relation with the named agent. Agents of the same name without a relation are ignored.
async fn related(client: &Client, agent: &str) -> Result<RelationView, Failure> {
    let mut named = all(client, agent.parse().ok()).await?;
    named.retain(|relation| agents::matches(agent, relation.agent_id, &relation.agent_name));
    match named.len() {
        0 => Err(no_relation(agent)),
        1 => Ok(named.remove(0)),
        several => {
            let ids: Vec<_> = named.iter().map(|relation| relation.agent_id.to_string()).collect();
            let message = format!("you have relations with {several} such agents");
            Err(errors::usage(message, format!("name one: {}", ids.join(", "))))
        }
    }
}

fn with_stale_hint(failure: Failure) -> Failure {
    let hint = "the agent changed while you were choosing; run the command again to see its current scopes";
    if failure.broken_rule() == Some(Rule::VersionConflict) { errors::with_hint(failure, hint) } else { failure }
}

fn no_relation(agent: &str) -> Failure {
    let message = format!("you have no relation with {}", line(agent, 200));
    errors::hinted(FailureKind::NotFound, message, "`ostler consent list` shows what you have granted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_language_follows_the_locale() {
        let of = |set: &[(&str, &str)]| {
            language_of_locale(|name| {
                set.iter().find(|(variable, _)| *variable == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert_eq!(of(&[]), Language::En);
        assert_eq!(of(&[("LANG", "zh_CN.UTF-8")]), Language::Zh);
        assert_eq!(of(&[("LANG", "zh_CN.UTF-8"), ("LC_ALL", "en_US.UTF-8")]), Language::En);
        assert_eq!(of(&[("LANG", "zh_CN.UTF-8"), ("LC_ALL", "")]), Language::Zh);
    }
}
