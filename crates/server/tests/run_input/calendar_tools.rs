//! The calendar as an agent's tools: the zone of an event by the protocol's fixed order, and results that say what was written.

use std::collections::{BTreeMap, BTreeSet};

use ostler_protocol::{
    FailureKind::RunInputInvalid, kernel::policy::Approval, run_input::agui::input::ClientTime,
    tools::calls::call_digest,
};
use ostler_run_input::{
    CalendarCallContext, calendar_tools,
    config::{RunInputSection, automations::AutomationsSection},
    read_calendar, write_calendar,
};
use ostler_server::{app::App, auth::Principal, dialect::Dialect};
use ostler_stand_ins::{Endpoint, chat};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::{
    harness::{Engine, TestServer, both_engines, id},
    run_input::runs::{self, kinds},
};

/// A server whose chats and automations are runs of a model, which may call every tool without asking.
pub(crate) async fn with_model(engine: Engine, endpoint: &Endpoint) -> TestServer {
    with_model_and(engine, endpoint, Approval::Never).await
}

/// As [`with_model`], with another approval.
async fn with_model_and(engine: Engine, endpoint: &Endpoint, approval: Approval) -> TestServer {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 4;
        setup.config.change(|section: &mut RunInputSection| {
            section.backend_profile = "model".into();
            section.approval = approval;
        });
        setup.config.change(|automations: &mut AutomationsSection| automations.poll_ms = 20);
    })
    .await;
    let config = format!("[ostler]\nagent = \"model\"\nbase_url = \"{}\"\nmodel = \"small\"\n", endpoint.base_url());
    let path = "/api/v1/provider-profiles/model/config";
    server.call("PUT", path, &json!({"config": config})).await.with_status(200);
    server
}

/// A server, and what its dialects see of it.
async fn server(engine: Engine) -> (TestServer, App) {
    let (give, mut take) = mpsc::unbounded_channel();
    let server = TestServer::with(engine, |setup| {
        let probe = Dialect::new("probe").worker(move |app| {
            give.send(app).ok();
            std::future::ready(())
        });
        setup.dialects = setup.dialects.clone().with(probe);
    })
    .await;
    let app = take.recv().await.unwrap();
    (server, app)
}

/// A user whose zone is Shanghai.
async fn user(server: &TestServer, name: &str) -> Principal {
    let body = json!({"name": name, "timezone": "Asia/Shanghai", "tenants": ["local"]});
    let made = server.post("/api/v1/users", &body).await.with_status(201);
    let user_id = id(&made, "userId").parse().unwrap();
    Principal::User { user_id, name: name.into(), tenants: ["local".to_owned()].into() }
}

fn on_device(zone: &str) -> CalendarCallContext {
    CalendarCallContext {
        client_time: Some(ClientTime {
            device_timezone: zone.into(),
            client_now_iso: "2026-03-16T09:12:33-07:00".into(),
            client_epoch_ms: 1_773_658_353_000,
        }),
    }
}

fn create(zone: Option<&str>) -> Value {
    let mut call = json!({"action": "create", "title": "Breakfast", "starts_at": "2026-03-17T09:00"});
    if let Some(zone) = zone {
        call["event_timezone"] = json!(zone);
    }
    call
}

