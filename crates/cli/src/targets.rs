//! What a person means by a word on the command line: a run or a session, by its whole id, by the beginning of one, or by
//! the name its caller gave it. A word that fits several things is refused with the candidates. A session's name is unique
//! only in its tenant, so a session that was found keeps its tenant with it.

use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind,
    cursors::EventsQuery,
    ids::{CommandId, RunId, SessionId, prefix_range},
    kernel::{
        runs::{ListRuns, Run},
        sessions::{ListSessions, SessionQuery, SessionView},
    },
    limits::PAGE_ITEMS_MAX,
};

use crate::{
    connect::{Connection, Origin},
    errors,
    output::line,
    times::{age, now},
};

/// How many candidates are shown.
const CANDIDATES_MAX: u32 = 6;
const RULE_AMBIGUOUS: &str = "tenant-ambiguous";

/// Flattened into the arguments of every command that takes a run or a session.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Within {
    #[arg(long, help = "The session's tenant, where several have one of this name [default: the context's]")]
    tenant: Option<String>,
}

/// A session. Its name alone may be another tenant's too.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionKey {
    pub id: String,
    /// Left out where the id is the server's own, which nobody else has.
    pub tenant: Option<String>,
}

impl SessionKey {
    fn of(session: SessionView) -> Self {
        Self { id: session.session_id, tenant: Some(session.tenant_id) }
    }

    pub fn query(&self) -> SessionQuery {
        SessionQuery { tenant_id: self.tenant.clone(), ..SessionQuery::default() }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    Run(String),
    Session(SessionKey),
}

/// Looks things up at one server.
pub struct Finder {
    pub client: Client,
    tenant: Option<String>,
    /// What settles a name that several tenants have, where no flag does: only a choice somebody made.
    preferred: Option<String>,
}

impl Within {
    pub fn finder(&self, connection: &Connection) -> Result<Finder, Failure> {
        let preferred = connection.settings()?.tenant;
        let preferred = (preferred.origin != Origin::Default).then_some(preferred.value);
        Ok(Finder { client: connection.client()?, tenant: self.tenant.clone(), preferred })
    }
}

impl Finder {
    /// A run or a session.
    pub async fn any(&self, word: &str) -> Result<Target, Failure> {
        // Tables mark what they cut.
        let word = word.trim_end_matches('…');
        if word.parse::<RunId>().is_ok() {
            return Ok(Target::Run(word.to_owned()));
        }
        if word.parse::<SessionId>().is_ok() {
            return Ok(Target::Session(SessionKey { id: word.to_owned(), tenant: None }));
        }
        if let Some((prefix, _)) = prefix_range(SessionId::PREFIX, word).filter(|_| word.starts_with(SessionId::PREFIX))
        {
            let found = self.sessions(Some(&prefix), CANDIDATES_MAX).await?;
            let found = found.into_iter().filter(|session| session.session_id.starts_with(&prefix)).collect();
            return one_session(word, found)?.map(Target::Session).ok_or_else(|| unknown("session", word));
        }
        if let Some((prefix, _)) = prefix_range(RunId::PREFIX, word) {
            let found = one(word, "run", self.runs(&prefix).await?)?;
            match found {
                Some(run) => return Ok(Target::Run(run)),
                None if word.starts_with(RunId::PREFIX) => return Err(unknown("run", word)),
                None => {}
            }
        }
        self.named(word).await.map(Target::Session)
    }

    /// A run. A session stands for its active run, else for its latest.
    pub async fn run(&self, word: &str) -> Result<String, Failure> {
        match self.any(word).await? {
            Target::Run(run) => Ok(run),
            Target::Session(key) => {
                let session = self.client.get_session(&key.id, &key.query()).await?;
                let run = session.active_run_id.or(session.last_run_id);
                run.map(|run| run.to_string()).ok_or_else(|| {
                    let message = format!("the session {:?} has had no run yet", session.session_id);
                    let hint = format!("start one: ostler run --session {} \"say hello\"", line(&key.id, 200));
                    errors::hinted(FailureKind::NotFound, message, hint)
                })
            }
        }
    }

    /// A session. A run stands for the session it belongs to.
    pub async fn session(&self, word: &str) -> Result<SessionKey, Failure> {
        match self.any(word).await? {
            Target::Session(session) => Ok(session),
            Target::Run(run) => {
                let Run { session_id, tenant_id, .. } = self.client.get_run(&run).await?;
                Ok(SessionKey { id: session_id, tenant: Some(tenant_id) })
            }
        }
    }

    /// A command of a run, by its id or the beginning of it. Commands are told by the events they left.
    pub async fn command(&self, run: &str, word: &str) -> Result<String, Failure> {
        let word = word.trim_end_matches('…');
        if word.parse::<CommandId>().is_ok() {
            return Ok(word.to_owned());
        }
        let unknown = || {
            let hint = format!("`ostler trace {run} -o jsonl` names the command of each event");
            errors::with_hint(unknown("command of this run", word), hint)
        };
        let (prefix, _) = prefix_range(CommandId::PREFIX, word).ok_or_else(unknown)?;
        let mut found: Vec<Candidate> = vec![];
        let mut query = EventsQuery { limit: Some(PAGE_ITEMS_MAX), ..EventsQuery::default() };
        loop {
            let page = self.client.run_events(run, &query).await?;
            for id in page.events.iter().filter_map(|event| Some(event.command_id?.to_string())) {
                if id.starts_with(&prefix) && !found.iter().any(|(known, _)| *known == id) {
                    found.push((id, String::new()));
                }
            }
            if !page.has_more || page.next_after_seq <= query.after_seq {
                break;
            }
            query.after_seq = page.next_after_seq;
        }
        one(word, "command", found)?.ok_or_else(unknown)
    }

