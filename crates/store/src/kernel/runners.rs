//! Runners.

use ostler_protocol::kernel::runners::Runner;

use crate::{
    db::{Db, StoreError},
    record::{Reader, Value},
};

fn decode(row: &mut Reader<'_>) -> Result<Runner, StoreError> {
    Ok(Runner {
        runner_id: row.text()?,
        tenant_id: row.opt_text()?,
        run_id: row.opt_text()?,
        backend_profile: row.text()?,
        placement: row.raw_json()?,
        capabilities: row.raw_json()?,
        registered_at: row.time()?,
        heartbeat_at: row.time()?,
    })
}

/// Registers a runner, or registers it again. `None`: another tenant has a runner of this name.
pub async fn insert(db: &Db, runner: &Runner) -> Result<Option<Runner>, StoreError> {
    let sql = "INSERT INTO runners (runner_id, tenant_id, run_id, backend_profile, placement, capabilities, registered_at, heartbeat_at)
        VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
        ON CONFLICT (runner_id) DO UPDATE SET tenant_id = excluded.tenant_id, run_id = excluded.run_id,
            backend_profile = excluded.backend_profile, placement = excluded.placement,
            capabilities = excluded.capabilities, heartbeat_at = excluded.heartbeat_at
        WHERE runners.tenant_id IS NOT DISTINCT FROM excluded.tenant_id
        RETURNING runner_id, tenant_id, run_id, backend_profile, placement, capabilities, registered_at, heartbeat_at";
    let args: Vec<Value> = vec![
        runner.runner_id.as_str().into(),
        runner.tenant_id.clone().into(),
        runner.run_id.clone().into(),
        runner.backend_profile.as_str().into(),
        (&runner.placement).into(),
        (&runner.capabilities).into(),
        runner.registered_at.into(),
        runner.heartbeat_at.into(),
    ];
    Ok(db.write(sql, args, decode).await?.pop())
}