/// Each row of the protocol's table: the call, the device, the user, UTC.
#[both_engines]
async fn the_zone_is_the_calls_then_the_devices_then_the_users_then_utc(engine: Engine) {
    let (server, app) = server(engine).await;
    let ada = user(&server, "ada").await;
    let (device, none) = (on_device("America/Los_Angeles"), CalendarCallContext::default());
    for (caller, context, zone, expected, at) in [
        (&ada, &device, Some("Europe/Berlin"), ("Europe/Berlin", "argument"), "2026-03-17T08:00:00Z"),
        (&ada, &device, None, ("America/Los_Angeles", "device"), "2026-03-17T16:00:00Z"),
        (&ada, &none, None, ("Asia/Shanghai", "user"), "2026-03-17T01:00:00Z"),
        (&Principal::Operator, &none, None, ("UTC", "utc"), "2026-03-17T09:00:00Z"),
    ] {
        let result = write_calendar(&app, caller, context, &create(zone)).await.unwrap();
        assert_eq!((&result["event_timezone"], &result["timezone_source"]), (&json!(expected.0), &json!(expected.1)));
        assert_eq!(result["starts_at_utc"], at);
        assert_eq!(result["event"]["event_timezone"], expected.0, "the final call has a zone");
    }
    let failure = write_calendar(&app, &ada, &device, &create(Some("Mars/Olympus"))).await.unwrap_err();
    assert_eq!(failure.rule_name(), Some("timezone"));
}

#[both_engines]
async fn an_agent_writes_reads_back_changes_and_deletes(engine: Engine) {
    let (server, app) = server(engine).await;
    let (ada, bob) = (user(&server, "ada").await, user(&server, "bob").await);
    let context = on_device("America/Los_Angeles");
    let made = write_calendar(&app, &ada, &context, &create(None)).await.unwrap();
    let event_id = id(&made, "event_id");
    let window = json!({"from": "2026-03-17T00:00:00Z", "to": "2026-03-18T00:00:00Z"});
    let found = read_calendar(&app, &ada, &window).await.unwrap();
    assert_eq!(found["occurrences"][0]["local"], "2026-03-17T09:00:00-07:00");
    assert_eq!(read_calendar(&app, &bob, &window).await.unwrap()["occurrences"], json!([]));
    let moved = json!({"action": "update", "event_id": event_id, "starts_at": "2026-03-29T02:30",
        "event_timezone": "Europe/Berlin"});
    let result = write_calendar(&app, &ada, &context, &moved).await.unwrap();
    assert_eq!((&result["local_time"], &result["starts_at_utc"]), (&json!("missing"), &json!("2026-03-29T01:30:00Z")));
    assert!(result["note"].as_str().unwrap().contains("skip"), "{result}");
    for call in [&moved, &json!({"action": "delete", "event_id": event_id})] {
        let failure = write_calendar(&app, &bob, &context, call).await.unwrap_err();
        assert_eq!(failure.rule_name(), Some("calendar-event-unknown"));
    }
    let gone = json!({"action": "delete", "event_id": event_id});
    assert_eq!(write_calendar(&app, &ada, &context, &gone).await.unwrap()["action"], "deleted");
    assert!(write_calendar(&app, &ada, &context, &gone).await.is_err());
}

/// An event does not move to the zone of the device from which its time is changed.
#[both_engines]
async fn an_update_without_a_zone_keeps_that_of_the_event(engine: Engine) {
    let endpoint = chat();
    let server = with_model(engine, &endpoint).await;
    let ada = runs::user(&server, "ada", &["local"]).await;
    let made = json!({"title": "Breakfast", "starts_at": "2026-03-17T09:00", "event_timezone": "Asia/Tokyo"});
    let event_id = id(&ada.post("/api/v1/calendar-events", &made).await.with_status(201), "id");
    let update = json!({"action": "update", "event_id": event_id, "starts_at": "2026-03-17T10:00"});
    let mut body = runs::message("run-1", &format!("[[call:calendar_write {update}]]"));
    body["forwardedProps"]["client_time"] = json!({"device_timezone": "America/Los_Angeles",
        "client_now_iso": "2026-03-16T09:12:33-07:00", "client_epoch_ms": 1_773_677_553_000_i64});
    let received = runs::received(&ada.stream(&body).await.text);
    let written = received.iter().find(|event| event.kind() == "TOOL_CALL_RESULT").unwrap();
    let written: Value = serde_json::from_str(written.event["content"].as_str().unwrap()).unwrap();
    assert_eq!((&written["event_timezone"], &written["timezone_source"]), (&json!("Asia/Tokyo"), &json!("event")));
    assert_eq!(written["starts_at_utc"], "2026-03-17T01:00:00Z");
    let started = server.events_of(&ada.run_of_thread().await, "tool_call").await.remove(0);
    assert_eq!(started["payload"]["arguments"]["event_timezone"], "Asia/Tokyo", "the final call has the zone");
}