    /// The session of this name, else the only one whose name begins like it among the newest.
    async fn named(&self, word: &str) -> Result<SessionKey, Failure> {
        let ask = |tenant_id: Option<String>| {
            let query = SessionQuery { tenant_id, ..SessionQuery::default() };
            async move { self.client.get_session(word, &query).await }
        };
        let mut found = ask(self.tenant.clone()).await;
        if let (Err(failure), Some(preferred)) = (&found, &self.preferred)
            && failure.rule_name() == Some(RULE_AMBIGUOUS)
        {
            found = ask(Some(preferred.clone())).await;
        }
        match found {
            Ok(session) => Ok(SessionKey::of(session)),
            Err(failure) if failure.rule_name() == Some(RULE_AMBIGUOUS) => {
                let message = format!("several tenants have a session {:?}", line(word, 80));
                let hint = "name its tenant with `--tenant`; `ostler ps --all` shows which there are";
                Err(errors::with_hint(Failure { message, ..failure }, hint))
            }
            Err(failure) if failure.kind == FailureKind::NotFound => {
                let newest = self.sessions(None, PAGE_ITEMS_MAX).await?;
                let begin = newest.into_iter().filter(|session| session.session_id.starts_with(word)).collect();
                // The server's own words know only of sessions; its trace id stays.
                let unknown = || Failure { message: unknown("run or session", word).message, ..failure };
                one_session(word, begin)?.ok_or_else(unknown)
            }
            Err(failure) => Err(failure),
        }
    }

    async fn runs(&self, prefix: &str) -> Result<Vec<Candidate>, Failure> {
        let (id_prefix, tenant_id) = (Some(prefix.to_owned()), self.tenant.clone());
        let query = ListRuns { id_prefix, tenant_id, limit: Some(CANDIDATES_MAX), ..ListRuns::default() };
        let page = self.client.list_runs(&query).await?;
        let one = |run: Run| {
            (run.run_id.to_string(), format!("{} · {} ago", run.status.as_str(), age(run.updated_at, now())))
        };
        Ok(page.runs.into_iter().map(one).filter(|(id, _)| id.starts_with(prefix)).collect())
    }

    async fn sessions(&self, prefix: Option<&str>, limit: u32) -> Result<Vec<SessionView>, Failure> {
        let query = ListSessions {
            id_prefix: prefix.map(str::to_owned),
            state: Some("all".to_owned()),
            tenant_id: self.tenant.clone(),
            limit: Some(limit),
            ..ListSessions::default()
        };
        Ok(self.client.list_sessions(&query).await?.sessions)
    }
}

/// A candidate: its id, and how it stands.
type Candidate = (String, String);

fn one_session(word: &str, mut found: Vec<SessionView>) -> Result<Option<SessionKey>, Failure> {
    if found.len() == 1 {
        return Ok(found.pop().map(SessionKey::of));
    }
    found.truncate(CANDIDATES_MAX as usize);
    let standing = |session: SessionView| {
        let (state, tenant) = (session.execution_state.as_str(), line(&session.tenant_id, 80));
        (line(&session.session_id, 200), format!("{state} · of {tenant} · {} ago", age(session.updated_at, now())))
    };
    one(word, "session", found.into_iter().map(standing).collect()).map(|_| None)
}

/// The only candidate; none is no failure yet, several are.
pub fn one(word: &str, noun: &str, mut found: Vec<Candidate>) -> Result<Option<String>, Failure> {
    if found.len() < 2 {
        return Ok(found.pop().map(|(id, _)| id));
    }
    let many = if found.len() < CANDIDATES_MAX as usize { format!("{}", found.len()) } else { "many".into() };
    found.truncate(CANDIDATES_MAX as usize);
    let list: Vec<_> = found.iter().map(|(id, standing)| format!("  {id}  {standing}").trim_end().to_owned()).collect();
    let message = format!("{:?} is the beginning of {many} {noun}s:\n{}", line(word, 80), list.join("\n"));
    Err(errors::usage(message, "give more of the id"))
}

pub fn unknown(noun: &str, word: &str) -> Failure {
    Failure::new(FailureKind::NotFound, format!("no {noun} {:?}", line(word, 80)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(number: usize) -> Vec<Candidate> {
        (0..number).map(|n| (format!("run_0{n}"), "running · 3s ago".into())).collect()
    }

    #[test]
    fn one_candidate_is_meant() {
        assert_eq!(one("0", "run", candidates(1)).unwrap().as_deref(), Some("run_00"));
        assert_eq!(one("0", "run", candidates(0)).unwrap(), None);
    }

    #[test]
    fn several_candidates_are_listed() {
        let failure = one("0", "run", candidates(2)).unwrap_err();
        assert_eq!(
            failure.message,
            "\"0\" is the beginning of 2 runs:\n  run_00  running · 3s ago\n  run_01  running · 3s ago"
        );
        assert!(one("0", "run", candidates(6)).unwrap_err().message.contains("of many runs"));
    }
}
