//! Provider profiles: which run tried which version of a profile's secret, and who changed what. The secrets themselves
//! are never here.

use ostler_protocol::{
    cursors::Cursor,
    ids::ValidationId,
    kernel::provider_profiles::{ProfileAction, ProfileChange, Validation, ValidationRecord},
};

use crate::{
    db::Db,
    error::StoreError,
    record::{self, Reader, Record, Value, columns, json, record, text},
};

record! {
    ValidationRecord, record in "provider_validations";
    key {
        validation_id: id;
    }
    fixed {
        profile: text;
        tenant_id: opt_text;
        resource_version: opt_text;
        run_id: id;
        command_id: id;
        runner_job_id: id;
        created_at: time;
    }
    state {}
}

record! {
    ProfileChange, change in "provider_profile_changes";
    key {
        change_id: id;
    }
    fixed {
        profile: text;
        tenant_id: opt_text;
        action: named(ProfileAction);
        by = "changed_by": text;
        fields: json;
        credential_dropped: flag;
        resource_version: opt_text;
        created_at: time;
    }
    state {}
}

fn decode(row: &mut Reader<'_>) -> Result<Validation, StoreError> {
    Ok(Validation::of(ValidationRecord::decode(row)?, row.at("terminal")?.opt_json()?))
}

/// The first record of a run is final.
pub async fn insert(db: &Db, record: &ValidationRecord) -> Result<(), StoreError> {
    db.execute_statement(record::insert(record, vec![], "ON CONFLICT (validation_id) DO NOTHING")).await
}

pub async fn get(db: &Db, id: ValidationId) -> Result<Option<Validation>, StoreError> {
    let sql = format!(
        "SELECT {}, c.terminal AS terminal FROM provider_validations AS v JOIN commands AS c ON c.command_id = v.command_id
         WHERE v.validation_id = $1",
        columns::<ValidationRecord>("v")
    );
    db.read_one(sql, vec![text(id)], decode).await
}

/// The latest of each owner's profiles.
pub async fn list_latest(db: &Db) -> Result<Vec<Validation>, StoreError> {
    let sql = format!(
        "SELECT {}, c.terminal AS terminal FROM provider_validations AS v JOIN commands AS c ON c.command_id = v.command_id
         WHERE v.validation_id = (SELECT w.validation_id FROM provider_validations AS w WHERE w.profile = v.profile
             AND COALESCE(w.tenant_id, '') = COALESCE(v.tenant_id, '')
             ORDER BY w.created_at DESC, w.validation_id{} DESC LIMIT 1)",
        columns::<ValidationRecord>("v"),
        db.byte_order()
    );
    db.read(sql, vec![], decode).await
}

pub async fn insert_change(db: &Db, change: &ProfileChange) -> Result<(), StoreError> {
    db.execute_statement(record::insert(change, vec![], "")).await
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
    let rest = format!("{filter} ORDER BY created_at DESC, change_id{order} DESC LIMIT ${}", args.len());
    db.select(&rest, args).await
}
