//! Cost that does not grow: reads and writes over stores with few and with many rows of each noun, at the first page and in the
//! middle. The rows are written past the server, because a million requests would take hours and leave the same rows.

mod fill;

use std::time::Duration;

use tokio::time::timeout;

use crate::calls::CREATE_RUN;
use crate::engine::{Bench, Engine};
use crate::http::request;
use crate::machine::{now, since};
use crate::outcome::Outcome;
use crate::report::{Report, median};
use fill::{Store, public_key};

/// Calls of each kind on each store that are not counted.
const WARM_UP: usize = 10;
const FILL_TIMEOUT: Duration = Duration::from_secs(1_800);

/// A call: its name, and its request on a store. No two numbers are the same.
struct Probe {
    name: &'static str,
    request: fn(&Store, usize) -> Vec<u8>,
}

const fn probe(name: &'static str, request: fn(&Store, usize) -> Vec<u8>) -> Probe {
    Probe { name, request }
}

const PROBES: &[Probe] = &[
    probe("events_first", |store, _| store.get(&format!("/api/v1/runs/{}/events?limit=50", store.claimed.run_id))),
    probe("events_middle", |store, _| {
        let (run_id, middle) = (&store.claimed.run_id, store.size.events / 2);
        store.get(&format!("/api/v1/runs/{run_id}/events?limit=50&afterSeq={middle}"))
    }),
    probe("trace_first", |store, _| store.get(&format!("/api/v1/sessions/{}/trace?limit=50", store.session_id))),
    probe("trace_middle", |store, _| {
        let (session_id, middle) = (&store.session_id, store.size.events / 2);
        store.get(&format!("/api/v1/sessions/{session_id}/trace?limit=50&afterSeq={middle}"))
    }),
    probe("append", |store, number| {
        let (run_id, epoch) = (&store.claimed.run_id, store.claimed.lease_epoch);
        let event = r#"{"type":"assistant_delta","payload":{"messageId":"m","delta":"x"}"#;
        let command_id = &store.claimed.command_id;
        let body = format!(
            r#"{{"runnerId":"bench","leaseEpoch":{epoch},"batchNo":{},"events":[{event},"commandId":"{command_id}"}}]}}"#,
            number + 1
        );
        request(&store.server, "POST", &format!("/api/v1/runs/{run_id}/events"), &body)
    }),
    probe("run_get", |store, _| store.get(&format!("/api/v1/runs/{}", store.claimed.run_id))),
    probe("run_create", |store, _| request(&store.server, "POST", "/api/v1/runs", CREATE_RUN)),
    probe("result_get", |store, _| {
        let claimed = &store.claimed;
        store.get(&format!("/api/v1/runs/{}/commands/{}/result", claimed.run_id, claimed.command_id))
    }),
    probe("session_get", |store, _| store.get(&format!("/api/v1/sessions/{}", store.session_id))),
    probe("session_rename", |store, number| {
        let path = format!("/api/v1/sessions/{}", store.session_id);
        request(&store.server, "PATCH", &path, &format!(r#"{{"title":"title {number}"}}"#))
    }),
    probe("session_read", |store, _| {
        request(&store.server, "POST", &format!("/api/v1/sessions/{}/read", store.session_id), "{}")
    }),
    probe("sessions_first", |store, _| store.page("/api/v1/sessions?state=all", false)),
    probe("sessions_middle", |store, _| store.page("/api/v1/sessions?state=all", true)),
    probe("sessions_open", |store, _| store.page("/api/v1/sessions?readerId=bench", false)),
    probe("agents_first", |store, _| store.page("/agents?", false)),
    probe("agents_middle", |store, _| store.page("/agents?", true)),
    probe("agent_get", |store, _| store.get(&format!("/agents/{}", store.agent_id))),
    probe("agent_change", |store, number| {
        let path = format!("/agents/{}", store.agent_id);
        let profile = if number % 2 == 0 { "scripted" } else { "codex" };
        request(&store.server, "PATCH", &path, &format!(r#"{{"backend_profile":"{profile}"}}"#))
    }),
    probe("relations_first", |store, _| store.page("/h2a/relations?", false)),
    probe("relations_middle", |store, _| store.page("/h2a/relations?", true)),
    probe("relation_get", |store, _| store.get(&format!("/h2a/relations/{}", store.relation_id))),
    probe("relation_change", |store, _| {
        let path = format!("/h2a/relations/{}", store.relation_id);
        request(&store.server, "PATCH", &path, r#"{"granted_scopes":["notes:read"]}"#)
    }),
    probe("receipts_first", |store, _| store.get("/h2a/receipts?limit=50")),
    probe("deliveries_first", |store, _| store.page(&format!("/agents/{}/webhook/deliveries?", store.agent_id), false)),
    probe("webhook_get", |store, _| store.get(&format!("/agents/{}/webhook", store.agent_id))),
    probe("tokens_first", |store, _| store.page("/api/v1/tokens?", false)),
    probe("tokens_middle", |store, _| store.page("/api/v1/tokens?", true)),
    probe("token_create", |store, number| {
        let body = format!(r#"{{"name":"bench-{number}","role":"client","tenants":["local"]}}"#);
        request(&store.server, "POST", "/api/v1/tokens", &body)
    }),
    probe("users_first", |store, _| store.page("/api/v1/users?", false)),
    probe("users_middle", |store, _| store.page("/api/v1/users?", true)),
    probe("user_create", |store, number| {
        let body = format!(r#"{{"name":"bench-{number}","timezone":"UTC"}}"#);
        request(&store.server, "POST", "/api/v1/users", &body)
    }),
    probe("identities_first", |store, _| store.page("/api/v1/identities?", false)),
    probe("identities_middle", |store, _| store.page("/api/v1/identities?", true)),
    probe("identity_create", |store, number| {
        // A key that cannot be made gives a request that the server rejects, which ends the measurement.
        let key = public_key(number as u64 + 2).unwrap_or_default();
        let body = format!(r#"{{"aid":"made-{number}.localhost.test","publicKey":"{key}"}}"#);
        request(&store.server, "POST", "/api/v1/identities", &body)
    }),
];

pub async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let mut worst = 0.0_f64;
    for engine in Engine::BOTH {
        let mut stores = vec![];
        for size in bench.sizes.growth {
            stores.push(timeout(FILL_TIMEOUT, Store::fill(bench, engine, size)).await??);
        }
        for probe in PROBES {
            let medians = medians(bench, &mut stores, probe).await?;
            let (few, many) = (medians[0], medians[medians.len() - 1]);
            let name = format!("growth.{}.{}", engine.name(), probe.name);
            let shown: Vec<_> = medians.iter().map(|ms| format!("{ms:.3}")).collect();
            eprintln!("    {name}: {} ms", shown.join(", "));
            report.figure(format!("{name}_ms"), many);
            report.figure(format!("{name}_ratio"), many / few);
            worst = worst.max(many / few);
        }
        for store in stores {
            store.server.stop()?;
        }
    }
    report.figure("growth.ratio_max", worst);
    let sizes = bench.sizes.growth.map(|size| format!("{} events and {} of each noun", size.events, size.items));
    report.note(format!(
        "growth: medians of alternating calls on stores with {}; the ratio of the last to the first, of the call and engine where \
         it is worst",
        sizes.join(", ")
    ));
    Ok(())
}

/// The time of a call on each store in ms.
async fn medians(bench: &Bench, stores: &mut [Store], probe: &Probe) -> Outcome<Vec<f64>> {
    let mut times = vec![vec![]; stores.len()];
    for call in 0..bench.sizes.growth_calls + WARM_UP {
        for (store, times) in stores.iter_mut().zip(&mut times) {
            let request = (probe.request)(store, call);
            let started = now();
            store.connection.call(&request).await?;
            if call >= WARM_UP {
                times.push(since(started).as_secs_f64() * 1e3);
            }
        }
    }
    Ok(times.into_iter().map(median).collect())
}
