//! A Postgres that is distributed over machines would keep everything of a session on one of them (`docs/scale.md`). So each
//! statement of the hot path must name the session, or something that has one session and can be extended by its id. What asks
//! every machine is listed here with its reason, and does not grow unnoticed.

use std::collections::BTreeSet;

use super::{bindings::Bindings, drive, has_plan, on_one_line};
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

/// No statement may find its rows of this table without the key, or a join by the key.
const EVENTS: &str = "events";

/// Columns whose value has one session, each with how the statement gets at the key.
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

/// Statements that are meant to ask every machine, by a part of their text as [`Bindings::text_of`] has it, each with the reason.
const SCATTERED: &[(&str, &str)] = &[
    ("phase = 'pending'", "launchers take the oldest job, whichever session it is of"),
    ("phase = 'running'", "launchers look after their jobs, and the sweeper looks for those whose launcher is gone"),
    ("ended = 0 AND expires_at <= $1", "the sweeper looks for leases that have expired, by an index of live ones"),
    ("deadline_at <= $1", "the sweeper looks for commands that have exceeded their time, by an index of live ones"),
    ("deadline <= $1", "the sweeper looks for permission requests without an answer in time"),
    ("deadline_at > $1", "the sweeper looks for the next of these times, by the same index"),
    ("deadline > $1", "the sweeper looks for the next of these times"),
    ("erased_at IS NOT NULL", "the sweeper looks for sessions to erase, by an index of those"),
    ("ended = 0", "counts of what is alive, for metrics"),
    ("storage_kind IN ('local'", "the sweeper looks for storage that has expired"),
    ("JOIN held ON", "sweepers leave out sessions under a legal hold, which covers their parents"),
    ("automation_starts AS s", "the sweeper of automations looks for starts whose command has ended"),
    ("WHERE r.run_id = d.run_id", "the sweeper of webhooks looks for deliveries whose run was erased"),
    (
        "SELECT 1 FROM runs r WHERE r.run_id = runner_jobs.run_id",
        "launchers claim waiting jobs of all sessions, without those whose runners are elsewhere",
    ),
    (
        "SELECT 1 FROM runs r WHERE r.run_id = c.run_id",
        "the sweeper of webhooks looks for marks of runs that were erased",
    ),
    ("d.opened_at <= $1", "the daemon closes sessions without clients"),
    ("d.owner IN", "the daemon closes sessions of users who were removed"),
    ("o.external_id = t.thread_id", "the sweeper looks for attachments that were never used"),
];

/// What is wrong with a statement, and what of the lists above it needs.
#[derive(Default)]
struct Verdict {
    problems: BTreeSet<String>,
    needed: BTreeSet<&'static str>,
    /// Tables whose rows the statement finds by the key.
    by_key: usize,
}

/// Judges each table of a statement that would be distributed.
fn judge(sql: &str) -> Verdict {
    let bindings = Bindings::of(sql);
    let mut verdict = Verdict::default();
    let name = |table: usize| bindings.tables[table].name.as_str();
    let tables: Vec<usize> = (0..bindings.tables.len()).filter(|table| DISTRIBUTED.contains(&name(*table))).collect();
    let mut found: BTreeSet<usize> = tables.iter().copied().filter(|table| bindings.is_bound(*table, KEY)).collect();
    verdict.by_key = found.len();
    for table in tables.iter().copied().filter(|table| name(*table) != EVENTS) {
        let resolved = RESOLVED.iter().find(|(column, _)| bindings.is_bound(table, column));
        if let (Some((column, _)), false) = (resolved, found.contains(&table)) {
            verdict.needed.insert(column);
            found.insert(table);
        }
    }
    // A join by such a column can be extended by the key, as the statement itself can. Events are joined by the key.
    let is_join = |table: usize, one: &str, other: &str| {
        let is_resolved = |column: &str| column == KEY || RESOLVED.iter().any(|(name, _)| *name == column);
        if name(table) == EVENTS { one == KEY && other == KEY } else { is_resolved(one) && is_resolved(other) }
    };
    loop {
        let joins = bindings.joins().filter(|((from, _), (to, _))| found.contains(from) && !found.contains(to));
        let more: Vec<usize> =
            joins.filter(|((_, one), (to, other))| is_join(*to, one, other)).map(|(_, (to, _))| *to).collect();
        if more.is_empty() {
            break;
        }
        found.extend(more);
    }
    for table in tables.into_iter().filter(|table| !found.contains(table)) {
        let part = bindings.text_of(&bindings.tables[table]);
        match SCATTERED.iter().find(|(text, _)| part.contains(text) && name(table) != EVENTS) {
            Some((text, _)) => drop(verdict.needed.insert(text)),
            None => drop(verdict.problems.insert(format!("{}: {}", name(table), on_one_line(sql)))),
        }
    }
    verdict
}

