//! The walk over the hash chain: every single change behind the server's back is found, and the place is named.

use std::sync::Arc;

use ostler_protocol::{
    ids::SessionId,
    json::hex,
    kernel::{
        chain::{self, Link},
        events::Event,
    },
};
use ostler_server::{
    Config,
    clock::Clock,
    verify::{BrokenRow, verify_store},
};
use ostler_store::{
    Db,
    kernel::{events, sessions},
};
use ostler_testkit::scratch;
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tempfile::TempDir;

use crate::harness::{Caller, Database, Engine, TestClock, both_engines, start};

/// A stopped server's store, with one session in it.
struct Left {
    engine: Engine,
    db: Db,
    session: SessionId,
    log: Vec<Event>,
    connection: Connected,
    _database: Option<Database>,
    _data_dir: TempDir,
}

/// The rows that are served beside the events.
const SERVED: [&str; 7] = ["sessions", "runs", "commands", "leases", "permissions", "runner_jobs", "usage"];

enum Connected {
    Sqlite(rusqlite::Connection),
    Postgres(PgConnection),
}

impl Left {
    async fn behind(engine: Engine) -> Self {
        let data_dir = scratch::in_memory();
        let database = match engine {
            Engine::Sqlite => None,
            Engine::Postgres => Some(Database::migrated()),
        };
        let mut config = Config::default();
        config.server.listen = "127.0.0.1:0".into();
        config.server.data_dir = Some(data_dir.path().to_owned());
        config.store.database_url = database.as_ref().map(|database| database.url().into());
        config.runner.slots = 0;
        let clock = Arc::new(TestClock::default());
        let server = start(config.clone(), clock.clone()).await.unwrap();
        play(&Caller::new(&server), &clock).await;
        server.stop().await;
        let db = Db::open(&config.store().unwrap(), clock.now()).await.unwrap();
        let session = sessions::list_after(&db, None, 1).await.unwrap().remove(0).session;
        let log = events::list_by_session(&db, session, 0, 1_000).await.unwrap().events;
        let mut connection = match &database {
            None => Connected::Sqlite(rusqlite::Connection::open(file_in(&data_dir)).unwrap()),
            Some(database) => Connected::Postgres(PgConnection::connect(database.url()).await.unwrap()),
        };
        connection.execute("CREATE TABLE as_it_was AS SELECT * FROM events").await;
        for table in SERVED {
            connection.execute(&format!("CREATE TABLE {table}_as_it_was AS SELECT * FROM {table}")).await;
        }
        Self { engine, db, session, log, connection, _database: database, _data_dir: data_dir }
    }

    /// The first place that does not fit. `None`: everything does.
    async fn broken(&self) -> Option<(i64, String)> {
        let mine = |broken: &BrokenRow| broken.session_id == self.session.to_string();
        let mut broken: Vec<_> = verify_store(&self.db, None).await.unwrap().broken.into_iter().filter(mine).collect();
        assert!(broken.len() <= 1, "one session, one place: {broken:?}");
        broken.pop().map(|broken| (broken.session_seq, broken.reason))
    }

    /// What belongs to no session: the name it has, and its first number.
    async fn orphans(&self, wanted: Option<&str>) -> Vec<(String, i64)> {
        let broken = verify_store(&self.db, wanted).await.unwrap().broken.into_iter();
        broken.filter(|b| b.reason.contains("no such session")).map(|b| (b.session_id, b.session_seq)).collect()
    }

