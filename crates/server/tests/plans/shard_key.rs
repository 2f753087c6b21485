//! A Postgres that is distributed over machines would keep everything of a session on one of them (`docs/scale.md`). So each
//! statement of the hot path must name the session, or something that has one session and can be extended by its id. What asks
//! every machine is listed here with its reason, and does not grow unnoticed.

use std::collections::BTreeSet;

use super::{drive, has_plan, shown};
use crate::harness::run;

/// The column that the tables below would be distributed by.
const KEY: &str = "session_id";

/// Tables with rows of one session each. The others are small, or copied to every machine.
const DISTRIBUTED: &[&str] = &[
    "append_batches",
    "bundle_commits",
    "command_aliases",
    "command_payloads",
    "commands",
    "events",
    "leases",
    "payload_removals",
    "permissions",
    "runner_jobs",
    "runs",
    "session_payload_removals",
    "session_read_cursors",
    "sessions",
    "usage",
];

/// Columns whose value has one session, each with how the statement gets at the key. No statement on `events` may rely on them.
const RESOLVED: &[(&str, &str)] = &[
    ("run_id", "a caller that names a run has looked it up, and its session with it"),
    ("command_id", "a command is looked up in its run, whose session is known"),
    ("target_command_id", "the target of a steer or a cancel is in the same run"),
    ("permission_id", "a request for permission is looked up in its run"),
    ("runner_job_id", "a job is looked up in its run"),
    ("token_hash", "a token of a job would carry the session in its text, as it carries its kind"),
    (
        "tenant_id",
        "a name or an idempotency key is looked up within its tenant; that index would be a table of its own",
    ),
    ("external_id", "as above, for callers of all tenants"),
];

/// Statements that are meant to ask every machine, by a part of their text, each with the reason.
const SCATTERED: &[(&str, &str)] = &[
    ("phase = 'pending'", "launchers take the oldest job, whichever session it is of"),
    ("phase = 'running'", "a launcher looks after its own jobs, whichever sessions they are of"),
    ("expires_at <= $1", "the sweeper looks for leases that have expired, by an index of live ones"),
    ("deadline_at <= $1", "the sweeper looks for commands that have exceeded their time, by an index of live ones"),
    ("deadline <= $1", "the sweeper looks for permission requests without an answer in time"),
    ("deadline_at > $1", "the sweeper looks for the next of these times, by the same index"),
    ("deadline > $1", "the sweeper looks for the next of these times"),
    ("heartbeat_at <", "the sweeper looks for jobs whose launcher is gone"),
    ("erased_at IS NOT NULL", "the sweeper looks for sessions to erase, by an index of those"),
    ("storage_kind = 'local'", "the sweeper looks for storage that has expired"),
    ("ended = 0", "counts of what is alive, for metrics"),
];

/// Words, numbers of parameters, and comparisons.
fn tokens(sql: &str) -> Vec<&str> {
    let is_word = |c: char| c.is_alphanumeric() || "_.$".contains(c);
    let is_sign = |c: char| "<>=!".contains(c);
    let (mut tokens, mut rest) = (vec![], sql);
    while let Some(start) = rest.find(|c: char| is_word(c) || is_sign(c)) {
        rest = &rest[start..];
        let begins_word = rest.starts_with(is_word);
        let end = rest.find(|c: char| if begins_word { !is_word(c) } else { !is_sign(c) }).unwrap_or(rest.len());
        tokens.push(&rest[..end]);
        rest = &rest[end..];
    }
    tokens
}

/// The distributed tables that a part of a statement reads or writes.
fn tables_of(tokens: &[&str]) -> BTreeSet<&'static str> {
    let is_before_table = |word: &str| ["FROM", "JOIN", "INTO", "UPDATE", "USING"].contains(&word);
    let named = tokens.windows(2).filter(|pair| is_before_table(pair[0]));
    named.filter_map(|pair| DISTRIBUTED.iter().find(|table| **table == pair[1]).copied()).collect()
}