/// Each row again, through the toolkit: the zone of a clock that no device has sent is the user's.
#[both_engines]
async fn the_zone_of_a_models_call_is_resolved_in_the_same_order(engine: Engine) {
    let endpoint = chat();
    let server = with_model(engine, &endpoint).await;
    user(&server, "ada").await;
    let made = server.post("/api/v1/users/ada/token", &json!({})).await.with_status(201);
    let ada = server.with_token(Some(&id(&made, "token")));
    let device = json!({"device_timezone": "America/Los_Angeles", "client_now_iso": "2026-03-16T09:12:33-07:00",
        "client_epoch_ms": 1_773_677_553_000_i64});
    for (at, (caller, device, zone, expected)) in [
        (&ada, Some(&device), Some("Europe/Berlin"), ("Europe/Berlin", "argument")),
        (&ada, Some(&device), None, ("America/Los_Angeles", "device")),
        (&ada, None, None, ("Asia/Shanghai", "user")),
        (&*server, None, None, ("UTC", "utc")),
    ]
    .into_iter()
    .enumerate()
    {
        let run_id = format!("run-{at}");
        let mut body = runs::message(&run_id, &format!("[[call:calendar_write {}]]", create(zone)));
        body["threadId"] = json!(format!("550e8400-e29b-41d4-a716-44665544000{at}"));
        if let Some(device) = device {
            body["forwardedProps"]["client_time"] = device.clone();
        }
        let received = runs::received(&caller.stream(&body).await.text);
        let written = received.iter().find(|event| event.kind() == "TOOL_CALL_RESULT").unwrap();
        let written: Value = serde_json::from_str(written.event["content"].as_str().unwrap()).unwrap();
        assert_eq!((&written["event_timezone"], &written["timezone_source"]), (&json!(expected.0), &json!(expected.1)));
        let stored =
            caller.get(&format!("/api/v1/calendar-events/{}", id(&written, "event_id"))).await.with_status(200);
        assert_eq!(stored["event_timezone"], expected.0);
    }
}

#[both_engines]
async fn a_model_writes_to_the_calendar_of_the_runs_user(engine: Engine) {
    let endpoint = chat();
    let server = with_model(engine, &endpoint).await;
    let (ada, bob) = (runs::user(&server, "ada", &["local"]).await, runs::user(&server, "bob", &["local"]).await);
    let call = format!("[[call:calendar_write {}]]", create(Some("Europe/Berlin")));
    ada.say("run-1", &call).await.with_status(202);
    let received = ada.received("run-1").await;
    assert_eq!(kinds(&received).last(), Some(&"RUN_FINISHED"), "{received:?}");
    let written = received.iter().find(|event| event.kind() == "TOOL_CALL_RESULT").unwrap();
    let written: Value = serde_json::from_str(written.event["content"].as_str().unwrap()).unwrap();
    assert_eq!((&written["action"], &written["timezone_source"]), (&json!("created"), &json!("argument")));
    let window = "/api/v1/calendar-events/occurrences?from=2026-03-17T00:00:00Z&to=2026-03-18T00:00:00Z";
    let found = ada.get(window).await.with_status(200);
    assert_eq!(found["occurrences"][0]["local"], "2026-03-17T09:00:00+01:00");
    assert_eq!(bob.get(window).await.with_status(200)["occurrences"], json!([]));
    // A call that the calendar rejects is answered to the model, and changes nothing.
    let call = format!("[[call:calendar_write {}]]", create(Some("Mars/Olympus")));
    ada.say("run-2", &call).await.with_status(202);
    let received = ada.received("run-2").await;
    let refused = received.iter().find(|event| event.kind() == "TOOL_CALL_RESULT").unwrap();
    assert_eq!(refused.event["metadata"]["status"], "failed", "{refused:?}");
    assert_eq!(ada.get(window).await.with_status(200)["occurrences"].as_array().unwrap().len(), 1);
}

