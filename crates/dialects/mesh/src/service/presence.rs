//! Who is connected, whichever server they came to. A connection is written down before it is looked who else of its agent is
//! there; two that clash and come at the same moment may both be refused, and never both be taken. Whoever is in the way of
//! another by its very place is asked whether it is still there.

use std::{collections::HashSet, time::Duration};

use ostler_protocol::{
    Failure,
    mesh::{
        Aid,
        connections::{Live, Place, Refused, admit},
    },
};
use ostler_store::mesh::presence::{self as store, Seat};
use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    time::{sleep, timeout},
};

use crate::{
    gateway::connections::ConnectionId,
    state::Mesh,
    topics::{PROBE, SETTLED, place_key},
};
use ostler_server::app::App;

/// What a probe may take beyond the time to answer it: words between servers, a write that is under way. With that, it ends
/// before the 10 s that the published client waits for an answer.
const PROBE_SLACK: Duration = Duration::from_secs(4);
/// How often another server is asked about a place, while it says nothing of it.
const ASKED_AGAIN: Duration = Duration::from_millis(500);

fn seat(app: &App, id: ConnectionId) -> Seat {
    Seat { server: app.server_number, number: id as i64 }
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
    store::insert(&app.db, seat(app, id), aid, live).await?;
    let here = Mesh::of(app).connections.of(aid).into_iter().filter(|one| one.id != id).map(|one| one.live);
    let elsewhere = store::list_elsewhere(&app.db, aid, app.server_number).await?;
    let admitted = admit(live, &here.chain(elsewhere).collect::<Vec<_>>());
    if admitted.is_err() {
        // At once, so that nobody else clashes with one that was not taken.
        store::delete(&app.db, seat(app, id)).await?;
    }
    Ok(admitted)
}

/// Asks whoever has this very place, here or elsewhere, whether it is still there. Resolves when that is settled: it was heard
/// of, has left, or nobody knows.
pub async fn probe(app: &App, aid: &Aid, place: &Place) {
    // Legacy connections share a place, and are in nobody's way.
    if place.device_id.is_empty() {
        return;
    }
    if let Some((_, outbox)) = Mesh::of(app).connections.at(aid, place) {
        wait(app, outbox.probe()).await;
        return;
    }
    if !app.has_others() {
        return;
    }
    let mut settled = Mesh::of(app).connections.settled_elsewhere.subscribe();
    let asked = async {
        // Whoever had left before it was asked after says nothing, and what is said may not be heard.
        while is_taken_elsewhere(app, aid, place).await.unwrap_or(true) {
            app.wake_others(&PROBE, &place_key(aid, place));
            if timeout(ASKED_AGAIN, said_of(&mut settled, aid, place)).await.is_ok() {
                break;
            }
        }
    };
    wait(app, asked).await;
}

/// Resolves when another server says that it is settled whether somebody is there.
async fn said_of(settled: &mut Receiver<(Aid, Place)>, aid: &Aid, place: &Place) {
    loop {
        match settled.recv().await {
            Ok((one, at)) if one == *aid && at == *place => return,
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

async fn is_taken_elsewhere(app: &App, aid: &Aid, place: &Place) -> Result<bool, Failure> {
    let elsewhere = store::list_elsewhere(&app.db, aid, app.server_number).await?;
    Ok(elsewhere.iter().any(|live| live.place == *place))
}

/// The same, asked by another server. Whoever has not got the place says nothing.
pub async fn answer_probe(app: App, aid: Aid, place: Place) {
    let Some((id, outbox)) = Mesh::of(&app).connections.at(&aid, &place) else { return };
    wait(&app, outbox.probe()).await;
    let is_there = Mesh::of(&app).connections.at(&aid, &place).is_some_and(|(now, _)| now == id);
    // Before it is said that it has left.
    if !is_there && let Err(error) = store::delete(&app.db, seat(&app, id)).await {
        tracing::warn!(%error, "the other servers believe that somebody is here who has left");
    }
    app.wake_others(&SETTLED, &place_key(&aid, &place));
}

/// Until a probe is settled, or too late.
async fn wait(app: &App, settled: impl Future<Output = ()>) {
    tokio::select! {
        () = settled => {}
        () = sleep(Duration::from_millis(app.config.limits.socket_probe_ms) + PROBE_SLACK) => {}
        () = app.drained() => {}
    }
}

pub async fn is_online(app: &App, aid: &Aid) -> Result<bool, Failure> {
    if Mesh::of(app).connections.is_online(aid) || !app.db.multi_replica() {
        return Ok(Mesh::of(app).connections.is_online(aid));
    }
    let elsewhere = store::list_elsewhere(&app.db, aid, app.server_number).await?;
    Ok(!elsewhere.is_empty())
}

/// Writes down everybody who is here: others may have taken this server for gone while it did not listen.
pub async fn store_all(app: &App) -> Result<(), Failure> {
    for (aid, one) in Mesh::of(app).connections.all() {
        store::insert(&app.db, seat(app, one.id), &aid, &one.live).await?;
    }
    Ok(())
}

/// Takes out whoever has left, as they leave.
pub async fn run(app: &App) {
    loop {
        for id in Mesh::of(app).connections.left().await {
            if app.db.multi_replica()
                && let Err(error) = store::delete(&app.db, seat(app, id)).await
            {
                tracing::warn!(%error, "the other servers believe that somebody is here who has left");
            }
        }
    }
}

/// Forgets whom servers had that are gone, and who has left this one without being taken out.
pub async fn sweep(app: &App) -> Result<(), Failure> {
    if !app.db.multi_replica() {
        return Ok(());
    }
    // In this order: whoever comes meanwhile is here before it is written down.
    let written = store::list_numbers(&app.db, app.server_number).await?;
    let here: HashSet<i64> =
        Mesh::of(app).connections.all().into_iter().map(|(_, one)| seat(app, one.id).number).collect();
    for number in written.into_iter().filter(|number| !here.contains(number)) {
        store::delete(&app.db, Seat { server: app.server_number, number }).await?;
    }
    Ok(store::delete_gone(&app.db, app.server_number).await?)
}
