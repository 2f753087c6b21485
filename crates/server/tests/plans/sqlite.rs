//! Plans of SQLite. The store never has it analyse anything, so plans do not depend on the rows.

use std::collections::{BTreeSet, HashMap};

use ostler_protocol::Timestamp;
use ostler_store::{Db, StoreConfig, Synchronous, statement_log::create_volatile_tables};
use ostler_testkit::scratch;
use rusqlite::Connection;

use super::{LIVE, Plans, is_accepted, on_one_line};
use crate::harness::SentStatement;

const INDEXES: &str = "SELECT i.name FROM sqlite_schema t JOIN pragma_index_list(t.name) i \
                       WHERE t.type = 'table' AND i.\"unique\" = 0";

pub(crate) async fn plans(statements: &BTreeSet<SentStatement>, growing: &BTreeSet<&'static str>) -> Plans {
    let directory = scratch::in_memory();
    let file = directory.path().join("plans.db");
    let config = StoreConfig::Sqlite { file: file.clone(), synchronous: Synchronous::Off };
    Db::open(&config, Timestamp::UNIX_EPOCH).await.unwrap().close().await;
    let connection = Connection::open(file).unwrap();
    create_volatile_tables(&connection).unwrap();
    let mut indexes = connection.prepare(INDEXES).unwrap();
    let indexes = indexes.query_map([], |row| row.get("name")).unwrap().map(Result::unwrap).collect();
    let mut plans = Plans { indexes, ..Plans::default() };
    for SentStatement { sql, .. } in statements {
        let plan = explain(&connection, sql);
        plans.used.extend(plan.iter().filter_map(|step| index_of(step)).map(str::to_owned));
        if is_accepted(sql) {
            continue;
        }
        let tables = tables_by_alias(sql, growing);
        let scans = plan.iter().filter(|step| is_scan(step, &plan, sql, &tables));
        plans.problems.extend(scans.map(|step| format!("{step}: {}", on_one_line(sql))));
    }
    plans
}

/// The index that a step reads: `SEARCH t USING COVERING INDEX name (column=?)`.
fn index_of(step: &str) -> Option<&str> {
    step.split_once(" INDEX ")?.1.split_whitespace().next()
}

fn explain(connection: &Connection, sql: &str) -> Vec<String> {
    let explained = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}"));
    let mut statement = explained.unwrap_or_else(|error| panic!("{error}: {}", on_one_line(sql)));
    // Parameters stay null; plans do not depend on them.
    let mut rows = statement.raw_query();
    let mut plan = vec![];
    while let Some(row) = rows.next().unwrap() {
        plan.push(row.get::<_, String>(3).unwrap());
    }
    plan
}

/// The growing tables by the names that the statement has for them: plans name a table by its alias.
fn tables_by_alias<'a>(sql: &'a str, growing: &BTreeSet<&'static str>) -> HashMap<&'a str, &'a str> {
    let words: Vec<_> = sql.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).collect();
    let mut tables = HashMap::new();
    for (index, table) in words.iter().enumerate().filter(|(_, word)| growing.contains(*word)) {
        let mut following = words[index + 1..].iter().filter(|word| !word.eq_ignore_ascii_case("as"));
        tables.insert(*table, *table);
        // A word that is no alias is in no plan.
        if let Some(alias) = following.next() {
            tables.insert(*alias, *table);
        }
    }
    tables
}

/// `SCAN t`, `SCAN t USING INDEX …`, or an index that is made for one execution.
fn is_scan(step: &str, plan: &[String], sql: &str, tables: &HashMap<&str, &str>) -> bool {
    let words: Vec<_> = step.split_whitespace().collect();
    let is_growing = words.get(1).is_some_and(|name| tables.contains_key(name));
    match words[..] {
        ["SEARCH", ..] => is_growing && step.contains("USING AUTOMATIC"),
        ["SCAN", _] => is_growing,
        ["SCAN", _, "USING", ..] => {
            let index = words.last().copied().unwrap_or_default();
            let sorts = plan.iter().any(|step| step.starts_with("USE TEMP B-TREE"));
            let ends_early = sql.to_uppercase().contains("LIMIT") && !sorts;
            is_growing && !LIVE.contains(&index) && !ends_early
        }
        _ => false,
    }
}