/// A person sees and may change the whole call: the zone is part of it before a person is asked.
#[both_engines]
async fn a_person_permits_a_call_with_its_zone_and_may_edit_it(engine: Engine) {
    let endpoint = chat();
    let server = with_model_and(engine, &endpoint, Approval::OnRequest).await;
    let ada = runs::user(&server, "ada", &["local"]).await;
    let device = json!({"device_timezone": "America/Los_Angeles", "client_now_iso": "2026-03-16T09:12:33-07:00",
        "client_epoch_ms": 1_773_677_553_000_i64});
    let mut body = runs::message("run-1", &format!("[[call:calendar_write {}]]", create(None)));
    body["forwardedProps"]["client_time"] = device;
    let received = runs::received(&ada.stream(&body).await.text);
    let start =
        received.iter().find(|event| event.kind() == "TOOL_CALL_START").expect("it is announced before it starts");
    let interrupt = &received.last().unwrap().event["outcome"]["interrupts"][0];
    assert_eq!((&interrupt["reason"], &interrupt["toolCallId"]), (&json!("tool_call"), &start.event["toolCallId"]));
    let arguments = &interrupt["metadata"]["arguments"];
    assert_eq!(arguments["event_timezone"], "America/Los_Angeles", "{interrupt}");
    assert_eq!(interrupt["responseSchema"]["properties"]["editedArgs"]["required"], json!(["action"]));
    let mut edited = arguments.clone();
    edited["title"] = json!("Lunch");
    let wrong = json!({"approved": true, "editedArgs": {"action": "paint"}});
    let prm = id(interrupt, "id");
    ada.resume("run-2", &[(&prm, wrong)]).await.with_status(422);
    let approval = json!({"approved": true, "editedArgs": edited});
    ada.resume("run-2", &[(&prm, approval)]).await.with_status(202);
    let received = ada.received("run-2").await;
    assert!(!kinds(&received).contains(&"TOOL_CALL_START"), "it was announced: {received:?}");
    let written = received.iter().find(|event| event.kind() == "TOOL_CALL_RESULT").unwrap();
    assert_eq!(written.event["toolCallId"], start.event["toolCallId"]);
    let written: Value = serde_json::from_str(written.event["content"].as_str().unwrap()).unwrap();
    assert_eq!((&written["event"]["title"], &written["timezone_source"]), (&json!("Lunch"), &json!("argument")));
    let run_id = ada.run_of_thread().await;
    let started = server.events_of(&run_id, "tool_call").await.remove(0);
    assert_eq!((&started["payload"]["status"], &started["payload"]["arguments"]), (&json!("started"), &edited));
    let digest = call_digest("calendar_write", edited.as_object().unwrap());
    assert_eq!(started["payload"]["digest"], digest, "it is that of the call which was executed");
    let resolved = server.events_of(&run_id, "permission_resolved").await.remove(0);
    assert_eq!(resolved["payload"]["edited"]["digest"], digest, "and that of what was permitted");
    // The page and the model get the call as it was executed.
    let snapshot = received.iter().find(|event| event.kind() == "MESSAGES_SNAPSHOT").unwrap();
    let mut calls =
        snapshot.event["messages"].as_array().unwrap().iter().filter_map(|message| message.get("toolCalls"));
    assert_eq!(read_arguments(calls.next_back().unwrap()), edited);
    let request = endpoint.seen().pop().unwrap().body;
    let mut calls = request["messages"].as_array().unwrap().iter().filter_map(|message| message.get("tool_calls"));
    assert_eq!(read_arguments(calls.next_back().unwrap()), edited);
}