    /// Does it, looks what is found, and undoes it.
    #[track_caller]
    fn found(&mut self, tampering: &str, named: i64) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            self.connection.execute(tampering).await;
            let broken = self.broken().await;
            assert_eq!(broken.as_ref().map(|(seq, _)| *seq), Some(named), "{tampering}: {broken:?}, at {caller}");
            self.undo().await;
        }
    }

    async fn undo(&mut self) {
        self.connection.execute("DELETE FROM events; INSERT INTO events SELECT * FROM as_it_was").await;
    }

    fn blob(&self, bytes: &[u8]) -> String {
        match self.engine {
            Engine::Sqlite => format!("x'{}'", hex(bytes)),
            Engine::Postgres => format!("'\\x{}'::bytea", hex(bytes)),
        }
    }

    /// A row that fits the chain after `previous`, whatever comes behind it.
    fn forged(&self, previous: &Event, session_seq: i64, fitting: bool) -> String {
        let payload = r#"{"text":"forged"}"#;
        let mut forged = Event { session_seq, run: None, command_id: None, ..previous.clone() };
        forged.digest = chain::payload_digest(payload);
        let link: Link<'_> = forged.link();
        let hash = if fitting { chain::next(&previous.hash, &link) } else { previous.hash };
        format!(
            "INSERT INTO events (session_id, session_seq, type, payload, digest, hash, created_at)
             VALUES ('{}', {session_seq}, '{}', '{payload}', {}, {}, {})",
            self.session,
            forged.event_type.as_str(),
            self.blob(&forged.digest),
            self.blob(&hash),
            forged.created_at.as_microsecond(),
        )
    }
}

impl Connected {
    async fn execute(&mut self, sql: &str) {
        match self {
            Self::Sqlite(connection) => connection.execute_batch(sql).unwrap(),
            Self::Postgres(connection) => {
                connection.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.map(drop).unwrap();
            }
        }
    }
}

fn file_in(data_dir: &TempDir) -> std::path::PathBuf {
    let files = std::fs::read_dir(data_dir.path()).unwrap().map(|entry| entry.unwrap().path());
    let mut stores = files.filter(|path| path.extension().is_some_and(|ending| ending == "db"));
    stores.next().expect("a store in the data directory")
}

/// About twenty events of many types, some of a command, some of the run alone.
async fn play(caller: &Caller, clock: &TestClock) {
    let run_id = caller.create_run().await;
    let command_id = caller.turn(&run_id, "do it").await;
    let runner = caller.claim(&run_id, "runner").await;
    for number in 0..5 {
        clock.advance_ms(1);
        let event = |kind, payload| json!({"type": kind, "commandId": command_id, "payload": payload});
        let says = json!([
            event("tool_call", json!({"toolCallId": number.to_string(), "status": "completed"})),
            event("assistant_message", json!({"messageId": "m", "text": format!("said {number}")})),
            json!({"type": "custom", "payload": {"name": "n", "value": number}}),
        ]);
        runner.try_append(None, says).await.with_status(200);
    }
    for (number, option) in [(1, "yes"), (2, "no")] {
        let permission_id = format!("prm_{number:032}");
        let options = json!([{"optionId": "yes", "name": "Yes", "kind": "allow_once"},
            {"optionId": "no", "name": "No", "kind": "reject_once"}]);
        let asks = json!({"permissionId": permission_id, "title": "Remove it?", "command": "rm it",
            "options": options, "digest": "ab".repeat(32)});
        let asks = json!([{"type": "permission_request", "commandId": command_id, "payload": asks}]);
        runner.try_append(None, asks).await.with_status(200);
        let path = format!("/api/v1/runs/{run_id}/permissions/{permission_id}/answer");
        caller.post(&path, &json!({"optionId": option, "digest": "ab".repeat(32)})).await.with_status(200);
    }
    runner.tell(&command_id, "usage", json!({"totalTokens": 10, "costUsd": 0.001})).await;
    clock.advance_ms(5);
    runner.end(&command_id, "completed").await;
    runner.release().await;
}