/// Whether the statement compares the column with a value, or inserts it.
fn names(tokens: &[&str], column: &str) -> bool {
    let is_column = |token: &str| token.rsplit('.').next() == Some(column);
    let compared = tokens.iter().enumerate().any(|(index, token)| {
        let (before, after) = (index.checked_sub(1).and_then(|index| tokens.get(index)), tokens.get(index + 1));
        is_column(token) && (before == Some(&"=") || after.is_some_and(|after| ["=", "IN"].contains(after)))
    });
    let inserted = tokens.iter().position(|token| *token == "INSERT").is_some_and(|start| {
        let columns = tokens[start..].iter().take_while(|token| !["SELECT", "VALUES"].contains(token));
        columns.skip(3).any(|token| is_column(token))
    });
    compared || inserted
}

/// The parts of a flush are statements in a statement, and each is judged by itself.
fn parts(sql: &str) -> Vec<&str> {
    if sql.trim_start().starts_with("WITH ") { sql.split(" AS (").collect() } else { vec![sql] }
}

/// Why a part of a statement could not be sent to one machine. `None` if it could, or if it is listed.
fn problem(part: &str) -> Option<String> {
    let tokens = tokens(part);
    let tables = tables_of(&tokens);
    if tables.is_empty() || names(&tokens, KEY) {
        return None;
    }
    let is_scattered = SCATTERED.iter().any(|(text, _)| part.contains(text));
    let is_resolved = RESOLVED.iter().any(|(column, _)| names(&tokens, column));
    let is_strict = tables.contains("events");
    (is_strict || !(is_scattered || is_resolved)).then(|| format!("{tables:?}: {}", shown(part)))
}

#[test]
fn every_statement_of_the_hot_path_names_its_session() {
    run(async {
        let sent = drive::hot_path().await;
        let with_plans: Vec<&str> = sent.iter().map(|sent| sent.sql.as_str()).filter(|sql| has_plan(sql)).collect();
        let all_parts: Vec<&str> = with_plans.into_iter().flat_map(parts).collect();
        let by_key = all_parts.iter().filter(|part| names(&tokens(part), KEY)).count();
        assert!(by_key > 10, "only {by_key} parts of statements name the session");
        let problems: BTreeSet<String> = all_parts.into_iter().filter_map(problem).collect();
        let list: Vec<String> = problems.into_iter().collect();
        assert!(list.is_empty(), "{} parts of statements ask every machine:\n{}", list.len(), list.join("\n"));
    });
}

#[test]
fn a_statement_is_judged_by_what_it_compares_and_inserts() {
    for (sql, is_fine) in [
        ("SELECT payload FROM events WHERE session_id = $1 AND seq > $2", true),
        ("SELECT t.run_id FROM runs AS t WHERE t.run_id = ANY($1)", true),
        ("SELECT COUNT(*) FROM runs", false),
        ("SELECT payload FROM events AS t WHERE t.run_id = $1", false),
        ("SELECT t.session_id FROM runs AS t WHERE t.created_at > $1", false),
        ("INSERT INTO events (session_id, seq) SELECT * FROM UNNEST($1::text[], $2::bigint[])", true),
        ("INSERT INTO events (seq) SELECT * FROM UNNEST($1::bigint[])", false),
        ("SELECT name FROM users", true),
    ] {
        assert_eq!(problem(sql).is_none(), is_fine, "{sql}");
    }
    let flush = "WITH w0 AS (UPDATE sessions AS t SET v = u.v FROM UNNEST($1::text[]) AS u (session_id) WHERE t.session_id = \
                 u.session_id RETURNING 1), w6 AS (UPDATE runs AS t SET v = u.v FROM UNNEST($2::text[]) AS u (v)) SELECT 1";
    assert_eq!(parts(flush).into_iter().filter_map(problem).count(), 1, "the second part names nothing");
}
