//! What a person means by a word on the command line: a run or a session, by its whole id, by the beginning of one, or by
//! the name its caller gave it. A word that fits several things is refused with the candidates.

use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind,
    ids::{RunId, SessionId, prefix_range},
    runs::ListRuns,
    sessions::{ListSessions, SessionQuery, SessionView},
};

use crate::{
    errors,
    output::line,
    times::{age, now},
};

/// How many candidates are shown.
const CANDIDATES_MAX: u32 = 6;

#[derive(Clone, Debug, PartialEq)]
pub enum Target {
    Run(String),
    Session(String),
}

/// A run or a session.
pub async fn any(client: &Client, word: &str) -> Result<Target, Failure> {
    if word.parse::<RunId>().is_ok() {
        return Ok(Target::Run(word.to_owned()));
    }
    if word.parse::<SessionId>().is_ok() {
        return Ok(Target::Session(word.to_owned()));
    }
    if let Some((prefix, _)) = prefix_range(SessionId::PREFIX, word).filter(|_| word.starts_with(SessionId::PREFIX)) {
        let found = sessions(client, &prefix).await?;
        return one(word, "session", found)?.map(Target::Session).ok_or_else(|| unknown("session", word));
    }
    if let Some((prefix, _)) = prefix_range(RunId::PREFIX, word) {
        let found = one(word, "run", runs(client, &prefix).await?)?;
        match found {
            Some(run) => return Ok(Target::Run(run)),
            None if word.starts_with(RunId::PREFIX) => return Err(unknown("run", word)),
            None => {}
        }
    }
    session_named(client, word).await.map(|session| Target::Session(session.session_id))
}

/// A run. A session stands for its active run, else for its latest.
pub async fn run(client: &Client, word: &str) -> Result<String, Failure> {
    match any(client, word).await? {
        Target::Run(run) => Ok(run),
        Target::Session(id) => {
            let session = session_named(client, &id).await?;
            let run = session.active_run_id.or(session.last_run_id);
            run.map(|run| run.to_string()).ok_or_else(|| {
                let message = format!("the session {:?} has had no run yet", session.session_id);
                errors::hinted(FailureKind::NotFound, message, "start one: ostler run --session ID \"say hello\"")
            })
        }
    }
}

/// A session. A run stands for the session it belongs to.
pub async fn session(client: &Client, word: &str) -> Result<String, Failure> {
    match any(client, word).await? {
        Target::Session(session) => Ok(session),
        Target::Run(run) => Ok(client.get_run(&run).await?.session_id),
    }
}

async fn session_named(client: &Client, word: &str) -> Result<SessionView, Failure> {
    let found = client.get_session(word, &SessionQuery::default()).await;
    found.map_err(|failure| match failure.kind {
        // The server's own words know only of sessions; its trace id stays.
        FailureKind::NotFound => Failure { message: unknown("run or session", word).message, ..failure },
        _ => failure,
    })
}

/// A candidate: its id, and how it stands.
type Candidate = (String, String);

async fn runs(client: &Client, prefix: &str) -> Result<Vec<Candidate>, Failure> {
    let query = ListRuns { id_prefix: Some(prefix.into()), limit: Some(CANDIDATES_MAX), ..ListRuns::default() };
    let page = client.list_runs(&query).await?;
    let one = |run: ostler_protocol::runs::Run| {
        (run.run_id.to_string(), format!("{} · {} ago", run.status.as_str(), age(run.updated_at, now())))
    };
    Ok(page.runs.into_iter().map(one).filter(|(id, _)| id.starts_with(prefix)).collect())
}

async fn sessions(client: &Client, prefix: &str) -> Result<Vec<Candidate>, Failure> {
    let (id_prefix, state) = (Some(prefix.to_owned()), Some("all".to_owned()));
    let query = ListSessions { id_prefix, state, limit: Some(CANDIDATES_MAX), ..ListSessions::default() };
    let page = client.list_sessions(&query).await?;
    let one = |session: SessionView| {
        let standing = format!("{} · {} ago", session.execution_state.as_str(), age(session.updated_at, now()));
        (session.session_id, standing)
    };
    Ok(page.sessions.into_iter().map(one).filter(|(id, _)| id.starts_with(prefix)).collect())
}

/// The only candidate; none is no failure yet, several are.
pub fn one(word: &str, noun: &str, mut found: Vec<Candidate>) -> Result<Option<String>, Failure> {
    if found.len() < 2 {
        return Ok(found.pop().map(|(id, _)| id));
    }
    let many = if found.len() < CANDIDATES_MAX as usize { format!("{}", found.len()) } else { "many".into() };
    let list: Vec<_> = found.iter().map(|(id, standing)| format!("  {id}  {standing}")).collect();
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