#[both_engines]
async fn every_changed_column_is_found_and_its_event_named(engine: Engine) {
    let mut left = Left::behind(engine).await;
    assert!((18..30).contains(&left.log.len()), "{}", left.log.len());
    assert_eq!(left.broken().await, None);
    let (other, short) = (left.blob(&[7; 32]), left.blob(&[7; 31]));
    for event in left.log.clone() {
        let seq = event.session_seq;
        let command = event.command_id.map_or("'cmd_00000000000000000000000000000000'", |_| "NULL");
        let kind = if event.event_type.as_str() == "step" { "state" } else { "step" };
        let mut changes = vec![
            "payload = payload || ' '".to_owned(),
            "payload = '{}'".to_owned(),
            format!("type = '{kind}'"),
            "created_at = created_at + 1".to_owned(),
            format!("command_id = {command}"),
            "run_id = 'run_00000000000000000000000000000000'".to_owned(),
            "run_id = NULL, seq = NULL".to_owned(),
            "seq = seq + 1000".to_owned(),
            format!("digest = {other}"),
            format!("digest = {other}, payload = NULL"),
            format!("hash = {other}"),
        ];
        // What does not even read back is found one by one, which a few places show as well as all.
        if seq % 5 == 0 || seq == left.log.len() as i64 {
            let unreadable = ["type = 'nonsense'", "run_id = 'nonsense'", "run_id = NULL", "seq = NULL"];
            changes.extend(unreadable.map(str::to_owned));
            changes.push(format!("digest = {short}"));
            changes.push(format!("hash = {short}"));
        }
        for change in changes {
            left.found(&format!("UPDATE events SET {change} WHERE session_seq = {seq}"), seq).await;
        }
    }
    assert_eq!(left.broken().await, None);
}

#[both_engines]
async fn a_dropped_or_renumbered_or_swapped_row_is_found_and_named(engine: Engine) {
    let mut left = Left::behind(engine).await;
    let last = left.log.len() as i64;
    let nobody = SessionId::new(uuid::Uuid::nil());
    for seq in 1..=last {
        left.found(&format!("DELETE FROM events WHERE session_seq = {seq}"), seq).await;
        let renumber = |to: i64| format!("UPDATE events SET session_seq = {to} WHERE session_seq = {seq}");
        left.found(&renumber(last + 5), seq).await;
        left.found(&renumber(0), 0).await;
        left.found(&renumber(-5), -5).await;
        left.found(&format!("UPDATE events SET session_id = '{nobody}' WHERE session_seq = {seq}"), seq).await;
    }
    for seq in 1..last {
        let swap = |columns: &str| {
            let from = |of: i64| format!("SELECT {columns} FROM as_it_was WHERE session_seq = {of}");
            let set =
                |to: i64, of: i64| format!("UPDATE events SET ({columns}) = ({}) WHERE session_seq = {to}", from(of));
            format!("{}; {}", set(seq, seq + 1), set(seq + 1, seq))
        };
        left.found(&swap("payload, digest"), seq).await;
        left.found(&swap("type, payload, digest, hash, created_at, command_id"), seq).await;
        let number = |from: i64, to: i64| format!("UPDATE events SET session_seq = {to} WHERE session_seq = {from}");
        left.found(&[number(seq, 0), number(seq + 1, seq), number(0, seq + 1)].join("; "), seq).await;
    }
    left.found("DELETE FROM events", 1).await;
    assert_eq!(left.broken().await, None);
}

#[both_engines]
async fn a_forged_row_is_found_and_named(engine: Engine) {
    let mut left = Left::behind(engine).await;
    let last = left.log.len() as i64;
    for before in [1, last / 2, last - 1] {
        let previous = left.log[before as usize - 1].clone();
        let make_room = format!(
            "UPDATE events SET session_seq = -session_seq WHERE session_seq > {before};
             UPDATE events SET session_seq = 1 - session_seq WHERE session_seq < 0"
        );
        let forged = left.forged(&previous, before + 1, false);
        left.found(&format!("{make_room}; {forged}"), before + 1).await;
        // One that fits what is before it is given away by what is behind it.
        let forged = left.forged(&previous, before + 1, true);
        left.found(&format!("{make_room}; {forged}"), before + 2).await;
    }
    let previous = left.log[last as usize - 1].clone();
    for fitting in [false, true] {
        let forged = left.forged(&previous, last + 1, fitting);
        left.found(&forged, last + 1).await;
    }
    let forged = left.forged(&previous, 0, true);
    left.found(&forged, 0).await;
    assert_eq!(left.broken().await, None);
}

