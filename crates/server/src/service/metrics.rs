//! The metrics page: what was counted, and what has to be looked up.

use ostler_protocol::Failure;
use ostler_store as store;

use crate::{
    app::{App, store_failure},
    metrics::{self, Gauges},
};

pub async fn page(app: &App) -> Result<String, Failure> {
    let (waiting_requests, waiting_bytes) = app.lanes.waiting();
    let (jobs_pending, jobs_running) = store::runner_jobs::count_open(&app.db).await.map_err(store_failure)?;
    let gauges = Gauges {
        draining: app.is_draining(),
        waiting_requests,
        waiting_bytes,
        followers: app.followers.count(),
        sockets: app.live.count(),
        mesh_sockets: app.config.limits.sockets_max.saturating_sub(app.mesh.sockets.available_permits()),
        mesh_connections: app.mesh.connections.count(),
        mesh_pushes: app.mesh.connections.pushed(),
        deliveries_waiting: store::webhooks::count_waiting(&app.db).await.map_err(store_failure)?,
        leases: store::leases::count_held(&app.db).await.map_err(store_failure)?,
        jobs_pending,
        jobs_running,
        manifest_computations: app.manifests.computed(),
    };
    Ok(metrics::page(&app.metrics, &gauges))
}
