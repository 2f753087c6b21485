//! The calls of the growth test. Left out are calls whose work does not depend on a table that grows, such as those of workspaces
//! and tools, and writes that can be made once only for each row, such as revoking.

use super::fill::{AID, CALENDAR_EVENT, Store, public_key};
use crate::calls::CREATE_RUN;
use crate::http::request;

/// A call: its name, and its request on a store. No two numbers are the same.
pub(crate) struct Probe {
    pub name: &'static str,
    pub request: fn(&Store, usize) -> Vec<u8>,
}

const fn probe(name: &'static str, request: fn(&Store, usize) -> Vec<u8>) -> Probe {
    Probe { name, request }
}

pub(crate) const PROBES: &[Probe] = &[
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
    probe("runs_first", |store, _| store.page("/api/v1/runs?", false)),
    probe("runs_middle", |store, _| store.page("/api/v1/runs?", true)),
    probe("runs_waiting", |store, _| store.page("/api/v1/runs?state=waiting", false)),
    // One run of all is running.
    probe("runs_running", |store, _| store.page("/api/v1/runs?state=running", false)),
    probe("runs_of_session", |store, _| store.page(&format!("/api/v1/runs?sessionId={}", store.session_id), false)),
    probe("run_get", |store, _| store.get(&format!("/api/v1/runs/{}", store.claimed.run_id))),
    probe("run_label", |store, number| {
        let path = format!("/api/v1/runs/{}", store.claimed.run_id);
        request(&store.server, "PATCH", &path, &format!(r#"{{"labels":{{"number":"{number}"}}}}"#))
    }),
    probe("run_commands", |store, _| store.get(&format!("/api/v1/runs/{}/commands", store.claimed.run_id))),
    probe("run_jobs", |store, _| store.get(&format!("/api/v1/runs/{}/runner-jobs", store.claimed.run_id))),
    probe("run_permissions", |store, _| store.get(&format!("/api/v1/runs/{}/permissions", store.claimed.run_id))),
    probe("command_get", |store, _| {
        let claimed = &store.claimed;
        store.get(&format!("/api/v1/runs/{}/commands/{}", claimed.run_id, claimed.command_id))
    }),
    probe("run_create", |store, _| request(&store.server, "POST", "/api/v1/runs", CREATE_RUN)),
    probe("result_get", |store, _| {
        let claimed = &store.claimed;
        store.get(&format!("/api/v1/runs/{}/commands/{}/result", claimed.run_id, claimed.command_id))
    }),
    probe("output_first", |store, _| store.get(&format!("/api/v1/sessions/{}/output?limit=50", store.session_id))),
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
    // One session of all is running.
    probe("sessions_running", |store, _| store.page("/api/v1/sessions?state=running", false)),
    probe("sessions_open", |store, _| store.page("/api/v1/sessions?readerId=bench", false)),
    probe("agents_first", |store, _| store.page("/agents?", false)),
    probe("agents_middle", |store, _| store.page("/agents?", true)),
    probe("agents_by_name", |store, _| store.page("/agents?name=bench", false)),
    probe("agent_create", |store, number| {
        request(&store.server, "POST", "/agents", &format!(r#"{{"name":"bench-{number}"}}"#))
    }),
    probe("agent_tokens", |store, _| store.get(&format!("/agents/{}/tokens", store.agent_id))),
    probe("agent_get", |store, _| store.get(&format!("/agents/{}", store.agent_id))),
    probe("agent_change", |store, number| {
        let path = format!("/agents/{}", store.agent_id);
        let profile = if number % 2 == 0 { "scripted" } else { "codex" };
        request(&store.server, "PATCH", &path, &format!(r#"{{"backend_profile":"{profile}"}}"#))
    }),
    probe("relations_first", |store, _| store.page("/h2a/relations?", false)),
    probe("relations_middle", |store, _| store.page("/h2a/relations?", true)),
    probe("relation_get", |store, _| store.get(&format!("/h2a/relations/{}", store.relation_id))),
    probe("relation_changes", |store, _| store.get(&format!("/h2a/relations/{}/changes", store.relation_id))),
    probe("relation_receipts", |store, _| {
        store.get(&format!("/h2a/relations/{}/receipts?limit=50", store.relation_id))
    }),
    probe("pending", |store, _| store.get("/h2a/pending")),
    probe("relation_change", |store, _| {
        let path = format!("/h2a/relations/{}", store.relation_id);
        request(&store.server, "PATCH", &path, r#"{"granted_scopes":["notes:read"]}"#)
    }),
    probe("receipts_first", |store, _| store.get("/h2a/receipts?limit=50")),
    probe("deliveries_first", |store, _| store.page(&format!("/agents/{}/webhook/deliveries?", store.agent_id), false)),
    probe("delivery_get", |store, _| {
        store.get(&format!("/agents/{}/webhook/deliveries/{}", store.agent_id, store.delivery_id))
    }),
    probe("webhook_get", |store, _| store.get(&format!("/agents/{}/webhook", store.agent_id))),
    probe("webhook_set", |store, _| {
        let path = format!("/agents/{}/webhook", store.agent_id);
        request(&store.server, "PUT", &path, r#"{"url":"https://localhost:9/hook"}"#)
    }),
    probe("tokens_first", |store, _| store.page("/api/v1/tokens?", false)),
    probe("tokens_middle", |store, _| store.page("/api/v1/tokens?", true)),
    probe("token_create", |store, number| {
        let body = format!(r#"{{"name":"bench-{number}","role":"client","tenants":["local"]}}"#);
        request(&store.server, "POST", "/api/v1/tokens", &body)
    }),
    probe("users_first", |store, _| store.page("/api/v1/users?", false)),
    probe("users_middle", |store, _| store.page("/api/v1/users?", true)),
    probe("user_change", |store, number| {
        let zone = if number % 2 == 0 { "UTC" } else { "Europe/Berlin" };
        request(&store.server, "PATCH", "/api/v1/users/template", &format!(r#"{{"timezone":"{zone}"}}"#))
    }),
    probe("user_token_create", |store, _| {
        request(&store.server, "POST", "/api/v1/users/template/token", r#"{"expiresInMs":3600000}"#)
    }),
    probe("user_create", |store, number| {
        let body = format!(r#"{{"name":"bench-{number}","timezone":"UTC"}}"#);
        request(&store.server, "POST", "/api/v1/users", &body)
    }),
    probe("identities_first", |store, _| store.page("/api/v1/identities?", false)),
    probe("identities_middle", |store, _| store.page("/api/v1/identities?", true)),
    probe("identity_get", |store, _| store.get(&format!("/api/v1/identities/{AID}"))),
    probe("certificate_get", |store, _| store.get(&format!("/pki/cert/{AID}"))),
    probe("revocations", |store, _| store.get("/pki/crl.json")),
    probe("identity_create", |store, number| {
        // A key that cannot be made gives a request that the server rejects: a failed call, so the benchmark fails at its end.
        let key = public_key(number as u64 + 2).unwrap_or_default();
        let body = format!(r#"{{"aid":"made-{number}.localhost.test","publicKey":"{key}"}}"#);
        request(&store.server, "POST", "/api/v1/identities", &body)
    }),
    probe("automations_first", |store, _| store.page("/api/v1/automations?", false)),
    probe("automations_middle", |store, _| store.page("/api/v1/automations?", true)),
    probe("automation_get", |store, _| store.get(&format!("/api/v1/automations/{}", store.automation_id))),
    probe("automation_next", |store, _| store.get(&format!("/api/v1/automations/{}/next", store.automation_id))),
    probe("automation_runs", |store, _| store.get(&format!("/api/v1/automations/{}/runs", store.automation_id))),
    probe("automation_change", |store, number| {
        let path = format!("/api/v1/automations/{}", store.automation_id);
        request(&store.server, "PATCH", &path, &format!(r#"{{"title":"title {number}"}}"#))
    }),
    probe("calendar_first", |store, _| store.page("/api/v1/calendar-events?", false)),
    probe("calendar_middle", |store, _| store.page("/api/v1/calendar-events?", true)),
    probe("calendar_window", |store, _| {
        store.get("/api/v1/calendar-events/occurrences?from=2027-03-16T00:00:00Z&to=2027-03-17T00:00:00Z")
    }),
    probe("calendar_get", |store, _| store.get(&format!("/api/v1/calendar-events/{}", store.event_id))),
    probe("calendar_change", |store, number| {
        let path = format!("/api/v1/calendar-events/{}", store.event_id);
        request(&store.server, "PATCH", &path, &format!(r#"{{"title":"title {number}"}}"#))
    }),
    // After the other calls of calendars, because it makes the lists of this owner longer.
    probe("calendar_create", |store, _| request(&store.server, "POST", "/api/v1/calendar-events", CALENDAR_EVENT)),
    probe("profiles", |store, _| store.get("/api/v1/provider-profiles")),
    probe("profile_changes", |store, _| store.page("/api/v1/provider-profile-changes?", false)),
    probe("holds", |store, _| store.page("/api/v1/retention/holds?", false)),
    probe("caller", |store, _| store.get("/api/v1/caller")),
    probe("metrics", |store, _| store.get("/metrics")),
];
