//! Plans of Postgres, on a database of its own that is filled with made-up rows: before and after it is analysed with the settings of
//! the server's connections, and also with sequential scans allowed when there are statistics to choose them by.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde_json::Value;
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};

use super::{LIVE, Plans, is_accepted, on_one_line};
use crate::harness::{Database, SentStatement};

/// Rows of each table that grows: some forty pages.
const ROWS: i64 = 2_000;
/// A statement that is expected to return at least this many rows has to read a good part of the table, by whatever plan.
const MANY_ROWS: f64 = 200.0;
/// So many rows have the same value in a column that has no reason to be unique.
const ROWS_PER_VALUE: i64 = 4;
/// Every tenant has many rows.
const TENANTS: i64 = 3;

/// Settings under which Postgres would start other processes for a plan wherever it may.
const FREE_PROCESSES: &[&str] = &[
    "parallel_setup_cost = 0",
    "parallel_tuple_cost = 0",
    "min_parallel_table_scan_size = 0",
    "min_parallel_index_scan_size = 0",
];
const INDEXES: &str = "SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid \
                       JOIN pg_namespace n ON n.oid = c.relnamespace \
                       WHERE n.nspname = 'public' AND NOT i.indisunique";

pub(crate) async fn plans(statements: &BTreeSet<SentStatement>, growing: &BTreeSet<&'static str>) -> Plans {
    let database = Database::migrated();
    let mut connection = PgConnection::connect(database.url()).await.unwrap();
    fill(&mut connection, growing).await;
    let mut by_options: BTreeMap<&str, Vec<&SentStatement>> = BTreeMap::new();
    for sent in statements {
        by_options.entry(&sent.options).or_default().push(sent);
    }
    let types = type_names(&mut connection, statements).await;
    let indexes: Vec<String> = sqlx::query_scalar(INDEXES).fetch_all(&mut connection).await.unwrap();
    let mut plans = Plans { indexes: indexes.into_iter().collect(), ..Plans::default() };
    for state in ["freshly filled", "analysed"] {
        if state == "analysed" {
            execute(&mut connection, "ANALYZE").await;
        }
        // Without statistics a table of this size is as cheap to read as any of its indexes.
        let modes: &[&str] = if state == "analysed" { &["off", "on"] } else { &["off"] };
        let each = by_options.iter().flat_map(|of| modes.iter().map(move |mode| (of, *mode)));
        for ((options, statements), seqscan) in each {
            let mut session = PgConnection::connect(database.url()).await.unwrap();
            for setting in settings(options) {
                execute(&mut session, &format!("SET {setting}")).await;
            }
            for setting in FREE_PROCESSES {
                execute(&mut session, &format!("SET {setting}")).await;
            }
            execute(&mut session, &format!("SET enable_seqscan = {seqscan}")).await;
            // A statement is planned once and used for all values that are bound to it.
            execute(&mut session, "SET plan_cache_mode = force_generic_plan").await;
            let check = Check { growing, seqscan: seqscan == "on" };
            for sent in statements {
                let plan = explain(&mut session, sent, &types).await;
                add_indexes(&plan, &mut plans.used);
                let problems = if is_accepted(&sent.sql) { vec![] } else { check.problems(&plan, false) };
                for problem in problems {
                    let place = format!("({state}, enable_seqscan = {seqscan})");
                    plans.problems.insert(format!("{problem} {place}: {}", on_one_line(&sent.sql)));
                }
            }
            session.close().await.unwrap();
        }
    }
    plans
}

/// Adds the indexes that a plan reads.
fn add_indexes(plan: &Value, used: &mut BTreeSet<String>) {
    used.extend(plan["Index Name"].as_str().map(str::to_owned));
    for part in plan["Plans"].as_array().into_iter().flatten() {
        add_indexes(part, used);
    }
}

/// `-c jit=off -c enable_seqscan=off` as settings.
fn settings(options: &str) -> impl Iterator<Item = String> {
    let settings = options.split_whitespace().filter(|word| *word != "-c");
    settings.filter_map(|setting| setting.split_once('=')).map(|(name, value)| format!("{name} = '{value}'"))
}

async fn execute(connection: &mut PgConnection, sql: &str) {
    let done = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut *connection).await;
    done.unwrap_or_else(|error| panic!("{error}: {}", on_one_line(sql)));
}

/// The names of the types of all parameters.
async fn type_names(connection: &mut PgConnection, statements: &BTreeSet<SentStatement>) -> HashMap<u32, String> {
    let numbers: BTreeSet<u32> = statements.iter().flat_map(|sent| sent.types.iter().copied()).collect();
    let mut names = HashMap::new();
    for number in numbers {
        let name = sqlx::query_scalar("SELECT format_type($1::oid, NULL)").bind(i64::from(number));
        let name: String = name.fetch_one(&mut *connection).await.unwrap();
        names.insert(number, name);
    }
    names
}