#[both_engines]
async fn a_head_that_does_not_fit_its_log_is_found(engine: Engine) {
    let mut left = Left::behind(engine).await;
    let last = left.log.len() as i64;
    let head = left.blob(&left.log[last as usize - 1].hash);
    let (other, before) = (left.blob(&[7; 32]), left.blob(&left.log[last as usize - 2].hash));
    let set = |what: &str| format!("UPDATE sessions SET {what}");
    left.found(&set(&format!("chain_head = {other}")), last).await;
    left.found(&set(&format!("chain_head = {head}, last_seq = {}", last + 1)), last + 1).await;
    // A head put back to hide the last event gives that event away.
    left.found(&set(&format!("chain_head = {before}, last_seq = {}", last - 1)), last).await;
    left.connection.execute(&set(&format!("chain_head = {head}, last_seq = {last}"))).await;
    assert_eq!(left.broken().await, None);
}

#[both_engines]
async fn an_event_of_no_session_is_found_and_named(engine: Engine) {
    let mut left = Left::behind(engine).await;
    assert_eq!(left.orphans(None).await, []);
    for nobody in ["ses_00000000000000000000000000000000", "no id at all", ""] {
        let forged = left.forged(&left.log[0], 7, true).replace(&left.session.to_string(), nobody);
        left.connection.execute(&forged).await;
        assert_eq!(left.broken().await, None);
        assert_eq!(left.orphans(None).await, [(nobody.to_owned(), 7)]);
        assert_eq!(left.orphans(Some(nobody)).await, [(nobody.to_owned(), 7)]);
        assert_eq!(left.orphans(Some(&left.session.to_string())).await, []);
        left.undo().await;
    }
}

#[both_engines]
async fn events_left_behind_by_a_removed_session_are_found_and_named(engine: Engine) {
    let mut left = Left::behind(engine).await;
    left.connection.execute("DELETE FROM sessions").await;
    let session = left.session.to_string();
    assert_eq!(left.orphans(None).await, [(session.clone(), 1)]);
    assert_eq!(left.orphans(Some(&session)).await, [(session, 1)]);
}

#[both_engines]
async fn a_missing_payload_is_found_and_hides_nothing(engine: Engine) {
    let mut left = Left::behind(engine).await;
    for seq in 1..=left.log.len() {
        left.found(&format!("UPDATE events SET payload = NULL WHERE session_seq = {seq}"), seq as i64).await;
    }
    left.found("UPDATE events SET payload = NULL", 1).await;
    // The log must say that the session was erased; its row is not enough.
    let marked = "UPDATE sessions SET erased_at = 1000000";
    left.named(marked, "session: erased_at").await;
    for erased in ["", " WHERE session_seq = 4"] {
        let erase = format!("{marked}; UPDATE events SET payload = NULL{erased}");
        left.named(&erase, "session: erased_at").await;
        left.undo().await;
        for (change, words) in [
            ("UPDATE sessions SET version = 9", "session: version"),
            ("UPDATE sessions SET ended_at = 1000000", "session: ended_at"),
            ("UPDATE runs SET last_seq = last_seq + 1", ": last_seq"),
            ("UPDATE runs SET command_count = 7", ": command_count"),
            ("UPDATE commands SET seq = 7", ": seq"),
        ] {
            left.named(&format!("{erase}; {change}"), words).await;
            left.undo().await;
        }
    }
    assert_eq!(left.broken().await, None);
}

impl Left {
    /// Tampers with the store, expects these words in the report, and undoes the change.
    async fn named(&mut self, tampering: &str, words: &str) {
        self.connection.execute(tampering).await;
        let reason = self.broken().await.map(|(_, reason)| reason).unwrap_or_default();
        assert!(reason.contains(words), "{tampering}: {words:?} is not in {reason:?}");
        for table in SERVED {
            let undo = format!("DELETE FROM {table}; INSERT INTO {table} SELECT * FROM {table}_as_it_was");
            self.connection.execute(&undo).await;
        }
    }
}

