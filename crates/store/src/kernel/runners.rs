//! Runners.

use ostler_protocol::kernel::runners::Runner;

use crate::{
    db::Db,
    error::StoreError,
    record::{self, Record, Statement, record, replace_stored},
};

record! {
    Runner, runner in "runners";
    key {
        runner_id: text;
    }
    fixed {
        registered_at: time;
    }
    state {
        tenant_id: opt_text;
        run_id: opt_text;
        backend_profile: text;
        placement: raw_json;
        capabilities: raw_json;
        heartbeat_at: time;
    }
}

/// Registers a runner, or registers it again. `None`: another tenant has a runner of this name.
pub async fn insert(db: &Db, runner: &Runner) -> Result<Option<Runner>, StoreError> {
    let again = format!(
        "{} WHERE runners.tenant_id IS NOT DISTINCT FROM excluded.tenant_id RETURNING {}",
        replace_stored::<Runner>(),
        Runner::NAMES
    );
    let Statement { sql, args, .. } = record::insert(runner, vec![], &again);
    Ok(db.write(sql, args, Runner::decode).await?.pop())
}