async fn explain(session: &mut PgConnection, sent: &SentStatement, types: &HashMap<u32, String>) -> Value {
    let in_brackets =
        |words: Vec<&str>| if words.is_empty() { String::new() } else { format!("({})", words.join(", ")) };
    let types = in_brackets(sent.types.iter().map(|number| types[number].as_str()).collect());
    execute(session, &format!("PREPARE explained {types} AS {}", sent.sql)).await;
    let values = in_brackets(vec!["NULL"; sent.types.len()]);
    let sql = format!("EXPLAIN (FORMAT JSON) EXECUTE explained {values}");
    let rows = sqlx::raw_sql(AssertSqlSafe(sql)).fetch_all(&mut *session).await;
    let rows = rows.unwrap_or_else(|error| panic!("{error}: {}", on_one_line(&sent.sql)));
    let text: String = rows[0].get_unchecked(0);
    execute(session, "DEALLOCATE explained").await;
    serde_json::from_str::<Value>(&text).unwrap()[0]["Plan"].clone()
}

struct Check<'a> {
    growing: &'a BTreeSet<&'static str>,
    /// Postgres may choose a sequential scan where there is an index.
    seqscan: bool,
}

impl Check<'_> {
    /// The scans of a plan, and where it starts other processes: with a bound limit Postgres expects to read a tenth of the rows, and
    /// would start processes to return one page. `ends_early`: what is above this step stops after a few rows.
    fn problems(&self, plan: &Value, ends_early: bool) -> Vec<String> {
        let text = |field: &str| plan[field].as_str().unwrap_or_default();
        let (node, table, index) = (text("Node Type"), text("Relation Name"), text("Index Name"));
        let is_growing = self.growing.contains(table);
        let is_problem = match node {
            "Gather" | "Gather Merge" => true,
            // With the statistics of a few rows, an open range is a third of the table, and its index is as expensive as the table.
            // Connections of the server do not allow the scan, and with their settings the index must be used.
            "Seq Scan" => is_growing && !(self.seqscan && plan["Plan Rows"].as_f64().unwrap_or_default() >= MANY_ROWS),
            "Index Scan" | "Index Only Scan" => {
                is_growing && plan["Index Cond"].is_null() && !ends_early && !LIVE.contains(&index)
            }
            _ => false,
        };
        let ends_early = match node {
            "Limit" => true,
            "Sort" | "Aggregate" | "Hash" | "ModifyTable" => false,
            _ => ends_early,
        };
        let mut found: Vec<_> = is_problem.then(|| format!("{node} of {table} {index}")).into_iter().collect();
        for part in plan["Plans"].as_array().into_iter().flatten() {
            found.extend(self.problems(part, ends_early));
        }
        found
    }
}

/// Fills every table that grows. The values mean nothing: statements are explained here, and none is executed.
async fn fill(connection: &mut PgConnection, growing: &BTreeSet<&'static str>) {
    let unique = "SELECT i.indrelid::regclass::text || '.' || a.attname::text FROM pg_index i JOIN pg_attribute a \
                  ON a.attrelid = i.indrelid AND a.attnum = i.indkey[i.indnkeyatts - 1] WHERE i.indisunique";
    let unique: Vec<String> = sqlx::query_scalar(unique).fetch_all(&mut *connection).await.unwrap();
    let unique: BTreeSet<String> = unique.into_iter().collect();
    let columns = "SELECT table_name::text, column_name::text, data_type::text, is_nullable::text \
                   FROM information_schema.columns WHERE table_schema = 'public' AND column_default IS NULL \
                   AND is_identity = 'NO' ORDER BY table_name, ordinal_position";
    let columns: Vec<(String, String, String, String)> =
        sqlx::query_as(columns).fetch_all(&mut *connection).await.unwrap();
    let mut tables: BTreeMap<&str, Vec<(&str, String)>> = BTreeMap::new();
    for (table, column, data_type, is_nullable) in &columns {
        let is_unique = unique.contains(&format!("{table}.{column}"));
        let value = value_of(column, data_type, is_unique, is_nullable == "YES");
        tables.entry(table.as_str()).or_default().push((column.as_str(), value));
    }
    for (table, columns) in tables.into_iter().filter(|(table, _)| growing.contains(table)) {
        let names: Vec<_> = columns.iter().map(|(name, _)| *name).collect();
        let values: Vec<_> = columns.iter().map(|(_, value)| value.as_str()).collect();
        let sql = format!(
            "INSERT INTO {table} ({}) SELECT {} FROM generate_series(1, {ROWS}) AS g ON CONFLICT DO NOTHING",
            names.join(", "),
            values.join(", ")
        );
        execute(connection, &sql).await;
    }
}

/// The value of a column in row `g`.
fn value_of(column: &str, data_type: &str, is_unique: bool, is_nullable: bool) -> String {
    let value = match data_type {
        // An index reads it as JSON.
        "text" if column == "labels" => "'{}'".to_owned(),
        "text" if is_unique => "'value-' || g".to_owned(),
        "text" if column == "tenant_id" => format!("'value-' || g % {TENANTS}"),
        "text" => format!("'value-' || g / {ROWS_PER_VALUE}"),
        "bigint" => "g".to_owned(),
        "bytea" => "decode(md5(g::text), 'hex')".to_owned(),
        other => panic!("no made-up value for {column}, which is {other}"),
    };
    // Of most things the time of their end, and whatever else may be missing, is not known.
    if is_nullable && !is_unique { format!("CASE WHEN g % 10 = 0 THEN {value} END") } else { value }
}
