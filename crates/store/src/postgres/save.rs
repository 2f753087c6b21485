//! Saving what a flush changed: one statement, with an insert or upsert per table.

use std::fmt::Write as _;

use ostler_protocol::{
    commands::Command, kernel::Batch, leases::Lease, permissions::PermissionRequest, runner_jobs::RunnerJob, runs::Run,
    sessions::Session,
};
use sqlx::{AssertSqlSafe, PgConnection};

use super::Lane;
use crate::{
    db::{PgQuery, StoreError},
    lane::Changes,
    record::{Kind, Record, Value, upsert_rows},
};

impl Lane {
    /// Everything in one statement: an insert or upsert per table that changed.
    pub async fn save(&mut self, tx: &mut PgConnection, changes: &Changes<'_>) -> Result<(), StoreError> {
        let tables = [
            !changes.events.is_empty(),
            !changes.sessions.is_empty(),
            !changes.runs.is_empty(),
            !changes.leases.is_empty(),
            !changes.commands.is_empty(),
            !changes.permissions.is_empty(),
            !changes.jobs.is_empty(),
            !changes.batches.is_empty(),
            !changes.forget_batches.is_empty(),
        ];
        let mask = tables.iter().rev().fold(0_u16, |mask, touched| mask << 1 | u16::from(*touched));
        let sql = self.statements.entry(mask).or_insert_with(|| write_statement(tables)).clone();
        let mut query = sqlx::query(AssertSqlSafe(sql));
        if tables[0] {
            query = bind_events(query, changes);
        }
        query = bind_records(query, &changes.sessions);
        query = bind_records(query, &changes.runs);
        query = bind_records(query, &changes.leases);
        query = bind_records(query, &changes.commands);
        query = bind_records(query, &changes.permissions);
        query = bind_records(query, &changes.jobs);
        query = bind_records(query, &changes.batches);
        if tables[8] {
            query = query.bind(changes.forget_batches.iter().map(|(run_id, _)| run_id.to_string()).collect::<Vec<_>>());
            query = query.bind(changes.forget_batches.iter().map(|(_, epoch)| *epoch).collect::<Vec<_>>());
        }
        query.execute(tx).await?;
        Ok(())
    }
}

fn write_statement(tables: [bool; 9]) -> String {
    let mut parts: Vec<String> = vec![];
    let mut next = 1;
    if tables[0] {
        parts.push(
            "INSERT INTO events (session_id, session_seq, run_id, seq, command_id, type, payload, digest, hash, created_at)
             SELECT * FROM UNNEST($1::text[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::text[],
                 $8::bytea[], $9::bytea[], $10::bigint[])"
                .into(),
        );
        next += 10;
    }
    let mut add = |touched: bool, upsert: fn(usize) -> String, columns: usize| {
        if touched {
            parts.push(upsert(next));
            next += columns;
        }
    };
    add(tables[1], upsert_rows::<Session>, Session::COLUMNS.len());
    add(tables[2], upsert_rows::<Run>, Run::COLUMNS.len());
    add(tables[3], upsert_rows::<Lease>, Lease::COLUMNS.len());
    add(tables[4], upsert_rows::<Command>, Command::COLUMNS.len());
    add(tables[5], upsert_rows::<PermissionRequest>, PermissionRequest::COLUMNS.len());
    add(tables[6], upsert_rows::<RunnerJob>, RunnerJob::COLUMNS.len());
    add(tables[7], upsert_rows::<Batch>, Batch::COLUMNS.len());
    if tables[8] {
        parts.push(format!(
            "DELETE FROM append_batches b USING UNNEST(${next}::text[], ${}::bigint[]) AS k (run_id, epoch)
             WHERE b.run_id = k.run_id AND b.lease_epoch < k.epoch",
            next + 1
        ));
    }
    let mut sql = String::from("WITH ");
    for (index, part) in parts.iter().enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        write!(sql, "{comma}w{index} AS ({part})").expect("writing to a string");
    }
    sql + " SELECT 1"
}

fn bind_events<'q>(query: PgQuery<'q>, changes: &Changes<'q>) -> PgQuery<'q> {
    let events = &changes.events;
    query
        .bind(events.iter().map(|e| e.session.to_string()).collect::<Vec<_>>())
        .bind(events.iter().map(|e| e.session_seq).collect::<Vec<_>>())
        .bind(events.iter().map(|e| e.run.map(|(run_id, _)| run_id.to_string())).collect::<Vec<_>>())
        .bind(events.iter().map(|e| e.run.map(|(_, seq)| seq)).collect::<Vec<_>>())
        .bind(events.iter().map(|e| e.command_id.map(|id| id.to_string())).collect::<Vec<_>>())
        .bind(events.iter().map(|e| e.event_type.as_str()).collect::<Vec<_>>())
        .bind(events.iter().map(|e| e.payload.as_deref()).collect::<Vec<_>>())
        .bind(events.iter().map(|e| &e.digest[..]).collect::<Vec<_>>())
        .bind(events.iter().map(|e| &e.hash[..]).collect::<Vec<_>>())
        .bind(events.iter().map(|e| e.created_at.as_microsecond()).collect::<Vec<_>>())
}

/// One array per column.
fn bind_records<'q, R: Record>(mut query: PgQuery<'q>, records: &[&R]) -> PgQuery<'q> {
    if records.is_empty() {
        return query;
    }
    let mut rows: Vec<_> = records.iter().map(|record| record.encode().into_iter()).collect();
    for (_, kind) in R::COLUMNS {
        let column = rows.iter_mut().map(|row| row.next().expect("as many values as columns"));
        query =
            match kind {
                Kind::Text => {
                    query.bind(column.map(|v| if let Value::Text(text) = v { text } else { None }).collect::<Vec<_>>())
                }
                Kind::Int => query
                    .bind(column.map(|v| if let Value::Int(number) = v { number } else { None }).collect::<Vec<_>>()),
                Kind::Bytes => query
                    .bind(column.map(|v| if let Value::Bytes(bytes) = v { bytes } else { None }).collect::<Vec<_>>()),
            };
    }
    query
}
