//! Metrics of the mesh.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ostler_protocol::mesh::messages::SendStatus;

use super::state::Mesh;
use ostler_server::dialect::Metric;

pub const ALL: &[Metric] = &[
    Metric::gauge(
        "ostler_mesh_sockets",
        "Connections to the mesh's gateway on this server, also those that have said nothing yet.",
        |app, samples| {
            let free = Mesh::of(app).sockets.available_permits();
            samples.add(app.config.limits.sockets_max.saturating_sub(free) as i64);
        },
    ),
    Metric::gauge(
        "ostler_mesh_connections",
        "Connections of agents to the mesh's gateway on this server, after `auth.connect`.",
        |app, samples| samples.add(Mesh::of(app).connections.count() as i64),
    ),
    Metric::counter(
        "ostler_mesh_sends_total",
        "status",
        "Messages that agents sent through this server, by what was answered.",
        |app, samples| Mesh::of(app).sends.each(|status, count| samples.add_labelled("status", status, count)),
    ),
    Metric::counter(
        "ostler_mesh_pushes_total",
        "",
        "Messages that were given to a connection of this server.",
        |app, samples| samples.add(Mesh::of(app).connections.pushed() as i64),
    ),
];

/// Messages sent, by status.
#[derive(Default)]
pub struct Sends([AtomicU64; STATUSES.len()]);

const STATUSES: [(SendStatus, &str); 3] =
    [(SendStatus::Sent, "sent"), (SendStatus::Delivered, "delivered"), (SendStatus::Duplicate, "duplicate")];

impl Sends {
    pub fn count(&self, status: SendStatus) {
        if let Some(at) = STATUSES.iter().position(|(known, _)| *known == status) {
            self.0[at].fetch_add(1, Relaxed);
        }
    }

    fn each(&self, mut write: impl FnMut(&str, u64)) {
        STATUSES.iter().zip(&self.0).for_each(|((_, name), count)| write(name, count.load(Relaxed)));
    }
}
