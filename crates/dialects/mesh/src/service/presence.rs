//! Which identities are connected, to any server. A connection is stored before the other connections of its identity are read,
//! so two conflicting connections that arrive at the same moment may both be rejected, and are never both admitted. A connection
//! whose device slot another one requests is probed.

use std::{collections::HashSet, time::Duration};

use ostler_protocol::{
    Failure,
    mesh::{
        Aid,
        connections::{DeviceSlot, Live, Refused, admit},
    },
};
use ostler_store::mesh::presence::{self as store, ConnectionKey};
use tokio::{
    sync::broadcast::{Receiver, error::RecvError},
    time::{sleep, timeout},
};

use crate::{gateway::connections::ConnectionId, legacy_wakeups, state::Mesh};
use ostler_server::{app::App, dialect::Topic};

/// What a probe may take beyond the peer's time to respond: wake-ups between servers, a write in progress. With that, it ends
/// before the 10 s that the published client waits for a response.
const PROBE_SLACK: Duration = Duration::from_secs(4);
/// How often a probe is sent to the other servers again, until one responds.
const PROBE_RESEND_INTERVAL: Duration = Duration::from_millis(500);

fn connection_key(app: &App, id: ConnectionId) -> ConnectionKey {
    ConnectionKey { server: app.server_number, number: id as i64 }
}

/// Checks a connection that was admitted on this server against those on other servers, too, and stores it if it is admitted.
pub(crate) async fn admit_beside_others(
    app: &App,
    aid: &Aid,
    id: ConnectionId,
    live: &Live,
) -> Result<Result<(), Refused>, Failure> {
    if !app.db.multi_replica() {
        return Ok(Ok(()));
    }
    store::insert(&app.db, connection_key(app, id), aid, live).await?;
    let here = Mesh::of(app).connections.of(aid).into_iter().filter(|one| one.id != id).map(|one| one.live);
    let elsewhere = store::list_elsewhere(&app.db, aid, app.server_number).await?;
    let admitted = admit(live, &here.chain(elsewhere).collect::<Vec<_>>());
    if admitted.is_err() {
        // At once, so that no other connection conflicts with a rejected one.
        store::delete(&app.db, connection_key(app, id)).await?;
    }
    Ok(admitted)
}

/// Probes the connection that has exactly this device slot, on this server or another. Resolves when the connection has
/// responded or closed, or when the time is over.
pub(crate) async fn probe(app: &App, aid: &Aid, place: &DeviceSlot) {
    // Legacy connections share a device slot, and conflict with none.
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
    let probed = async {
        // A server whose connection had closed before does not respond, and a response may be lost.
        while is_occupied_elsewhere(app, aid, place).await.unwrap_or(true) {
            PROBE.wake_others(app, &place_key(aid, place));
            if timeout(PROBE_RESEND_INTERVAL, wait_settled(&mut settled, aid, place)).await.is_ok() {
                break;
            }
        }
    };
    wait(app, probed).await;
}