#[both_engines]
async fn a_person_gets_the_requests_of_all_calls_of_a_reply_at_once(engine: Engine) {
    let endpoint = chat();
    let server = with_model_and(engine, &endpoint, Approval::OnRequest).await;
    let ada = runs::user(&server, "ada", &["local"]).await;
    let (first, mut second) = (create(Some("UTC")), create(Some("UTC")));
    second["title"] = json!("Lunch");
    let prompt = format!("[[call:calendar_write {first}||time_now {{}}||calendar_write {second}]]");
    let received = runs::received(&ada.stream(&runs::message("run-1", &prompt)).await.text);
    let outcome = &received.last().unwrap().event["outcome"];
    let interrupts = outcome["interrupts"].as_array().unwrap_or_else(|| panic!("{outcome}")).clone();
    assert_eq!(interrupts.len(), 2, "{outcome}");
    let titles: BTreeSet<_> = interrupts.iter().map(|asked| asked["metadata"]["arguments"]["title"].as_str()).collect();
    assert_eq!(titles, BTreeSet::from([Some("Breakfast"), Some("Lunch")]));
    let ids: Vec<_> = interrupts.iter().map(|asked| id(asked, "id")).collect();
    let yes = || json!({"approved": true});
    let partial = ada.resume("run-2", &[(&ids[0], yes())]).await.refused(RunInputInvalid);
    assert_eq!((partial.rule.as_str(), &partial.details["interruptIds"]), ("interrupts-open", &json!([ids[1]])));
    let no = json!({"approved": false});
    ada.resume("run-2", &[(&ids[0], yes()), (&ids[1], no)]).await.with_status(202);
    let received = ada.received("run-2").await;
    let results = received.iter().filter(|event| event.kind() == "TOOL_CALL_RESULT");
    let results: BTreeMap<_, _> =
        results.map(|event| (id(&event.event, "toolCallId"), id(&event.event["metadata"], "status"))).collect();
    let of = |asked: &Value| results[asked["toolCallId"].as_str().unwrap()].as_str();
    assert_eq!((of(&interrupts[0]), of(&interrupts[1])), ("completed", "declined"), "{received:?}");
    assert_eq!(received.last().unwrap().event["outcome"]["type"], "success", "{received:?}");
}

/// The attempt that continues the turn makes the calls again, and its requests have other ids.
#[both_engines]
async fn calls_are_permitted_by_the_ids_from_before_a_restart(engine: Engine) {
    let endpoint = chat();
    let mut server = with_model_and(engine, &endpoint, Approval::OnRequest).await;
    let (first, mut second) = (create(Some("UTC")), create(Some("UTC")));
    second["title"] = json!("Lunch");
    let prompt = format!("[[call:calendar_write {first}||calendar_write {second}]]");
    let received = runs::received(&server.stream(&runs::message("run-1", &prompt)).await.text);
    let interrupts = received.last().unwrap().event["outcome"]["interrupts"].as_array().unwrap().clone();
    let mut edited = interrupts[1]["metadata"]["arguments"].clone();
    edited["starts_at"] = json!("2026-03-17T12:00");
    let edits = json!({"approved": true, "editedArgs": edited});
    server.restart().await;
    let ids: Vec<_> = interrupts.iter().map(|asked| id(asked, "id")).collect();
    let answers = [(ids[0].as_str(), json!({"approved": true})), (ids[1].as_str(), edits)];
    server.resume("run-2", &answers).await.with_status(202);
    let received = server.received("run-2").await;
    assert_eq!(received.last().unwrap().event["outcome"]["type"], "success", "{received:?}");
    let window = "/api/v1/calendar-events/occurrences?from=2026-03-17T00:00:00Z&to=2026-03-18T00:00:00Z";
    let found = server.get(window).await.with_status(200);
    let mut starts: Vec<_> = found["occurrences"].as_array().unwrap().iter().map(|at| id(at, "local")).collect();
    starts.sort_unstable();
    assert_eq!(starts, ["2026-03-17T09:00:00+00:00", "2026-03-17T12:00:00+00:00"]);
}

