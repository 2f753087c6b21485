//! Provider profiles: which run tried which version of a profile's secret. The secrets themselves are never here.

use ostler_protocol::{
    ids::ValidationId,
    provider_profiles::{Validation, ValidationRecord},
};

use crate::{
    db::{Db, StoreError},
    record::{Reader, opt_text, text},
};

const COLUMNS: &str =
    "v.validation_id, v.profile, v.resource_version, v.run_id, v.command_id, v.runner_job_id, v.created_at";

fn decode(row: &mut Reader<'_>) -> Result<Validation, StoreError> {
    let record = ValidationRecord {
        validation_id: row.id()?,
        profile: row.text()?,
        resource_version: row.opt_text()?,
        run_id: row.id()?,
        command_id: row.id()?,
        runner_job_id: row.id()?,
        created_at: row.time()?,
    };
    Ok(Validation::of(record, row.opt_json()?))
}

/// The first record of a run stands.
pub async fn insert(db: &Db, record: &ValidationRecord) -> Result<(), StoreError> {
    let sql = "INSERT INTO provider_validations
        (validation_id, profile, resource_version, run_id, command_id, runner_job_id, created_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT (validation_id) DO NOTHING";
    let args = vec![
        text(record.validation_id),
        record.profile.as_str().into(),
        opt_text(record.resource_version.as_deref()),
        text(record.run_id),
        text(record.command_id),
        text(record.runner_job_id),
        record.created_at.into(),
    ];
    db.execute(sql, args).await
}

pub async fn get(db: &Db, id: ValidationId) -> Result<Option<Validation>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS}, c.terminal FROM provider_validations AS v JOIN commands AS c ON c.command_id = v.command_id
         WHERE v.validation_id = $1"
    );
    db.read_one(sql, vec![text(id)], decode).await
}

/// The latest of each profile.
pub async fn list_latest(db: &Db) -> Result<Vec<Validation>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS}, c.terminal FROM provider_validations AS v JOIN commands AS c ON c.command_id = v.command_id
         WHERE v.validation_id = (SELECT w.validation_id FROM provider_validations AS w WHERE w.profile = v.profile
             ORDER BY w.created_at DESC, w.validation_id{} DESC LIMIT 1)",
        db.byte_order()
    );
    db.read(sql, vec![], decode).await
}
