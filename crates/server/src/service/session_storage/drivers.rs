//! Chooses the driver for the storage of a session. A server makes storage of the kind that its runners reach, and can have
//! sessions with storage of another kind, from a time when it had another launcher.

use ostler_protocol::kernel::session_storage::StorageKind;

use super::{directory::DirectoryDriver, driver::StorageDriver};
use crate::app::App;

/// The driver for storage that runners of this server reach.
pub(super) fn of_runners(app: &App) -> Box<dyn StorageDriver + '_> {
    // Only a server whose runners are Jobs has a cluster.
    claims(app).unwrap_or_else(|| directories(app))
}

/// The driver for storage of a kind. `None` if the server has none.
pub(super) fn of_kind(app: &App, kind: StorageKind) -> Option<Box<dyn StorageDriver + '_>> {
    match kind {
        StorageKind::Local => Some(directories(app)),
        StorageKind::Pvc => claims(app),
        StorageKind::None | StorageKind::Evicted => None,
    }
}

pub(super) fn all(app: &App) -> Vec<Box<dyn StorageDriver + '_>> {
    [Some(directories(app)), claims(app)].into_iter().flatten().collect()
}

fn directories(app: &App) -> Box<dyn StorageDriver + '_> {
    Box::new(DirectoryDriver(app))
}

/// `None` if the server has no cluster.
#[cfg(feature = "kubernetes")]
fn claims(app: &App) -> Option<Box<dyn StorageDriver + '_>> {
    let kubernetes = app.state::<crate::kubernetes::KubernetesState>().get()?;
    Some(Box::new(super::claims::ClaimDriver { kubernetes, section: &app.config.kubernetes }))
}

#[cfg(not(feature = "kubernetes"))]
fn claims(_: &App) -> Option<Box<dyn StorageDriver + '_>> {
    None
}
