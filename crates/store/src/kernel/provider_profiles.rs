//! Provider profiles: which run tried which version of a profile's secret, and who changed what. The secrets themselves
//! are never here.

use ostler_protocol::{
    cursors::Cursor,
    ids::ValidationId,
    kernel::provider_profiles::{ProfileAction, ProfileChange, Validation, ValidationRecord},
};

use crate::{
    db::{Db, StoreError},
    record::{Reader, Value, json, opt_text, text},
};

const COLUMNS: &str = "v.validation_id, v.profile, v.tenant_id, v.resource_version, v.run_id, v.command_id, v.runner_job_id, v.created_at";

fn decode(row: &mut Reader<'_>) -> Result<Validation, StoreError> {
    let record = ValidationRecord {
        validation_id: row.id()?,
        profile: row.text()?,
        tenant_id: row.opt_text()?,
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
        (validation_id, profile, tenant_id, resource_version, run_id, command_id, runner_job_id, created_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT (validation_id) DO NOTHING";
    let args = vec![
        text(record.validation_id),
        record.profile.as_str().into(),
        opt_text(record.tenant_id.as_deref()),
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

/// The latest of each owner's profiles.
pub async fn list_latest(db: &Db) -> Result<Vec<Validation>, StoreError> {
    let sql = format!(
        "SELECT {COLUMNS}, c.terminal FROM provider_validations AS v JOIN commands AS c ON c.command_id = v.command_id
         WHERE v.validation_id = (SELECT w.validation_id FROM provider_validations AS w WHERE w.profile = v.profile
             AND COALESCE(w.tenant_id, '') = COALESCE(v.tenant_id, '')
             ORDER BY w.created_at DESC, w.validation_id{} DESC LIMIT 1)",
        db.byte_order()
    );
    db.read(sql, vec![], decode).await
}

const CHANGE_COLUMNS: &str =
    "change_id, profile, tenant_id, action, changed_by, fields, credential_dropped, resource_version, created_at";

fn decode_change(row: &mut Reader<'_>) -> Result<ProfileChange, StoreError> {
    Ok(ProfileChange {
        change_id: row.id()?,
        profile: row.text()?,
        tenant_id: row.opt_text()?,
        action: row.named(ProfileAction::parse)?,
        by: row.text()?,
        fields: row.json()?,
        credential_dropped: row.flag()?,
        resource_version: row.opt_text()?,
        created_at: row.time()?,
    })
}

pub async fn insert_change(db: &Db, change: &ProfileChange) -> Result<(), StoreError> {
    let sql =
        format!("INSERT INTO provider_profile_changes ({CHANGE_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)");
    let args = vec![
        text(change.change_id),
        change.profile.as_str().into(),
        opt_text(change.tenant_id.as_deref()),
        change.action.as_str().into(),
        change.by.as_str().into(),
        json(&change.fields),
        change.credential_dropped.into(),
        opt_text(change.resource_version.as_deref()),
        change.created_at.into(),
    ];
    db.execute(sql, args).await
}

/// Whose profiles' changes are listed.
#[derive(Clone, Debug)]
pub enum Owners {
    All,
    Operator,
    Tenants(Vec<String>),
}

/// Changes, newest first.
pub async fn list_changes(
    db: &Db,
    owners: &Owners,
    profile: Option<&str>,
    after: Option<&Cursor>,
    limit: u32,
) -> Result<Vec<ProfileChange>, StoreError> {
    let (mut args, mut wanted): (Vec<Value>, _) = (vec![], vec![]);
    let order = db.byte_order();
    match owners {
        Owners::All => {}
        Owners::Operator => wanted.push("tenant_id IS NULL".to_owned()),
        Owners::Tenants(tenants) => {
            args.push(json(tenants));
            wanted.push(format!("tenant_id IN (SELECT one FROM {})", db.list(&format!("${}", args.len()))));
        }
    }
    if let Some(profile) = profile {
        args.push(profile.into());
        wanted.push(format!("profile = ${}", args.len()));
    }
    if let Some(cursor) = after {
        args.extend([cursor.created_at_us.into(), cursor.id.as_str().into()]);
        wanted.push(format!("(created_at, change_id{order}) < (${}, ${})", args.len() - 1, args.len()));
    }
    args.push(i64::from(limit).into());
    let filter = if wanted.is_empty() { String::new() } else { format!("WHERE {}", wanted.join(" AND ")) };
    let sql = format!(
        "SELECT {CHANGE_COLUMNS} FROM provider_profile_changes {filter}
         ORDER BY created_at DESC, change_id{order} DESC LIMIT ${}",
        args.len()
    );
    db.read(sql, args, decode_change).await
}