#[test]
fn every_statement_of_the_hot_path_has_its_session_or_a_key_of_one_session() {
    run(async {
        let sent = drive::hot_path().await;
        let verdicts: Vec<_> = sent.iter().filter(|sent| has_plan(&sent.sql)).map(|sent| judge(&sent.sql)).collect();
        let by_key: usize = verdicts.iter().map(|verdict| verdict.by_key).sum();
        assert!(by_key > 10, "only {by_key} tables of statements are found by the session");
        let problems: BTreeSet<_> = verdicts.iter().flat_map(|verdict| verdict.problems.clone()).collect();
        let list: Vec<String> = problems.into_iter().collect();
        assert!(list.is_empty(), "{} statements ask every machine:\n{}", list.len(), list.join("\n"));
        let needed: BTreeSet<_> = verdicts.iter().flat_map(|verdict| verdict.needed.clone()).collect();
        let listed = RESOLVED.iter().chain(SCATTERED).map(|(entry, _)| *entry);
        let unused: Vec<_> = listed.filter(|entry| !needed.contains(entry)).collect();
        assert!(unused.is_empty(), "no statement needs these entries: {unused:?}");
    });
}

#[test]
fn a_statement_is_judged_by_what_it_compares_with_values_and_inserts() {
    for (sql, is_fine) in [
        ("SELECT payload FROM events WHERE session_id = $1 AND seq > $2", true),
        ("SELECT t.run_id FROM runs AS t WHERE t.run_id = ANY($1)", true),
        ("SELECT COUNT(*) FROM runs", false),
        ("SELECT payload FROM events AS t WHERE t.run_id = $1", false),
        ("SELECT t.session_id FROM runs AS t WHERE t.created_at > $1", false),
        ("INSERT INTO events (session_id, seq) SELECT * FROM UNNEST($1::text[], $2::bigint[])", true),
        ("INSERT INTO events (seq) SELECT * FROM UNNEST($1::bigint[])", false),
        ("SELECT name FROM users", true),
        // A join gives no value.
        ("SELECT e.seq FROM events e JOIN runs r ON e.session_id = r.session_id WHERE r.created_at > $1", false),
        ("SELECT e.seq FROM events e JOIN runs r ON e.session_id = r.session_id WHERE r.session_id = $1", true),
        ("SELECT c.seq FROM commands c JOIN runs r ON c.run_id = r.run_id WHERE r.session_id = $1", true),
        ("SELECT e.seq FROM runs r JOIN events e ON e.run_id = r.run_id WHERE r.session_id = $1", false),
        ("SELECT e.seq FROM runs r JOIN events e ON e.session_id = r.session_id WHERE r.run_id = $1", true),
        // The second table of a list.
        ("SELECT r.run_id FROM runs r, events e WHERE r.session_id = $1", false),
        ("SELECT r.run_id FROM users u, runs r WHERE u.user_id = $1", false),
        // What is only assigned, or holds for some rows.
        ("UPDATE runs SET session_id = $1 WHERE created_at > $2", false),
        ("SELECT seq FROM events WHERE session_id = $1 OR seq > $2", false),
        ("SELECT seq FROM events WHERE NOT (session_id = $1)", false),
        ("SELECT seq FROM events WHERE session_id = 'x' || seq", false),
        (
            "DELETE FROM events WHERE session_id IN (SELECT one FROM jsonb_array_elements_text($1::jsonb) AS l (one))",
            true,
        ),
        (
            "SELECT r.run_id FROM runs r WHERE NOT EXISTS (SELECT 1 FROM leases l WHERE l.run_id = r.run_id AND l.run_id = $1)",
            false,
        ),
        (
            "SELECT r.run_id FROM runs r WHERE r.run_id = $1 AND EXISTS (SELECT 1 FROM leases l WHERE l.run_id = r.run_id)",
            true,
        ),
    ] {
        assert_eq!(judge(sql).problems.is_empty(), is_fine, "{sql}");
    }
    let flush = "WITH w0 AS (UPDATE sessions AS t SET v = u.v FROM UNNEST($1::text[]) AS u (session_id) WHERE t.session_id = \
                 u.session_id RETURNING 1), w6 AS (UPDATE runs AS t SET v = u.v FROM UNNEST($2::text[]) AS u (v)) SELECT 1";
    assert_eq!(judge(flush).problems.len(), 1, "the second part names nothing");
}