/// Resolves when another server reports that its probe of this device slot has ended.
async fn wait_settled(settled: &mut Receiver<(Aid, DeviceSlot)>, aid: &Aid, place: &DeviceSlot) {
    loop {
        match settled.recv().await {
            Ok((settled_aid, at)) if settled_aid == *aid && at == *place => return,
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

async fn is_occupied_elsewhere(app: &App, aid: &Aid, place: &DeviceSlot) -> Result<bool, Failure> {
    let elsewhere = store::list_elsewhere(&app.db, aid, app.server_number).await?;
    Ok(elsewhere.iter().any(|live| live.place == *place))
}

/// Probes a connection for another server. A server without a connection in this device slot does not respond.
pub(crate) async fn answer_probe(app: App, aid: Aid, place: DeviceSlot) {
    let Some((id, outbox)) = Mesh::of(&app).connections.at(&aid, &place) else { return };
    wait(&app, outbox.probe()).await;
    let is_there = Mesh::of(&app).connections.at(&aid, &place).is_some_and(|(now, _)| now == id);
    // Before the other server is notified that the connection has closed.
    if !is_there && let Err(error) = store::delete(&app.db, connection_key(&app, id)).await {
        tracing::warn!(%error, "a stale presence row could not be deleted");
    }
    SETTLED.wake_others(&app, &place_key(&aid, &place));
}

/// Waits until a probe has ended, or its time is over.
async fn wait(app: &App, settled: impl Future<Output = ()>) {
    tokio::select! {
        () = settled => {}
        () = sleep(Duration::from_millis(app.config.limits.socket_probe_ms) + PROBE_SLACK) => {}
        () = app.drained() => {}
    }
}

pub(crate) async fn is_online(app: &App, aid: &Aid) -> Result<bool, Failure> {
    if Mesh::of(app).connections.is_online(aid) || !app.db.multi_replica() {
        return Ok(Mesh::of(app).connections.is_online(aid));
    }
    let elsewhere = store::list_elsewhere(&app.db, aid, app.server_number).await?;
    Ok(!elsewhere.is_empty())
}

/// Stores all connections of this server: while it did not listen, others may have taken it for stopped and deleted its rows.
pub(crate) async fn store_all(app: &App) -> Result<(), Failure> {
    for (aid, one) in Mesh::of(app).connections.all() {
        store::insert(&app.db, connection_key(app, one.id), &aid, &one.live).await?;
    }
    Ok(())
}

/// Deletes the rows of connections as they close.
pub(crate) async fn run(app: &App) {
    loop {
        for id in Mesh::of(app).connections.closed().await {
            if app.db.multi_replica()
                && let Err(error) = store::delete(&app.db, connection_key(app, id)).await
            {
                tracing::warn!(%error, "a stale presence row could not be deleted");
            }
        }
    }
}

/// Deletes the rows of servers that have stopped, and of this server's connections that have closed.
pub(crate) async fn sweep(app: &App) -> Result<(), Failure> {
    if !app.db.multi_replica() {
        return Ok(());
    }
    // In this order: a connection that arrives in the meantime is in memory before it is stored.
    let stored = store::list_numbers(&app.db, app.server_number).await?;
    let live: HashSet<i64> =
        Mesh::of(app).connections.all().into_iter().map(|(_, one)| connection_key(app, one.id).number).collect();
    for number in stored.into_iter().filter(|number| !live.contains(number)) {
        store::delete(&app.db, ConnectionKey { server: app.server_number, number }).await?;
    }
    Ok(store::delete_gone(&app.db, app.server_number).await?)
}

/// Another server probes the connection in a device slot.
pub(crate) const PROBE: Topic =
    Topic::new("mesh.probe", wake_probe, |_| {}).urgent().legacy(|word| legacy_wakeups::urgent_key(word, '?'));

/// The probe of the connection in a device slot has ended.
pub(crate) const SETTLED: Topic =
    Topic::new("mesh.settled", wake_settled, |_| {}).urgent().legacy(|word| legacy_wakeups::urgent_key(word, '='));

/// The key of an identity's device slot.
pub(crate) fn place_key(aid: &Aid, DeviceSlot { device_id, slot_id }: &DeviceSlot) -> String {
    format!("{device_id}/{slot_id}/{aid}")
}

fn place(key: &str) -> Option<(Aid, DeviceSlot)> {
    let mut parts = key.splitn(3, '/');
    let (device_id, slot_id) = (parts.next()?.to_owned(), parts.next()?.to_owned());
    Some((parts.next()?.parse().ok()?, DeviceSlot { device_id, slot_id }))
}

fn wake_probe(app: &App, key: &str) {
    if let Some((aid, place)) = place(key) {
        tokio::spawn(answer_probe(app.clone(), aid, place));
    }
}

fn wake_settled(app: &App, key: &str) {
    if let Some(settled) = place(key) {
        // Ignore the error: no probe may be waiting for it on this server.
        let _ = Mesh::of(app).connections.settled_elsewhere.send(settled);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_of_a_device_slot_is_parsed_as_it_was_formatted() {
        let aid: Aid = "alice.localhost.test".parse().unwrap();
        let at = DeviceSlot { device_id: "d".into(), slot_id: String::new() };
        assert_eq!(place(&place_key(&aid, &at)), Some((aid, at)));
    }
}