#[both_engines]
async fn every_changed_column_of_a_served_row_is_found_and_named(engine: Engine) {
    let mut left = Left::behind(engine).await;
    let (id, time) = ("00000000000000000000000000000007", "1000000");
    let end = r#"'{"status":"failed","failureKind":"infra-failed","message":null,"source":"runner","seq":5,"at":"2026-01-01T00:00:00Z"}'"#;
    let (other_run, other_command) = (format!("'run_{id}'"), format!("'cmd_{id}'"));
    let (attempt, job) = (format!("'att_{id}'"), format!("'job_{id}'"));
    let fold = "REPLACE(fold, '\"events\":', '\"events\":9')";
    let created = "what it was created with";
    let changes = [
        ("runs", "status", "'failed'", "status"),
        ("runs", "terminal", end, "terminal"),
        ("runs", "cancel_requested_at", time, "cancel_requested_at"),
        ("runs", "cancel_reason", "'because'", "cancel_reason"),
        ("runs", "last_seq", "last_seq + 1", "last_seq"),
        ("runs", "command_count", "7", "command_count"),
        ("runs", "unfinished_commands", "1", "unfinished_commands"),
        ("runs", "lease_epoch", "9", "lease_epoch"),
        ("runs", "attempt_id", &attempt, "attempt_id"),
        ("runs", "tenant_id", "'mallory'", created),
        ("runs", "project_id", "'mallory'", created),
        ("runs", "workspace_ref", r#"'{"kind":"local","path":"/"}'"#, created),
        ("runs", "provider_id", "'mallory'", created),
        ("runs", "backend_profile", "'mallory'", created),
        ("runs", "trace_sink", "'\"mallory\"'", created),
        ("runs", "execution_policy", "REPLACE(execution_policy, '\"timeoutMs\":', '\"timeoutMs\":9')", created),
        ("runs", "created_at", "created_at + 1", created),
        ("runs", "labels", "'{\"team\":\"mallory\"}'", "labels"),
        ("runs", "created_by", "'mallory'", "created_by"),
        ("runs", "tokens", "tokens + 1", "tokens"),
        ("runs", "cost_nano_usd", "cost_nano_usd + 1000", "cost_nano_usd"),
        ("runs", "turns", "turns + 1", "turns"),
        ("runs", "active_ms", "active_ms - 1", "active_ms"),
        ("usage", "run_id", &other_run, "its sum"),
        ("usage", "day", "day - 1", "day"),
        ("usage", "tenant_id", "'mallory'", "whose it is"),
        ("usage", "backend_profile", "'mallory'", "whose it is"),
        ("usage", "agent_id", "'agt_00000000000000000000000000000007'", "whose it is"),
        ("usage", "user_id", "NULL", "whose it is"),
        ("usage", "runs", "runs + 1", "runs"),
        ("usage", "turns", "turns + 1", "its sum"),
        ("usage", "tokens", "tokens - 1", "its sum"),
        ("usage", "cost_nano_usd", "cost_nano_usd + 1", "its sum"),
        ("usage", "active_ms", "active_ms + 1", "its sum"),
        ("commands", "state", "'failed'", "state"),
        ("commands", "terminal", end, "terminal"),
        ("commands", "terminal", "NULL", "terminal"),
        ("commands", "fold", fold, "fold"),
        ("commands", "seq", "7", "seq"),
        ("commands", "type", "'steer'", "type"),
        ("commands", "cancel_requested_at", time, "cancel_requested_at"),
        ("commands", "cancel_reason", "'because'", "cancel_reason"),
        ("commands", "payload", r#"'{"prompt":"mallory"}'"#, created),
        ("commands", "payload_hash", "'mallory'", created),
        ("commands", "idempotency_key", "'mallory'", created),
        ("commands", "created_at", "created_at + 1", created),
        ("commands", "origin", "'mallory'", created),
        ("commands", "submitted_by", "'mallory'", created),
        ("commands", "rolled_back_at", time, "rolled_back_at"),
        ("commands", "target_command_id", &other_command, "target_command_id"),
        ("commands", "attempt_id", &attempt, "attempt_id"),
        ("commands", "reply_session_seq", "1", "reply_session_seq"),
        ("commands", "reply_session_seq", "NULL", "reply_session_seq"),
        ("permissions", "title", "'mallory'", "title"),
        ("permissions", "command", "'mallory'", "command"),
        ("permissions", "tool_call_id", "'mallory'", "tool_call_id"),
        ("permissions", "options", "'[]'", "options"),
        ("permissions", "digest", "'mallory'", "digest"),
        ("permissions", "deadline", "deadline + 1", "deadline"),
        ("permissions", "status", "'cancelled'", "status"),
        ("permissions", "status", "'pending'", "status"),
        ("permissions", "option_id", "'mallory'", "option_id"),
        ("permissions", "resolved_by", "'mallory'", "resolved_by"),
        ("permissions", "resolved_at", "resolved_at + 1", "resolved_at"),
        ("permissions", "created_at", "created_at + 1", "created_at"),
        ("permissions", "strategy", "'consensus'", "strategy"),
        ("permissions", "voters", "'[{\"client\":\"mallory\"}]'", "voters"),
        ("permissions", "quorum", "1", "quorum"),
        ("permissions", "votes", "'[{\"voter\":\"mallory\",\"optionId\":\"yes\",\"seq\":1}]'", "votes"),
        ("permissions", "refusals", "1", "refusals"),
        ("runs", "open_permissions", "1", "open_permissions"),
        ("runs", "standing_job_id", &job, "its absence"),
        ("leases", "runner_id", "'mallory'", "runner_id"),
        ("leases", "epoch", "9", "epoch"),
        ("leases", "attempt_id", &attempt, "attempt_id"),
        ("leases", "acquired_at", "acquired_at + 1", "acquired_at"),
        ("leases", "ended", "0", "ended"),
        ("leases", "expired", "1", "expired"),
        ("leases", "waiters", "'[\"mallory\"]'", "waiters"),
        ("sessions", "tenant_id", "'mallory'", created),
        ("sessions", "owner", "'mallory'", created),
        ("sessions", "conversation_id", "'mallory'", created),
        ("sessions", "metadata", "'{\"team\":\"mallory\"}'", created),
        ("sessions", "title", "'mallory'", "title"),
        ("sessions", "labels", "'{\"team\":\"mallory\"}'", "labels"),
        ("sessions", "participants", "'[\"mallory\"]'", "participants"),
        ("sessions", "closed_at", time, "closed_at"),
        ("sessions", "thread_id", "'mallory'", "thread_id"),
        ("sessions", "version", "9", "version"),
        ("sessions", "ended_at", time, "ended_at"),
        ("sessions", "storage_kind", "'evicted'", "storage_kind"),
        ("sessions", "execution_state", "'running'", "execution_state"),
        ("sessions", "active_run_id", &other_run, "active_run_id"),
        ("sessions", "active_command_id", &other_command, "active_command_id"),
        ("sessions", "active_unfinished", "3", "active_unfinished"),
        ("sessions", "active_lease_until", time, "active_lease_until"),
        ("sessions", "last_run_id", &other_run, "last_run_id"),
        ("sessions", "last_command_id", &other_command, "last_command_id"),
    ];
    assert_eq!(left.broken().await, None);
    for (table, column, value, words) in changes {
        left.named(&format!("UPDATE {table} SET {column} = {value}"), words).await;
    }
    assert_eq!(left.broken().await, None);
}

#[both_engines]
async fn a_row_that_was_added_or_removed_is_found_and_named(engine: Engine) {
    let mut left = Left::behind(engine).await;
    for table in ["runs", "commands", "leases", "permissions"] {
        left.named(&format!("DELETE FROM {table}"), "its absence").await;
    }
    let columns = |table: &str| match table {
        "runs" => "run_id",
        _ => "command_id",
    };
    for (table, id) in
        [("commands", "cmd_00000000000000000000000000000007"), ("runs", "run_00000000000000000000000000000007")]
    {
        let numbered = if table == "commands" { ", seq = 7" } else { "" };
        let copy = format!(
            "CREATE TABLE forged AS SELECT * FROM {table}; UPDATE forged SET {} = '{id}'{numbered}, idempotency_key = NULL;
             INSERT INTO {table} SELECT * FROM forged; DROP TABLE forged",
            columns(table)
        );
        left.named(&copy, id).await;
    }
    assert_eq!(left.broken().await, None);
}