/// The arguments of the first of these calls.
fn read_arguments(calls: &Value) -> Value {
    serde_json::from_str(calls[0]["function"]["arguments"].as_str().unwrap()).unwrap()
}

#[both_engines]
async fn edited_arguments_get_their_zone_before_they_are_recorded(engine: Engine) {
    let endpoint = chat();
    let server = with_model_and(engine, &endpoint, Approval::OnRequest).await;
    let ada = runs::user(&server, "ada", &["local"]).await;
    let mut body = runs::message("run-1", &format!("[[call:calendar_write {}]]", create(Some("Europe/Berlin"))));
    body["forwardedProps"]["client_time"] = json!({"device_timezone": "America/Los_Angeles",
        "client_now_iso": "2026-03-16T09:12:33-07:00", "client_epoch_ms": 1_773_677_553_000_i64});
    let received = runs::received(&ada.stream(&body).await.text);
    let prm = id(&received.last().unwrap().event["outcome"]["interrupts"][0], "id");
    let approval = json!({"approved": true, "editedArgs": create(None)});
    ada.resume("run-2", &[(&prm, approval.clone())]).await.with_status(202);
    let received = ada.received("run-2").await;
    let written = received.iter().find(|event| event.kind() == "TOOL_CALL_RESULT").expect("the call is executed");
    let written: Value = serde_json::from_str(written.event["content"].as_str().unwrap()).unwrap();
    assert_eq!(written["timezone_source"], "device", "the person has named no zone: {written}");
    let run_id = ada.run_of_thread().await;
    let edited = server.events_of(&run_id, "permission_resolved").await.remove(0)["payload"]["edited"].take();
    let started = server.events_of(&run_id, "tool_call").await.remove(0)["payload"].take();
    assert_eq!(edited["arguments"]["event_timezone"], "America/Los_Angeles", "{edited}");
    assert_eq!((&edited["arguments"], &edited["digest"]), (&started["arguments"], &started["digest"]));
    assert_eq!(started["edited"], true, "a request that is repeated after a restart gets them, too");
    // The same answer again is the same, although the server has added to it.
    ada.resume("run-3", &[(&prm, approval)]).await.with_status(202);
    let other = json!({"approved": true, "editedArgs": create(Some("Asia/Tokyo"))});
    ada.resume("run-4", &[(&prm, other)]).await.refused_by(RunInputInvalid, "interrupt-resolved");
}

#[both_engines]
async fn a_call_that_the_calendar_would_reject_makes_no_request(engine: Engine) {
    let endpoint = chat();
    let server = with_model_and(engine, &endpoint, Approval::OnRequest).await;
    let ada = runs::user(&server, "ada", &["local"]).await;
    let event_id = "cal_00000000000000000000000000000001";
    for (at, (change, expected)) in [
        (json!({"event_timezone": "Mars/X"}), "Mars/X"),
        (json!({"starts_at": "2026-13-01T09:00"}), "starts_at"),
        (json!({"starts_at": "2026-12-01T09:00+02:00"}), "without an offset"),
        (json!({"starts_at": null}), "starts_at"),
        (json!({"ends_at": "2026-03-17T08:00"}), "after starts_at"),
        (json!({"recurrence": "FREQ=NEVER"}), "recurrence"),
        (json!({"action": "delete", "event_id": event_id}), "no such event"),
    ]
    .into_iter()
    .enumerate()
    {
        let mut call = create(Some("UTC"));
        for (name, value) in change.as_object().unwrap() {
            match value.is_null() {
                true => drop(call.as_object_mut().unwrap().remove(name)),
                false => call[name] = value.clone(),
            }
        }
        let mut body = runs::message(&format!("run-{at}"), &format!("[[call:calendar_write {call}]]"));
        body["threadId"] = json!(format!("550e8400-e29b-41d4-a716-44665544000{at}"));
        let received = runs::received(&ada.stream(&body).await.text);
        assert_eq!(received.last().unwrap().event["outcome"]["type"], "success", "{call}: {received:?}");
        let refused = received.iter().find(|event| event.kind() == "TOOL_CALL_RESULT").unwrap();
        assert_eq!(refused.event["metadata"]["status"], "failed", "{call}: {refused:?}");
        let content = refused.event["content"].as_str().unwrap();
        assert!(content.contains(expected), "{call}: {content}");
    }
}

