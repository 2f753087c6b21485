//! Every stored row, read past the store by the engine's own driver: what a test compares and checks must not depend on
//! the code under test.

use std::{collections::BTreeMap, sync::Arc};

use ostler_protocol::{
    Timestamp,
    ids::SessionId,
    kernel::events::{Event, EventType},
};
use serde_json::{Map, Value};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row as _};

use crate::test_store::{Engine, TestStore};

pub(crate) const TABLES: [&str; 10] = [
    "sessions",
    "runs",
    "leases",
    "commands",
    "events",
    "append_batches",
    "permissions",
    "runner_jobs",
    "command_aliases",
    "usage",
];

/// What tells a row from every other of its table, whichever of these columns it has.
const KEYS: [&str; 8] =
    ["command_id", "run_id", "runner_job_id", "permission_id", "batch_no", "session_id", "session_seq", "day"];

/// All rows by table, each table in a fixed order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Rows(BTreeMap<String, Vec<Row>>);

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row(Map<String, Value>);

impl Row {
    pub(crate) fn text(&self, column: &str) -> &str {
        self.opt_text(column).unwrap_or_else(|| panic!("{column} is null"))
    }

    pub(crate) fn opt_text(&self, column: &str) -> Option<&str> {
        self.value(column).as_str()
    }

    pub(crate) fn int(&self, column: &str) -> i64 {
        self.opt_int(column).unwrap_or_else(|| panic!("{column} is null"))
    }

    pub(crate) fn opt_int(&self, column: &str) -> Option<i64> {
        self.value(column).as_i64()
    }

    pub(crate) fn json(&self, column: &str) -> Value {
        self.opt_text(column).map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
    }

    pub(crate) fn id<T: std::str::FromStr<Err: std::fmt::Debug>>(&self, column: &str) -> T {
        self.text(column).parse().unwrap()
    }

    fn bytes(&self, column: &str) -> [u8; 32] {
        let hex = self.text(column).strip_prefix("\\x").expect("bytes are shown in hex");
        let bytes: Vec<u8> =
            (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect();
        bytes.try_into().unwrap()
    }

    fn value(&self, column: &str) -> &Value {
        self.0.get(column).unwrap_or_else(|| panic!("no column {column}"))
    }

    pub(crate) fn hash(&self, column: &str) -> [u8; 32] {
        self.bytes(column)
    }

    fn event(&self) -> Event {
        let run = self.opt_text("run_id").map(|id| (id.parse().unwrap(), self.int("seq")));
        Event {
            session: self.id("session_id"),
            session_seq: self.int("session_seq"),
            run,
            command_id: self.opt_text("command_id").map(|id| id.parse().unwrap()),
            event_type: EventType::parse(self.text("type")).unwrap(),
            payload: self.opt_text("payload").map(Arc::from),
            digest: self.bytes("digest"),
            hash: self.bytes("hash"),
            created_at: Timestamp::from_microsecond(self.int("created_at")).unwrap(),
        }
    }
}

impl Rows {
    pub(crate) fn of(&self, table: &str) -> &[Row] {
        self.0.get(table).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn find(&self, table: &str, column: &str, value: &str) -> Option<&Row> {
        self.of(table).iter().find(|row| row.opt_text(column) == Some(value))
    }

    /// The log, by session, in its order.
    pub(crate) fn events(&self) -> BTreeMap<SessionId, Vec<Event>> {
        let mut log: BTreeMap<SessionId, Vec<Event>> = BTreeMap::new();
        for row in self.of("events") {
            let event = row.event();
            log.entry(event.session).or_default().push(event);
        }
        log.values_mut().for_each(|events| events.sort_by_key(|event| event.session_seq));
        log
    }

    fn collect(tables: impl IntoIterator<Item = (String, Vec<Row>)>) -> Self {
        let sort = |(name, mut rows): (String, Vec<Row>)| {
            rows.sort_by_cached_key(|row| {
                let key = |column: &&str| row.0.get(*column).map(ToString::to_string).unwrap_or_default();
                (row.0.get("session_id").map(ToString::to_string), KEYS.iter().map(key).collect::<Vec<_>>())
            });
            (name, rows)
        };
        Self(tables.into_iter().map(sort).collect())
    }
}

/// A connection beside the store's own.
pub(crate) enum Witness {
    Sqlite(rusqlite::Connection),
    Postgres(Box<PgConnection>),
}

impl Witness {
    pub(crate) async fn of(test_store: &TestStore) -> Self {
        match test_store.engine() {
            Engine::Sqlite => Self::Sqlite(rusqlite::Connection::open(test_store.file()).unwrap()),
            Engine::Postgres => Self::Postgres(Box::new(PgConnection::connect(&test_store.url()).await.unwrap())),
        }
    }

    pub(crate) async fn rows(&mut self) -> Rows {
        match self {
            Self::Sqlite(connection) => {
                Rows::collect(TABLES.iter().map(|table| ((*table).to_owned(), sqlite_rows(connection, table))))
            }
            Self::Postgres(connection) => {
                let part = |table| format!("'{table}', (SELECT COALESCE(json_agg(t), '[]') FROM {table} t)");
                let parts: Vec<_> = TABLES.iter().map(part).collect();
                let sql = format!("SELECT json_build_object({})::text", parts.join(", "));
                let row = sqlx::query(AssertSqlSafe(sql)).fetch_one(&mut **connection).await.unwrap();
                let tables: BTreeMap<String, Vec<Map<String, Value>>> = serde_json::from_str(row.get(0)).unwrap();
                Rows::collect(tables.into_iter().map(|(name, rows)| (name, rows.into_iter().map(Row).collect())))
            }
        }
    }

    pub(crate) async fn execute(&mut self, sql: &str) {
        match self {
            Self::Sqlite(connection) => connection.execute_batch(sql).unwrap(),
            Self::Postgres(connection) => {
                connection.execute(sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))).await.map(drop).unwrap();
            }
        }
    }

    /// Empties every table of a store that no process has open.
    pub(crate) async fn wipe(&mut self) {
        let deletes: Vec<_> = TABLES.iter().map(|table| format!("DELETE FROM {table}")).collect();
        self.execute(&deletes.join("; ")).await;
    }

    /// Waits until no process has the store open: a killed one's last commit may still be on its way.
    pub(crate) async fn alone(&mut self) {
        let Self::Postgres(connection) = self else { return };
        let sql =
            "SELECT COUNT(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()";
        for _ in 0..5_000 {
            let others: i64 = sqlx::query_scalar(sql).fetch_one(&mut **connection).await.unwrap();
            if others == 0 {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        panic!("a killed process still has the database open");
    }
}

fn sqlite_rows(connection: &rusqlite::Connection, table: &str) -> Vec<Row> {
    use rusqlite::types::ValueRef;
    let mut statement = connection.prepare(&format!("SELECT * FROM {table}")).unwrap();
    let names: Vec<String> = statement.column_names().map(str::to_owned).collect();
    let read = |row: &rusqlite::Row<'_>| {
        let value = |index| match row.get_ref(index).unwrap() {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(number) => number.into(),
            ValueRef::Real(number) => number.into(),
            ValueRef::Text(text) => std::str::from_utf8(text).unwrap().into(),
            ValueRef::Blob(bytes) => format!("\\x{}", ostler_protocol::json::hex(bytes)).into(),
        };
        Ok(Row(names.iter().enumerate().map(|(index, name)| (name.clone(), value(index))).collect()))
    };
    statement.query_map([], read).unwrap().map(Result::unwrap).collect()
}
