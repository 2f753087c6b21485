//! Who is connected, whichever server they came to. A connection is written down before it is looked who else of its agent is
//! there; two that clash and come at the same moment may both be refused, and never both be taken.

use ostler_protocol::{
    Failure,
    mesh::{
        Aid,
        connections::{Live, Refused, admit},
    },
};
use ostler_store::mesh_presence::{self as store, Seat};

use crate::{
    app::{App, store_failure},
    gateway::connections::ConnectionId,
};

fn seat(app: &App, id: ConnectionId) -> Seat {
    Seat { server: app.mesh.server, number: id as i64 }
}

/// Whether a connection that has its place here may have it beside those elsewhere, too. One that may not gives it back.
pub async fn admit_beside_others(
    app: &App,
    aid: &Aid,
    id: ConnectionId,
    live: &Live,
) -> Result<Result<(), Refused>, Failure> {
    if !app.db.multi_replica() {
        return Ok(Ok(()));
    }
    store::insert(&app.db, seat(app, id), aid, live).await.map_err(store_failure)?;
    let here = app.mesh.connections.of(aid).into_iter().filter(|one| one.id != id).map(|one| one.live);
    let elsewhere = store::list_elsewhere(&app.db, aid, app.mesh.server).await.map_err(store_failure)?;
    let admitted = admit(live, &here.chain(elsewhere).collect::<Vec<_>>());
    if admitted.is_err() {
        // At once, so that nobody else clashes with one that was not taken.
        store::delete(&app.db, seat(app, id)).await.map_err(store_failure)?;
    }
    Ok(admitted)
}

pub async fn is_online(app: &App, aid: &Aid) -> Result<bool, Failure> {
    if app.mesh.connections.is_online(aid) || !app.db.multi_replica() {
        return Ok(app.mesh.connections.is_online(aid));
    }
    let elsewhere = store::list_elsewhere(&app.db, aid, app.mesh.server).await.map_err(store_failure)?;
    Ok(!elsewhere.is_empty())
}

/// Writes down everybody who is here: others may have taken this server for gone while it did not listen.
pub async fn tell_all(app: &App) -> Result<(), Failure> {
    for (aid, one) in app.mesh.connections.all() {
        store::insert(&app.db, seat(app, one.id), &aid, &one.live).await.map_err(store_failure)?;
    }
    Ok(())
}

/// Takes out whoever has left, as they leave.
pub async fn run(app: &App) {
    loop {
        for id in app.mesh.connections.left().await {
            if app.db.multi_replica()
                && let Err(error) = store::delete(&app.db, seat(app, id)).await
            {
                tracing::warn!(%error, "the other servers believe that somebody is here who has left");
            }
        }
    }
}

/// Forgets whom servers had that are gone.
pub async fn sweep(app: &App) -> Result<(), Failure> {
    if !app.db.multi_replica() {
        return Ok(());
    }
    store::delete_gone(&app.db, app.mesh.server).await.map_err(store_failure)
}
