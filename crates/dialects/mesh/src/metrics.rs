//! Metrics of the mesh.

mod sends;
pub(crate) use sends::Sends;

use ostler_server::dialect::Metric;

use super::state::Mesh;

pub(crate) const ALL: &[Metric] = &[
    Metric::gauge(
        "ostler_mesh_sockets",
        "Connections to the mesh's gateway on this server, including unauthenticated ones.",
        |app, samples| {
            let free = Mesh::of(app).sockets.available_permits();
            samples.add(app.config.limits.sockets_max.saturating_sub(free) as i64);
        },
    ),
    Metric::gauge(
        "ostler_mesh_connections",
        "Connections of identities to the mesh's gateway on this server, after `auth.connect`.",
        |app, samples| samples.add(Mesh::of(app).connections.count() as i64),
    ),
    Metric::counter(
        "ostler_mesh_sends_total",
        "status",
        "Messages that identities sent through this server, by status.",
        |app, samples| Mesh::of(app).sends.each(|status, count| samples.add_labelled("status", status, count)),
    ),
    Metric::counter("ostler_mesh_pushes_total", "", "Messages sent to connections of this server.", |app, samples| {
        samples.add(Mesh::of(app).connections.pushed() as i64)
    }),
];