#[both_engines]
async fn edited_arguments_that_cannot_work_are_rejected_and_the_interrupt_stays_open(engine: Engine) {
    let endpoint = chat();
    let server = with_model_and(engine, &endpoint, Approval::OnRequest).await;
    let ada = runs::user(&server, "ada", &["local"]).await;
    let call = format!("[[call:calendar_write {}]]", create(Some("Europe/Berlin")));
    let received = runs::received(&ada.stream(&runs::message("run-1", &call)).await.text);
    let prm = id(&received.last().unwrap().event["outcome"]["interrupts"][0], "id");
    for edited in [
        json!({"action": "create", "title": "E", "starts_at": "2026-12-01T09:00", "event_timezone": "Mars/X"}),
        json!({"action": "create", "title": "E", "event_timezone": "UTC"}),
        json!({"action": "create", "title": "E", "starts_at": "2026-13-01T09:00"}),
        json!({"action": "delete"}),
    ] {
        let approval = json!({"approved": true, "editedArgs": edited});
        ada.resume("run-2", &[(&prm, approval)]).await.with_status(422);
    }
    let open = server.permissions(&ada.run_of_thread().await).await;
    assert_eq!((open.len(), &open[0]["status"]), (1, &json!("pending")), "{open:?}");
    let approval = json!({"approved": true, "editedArgs": create(Some("UTC"))});
    ada.resume("run-2", &[(&prm, approval)]).await.with_status(202);
    let received = ada.received("run-2").await;
    assert_eq!(received.last().unwrap().event["outcome"]["type"], "success", "{received:?}");
}

#[both_engines]
async fn a_missing_or_ambiguous_end_is_shown_to_the_model(engine: Engine) {
    let (server, app) = server(engine).await;
    let ada = user(&server, "ada").await;
    for (starts_at, ends_at, kinds, words) in [
        ("2026-03-29T01:30", "2026-03-29T02:30", ("exact", "missing"), "the local time of the end"),
        ("2026-10-25T02:30", "2026-10-25T02:45", ("ambiguous", "ambiguous"), "the local time of the end twice"),
    ] {
        let call = json!({"action": "create", "title": "Night", "starts_at": starts_at, "ends_at": ends_at,
            "event_timezone": "Europe/Berlin"});
        let result = write_calendar(&app, &ada, &CalendarCallContext::default(), &call).await.unwrap();
        assert_eq!((&result["local_time"], &result["end_local_time"]), (&json!(kinds.0), &json!(kinds.1)), "{result}");
        assert!(result["note"].as_str().unwrap().contains(words), "{result}");
    }
}

#[test]
fn the_definitions_are_valid_json_schemas_and_a_zone_may_be_left_out() {
    for tool in calendar_tools() {
        jsonschema::validator_for(&tool.parameters).unwrap();
    }
    let [write, read] = calendar_tools();
    assert_eq!((write.name, write.changes, read.name, read.changes), ("calendar_write", true, "calendar_read", false));
    let schema = jsonschema::validator_for(&write.parameters).unwrap();
    assert!(schema.is_valid(&create(None)));
    assert!(schema.is_valid(&create(Some("Europe/Berlin"))));
}
