//! The storage of a session, for the pod that is about to be created.

use ostler_protocol::{
    ids::SessionId,
    kernel::session_storage::{StorageKind, StoragePlace, evicted},
};

use crate::{
    app::App,
    kubernetes::{Kubernetes, claims::MOUNT_PATH, job_manifest::ClaimedStorage},
    service::session_storage::{
        self,
        claims::{ClaimDriver, ClaimError},
    },
};

/// The volume claim that a pod mounts. It is created if there is none yet. `None` if the session has no storage and its backend
/// keeps no files. Fails with `session-store-evicted` if the claim is gone although an agent has used it.
pub(super) async fn claimed(
    app: &App,
    kubernetes: &Kubernetes,
    id: SessionId,
    keeps_files: bool,
) -> Result<Option<ClaimedStorage>, ClaimError> {
    let claims = ClaimDriver { kubernetes, section: &app.config.kubernetes };
    let session = match keeps_files {
        true => session_storage::assign(app, id, claims.place_of(id)).await?,
        false => session_storage::read(app, id).await?,
    };
    let place = session.storage.place().filter(|place| place.kind() == StorageKind::Pvc);
    let Some(place) = place else {
        // Such a backend does not need what the session has kept elsewhere.
        session.storage.check()?;
        return Ok(None);
    };
    let is_used = session.storage.is_used();
    let found = match is_used || kubernetes.cache.has_claim(id) {
        true => claims.find(id, &place).await?,
        false => None,
    };
    match found {
        Some(_) => {}
        None if is_used => return Err(evicted().into()),
        None => drop(claims.create(id, &place).await?),
    }
    let StoragePlace::Claim { name, namespace } = place else { return Ok(None) };
    Ok(Some(ClaimedStorage { claim_name: name, namespace, mount_path: MOUNT_PATH.to_owned() }))
}
