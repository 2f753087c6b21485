//! Secrets where a text of a call is cut. They are redacted before that: half of a secret cannot be recognised.

use std::sync::{Arc, atomic::AtomicUsize};

use futures_util::future::BoxFuture;
use ostler_protocol::{
    Failure,
    ids::RunnerJobId,
    json::hex,
    tools::{ToolDefinition, ToolOrigin, definition::OUTPUT_BYTES_DEFAULT},
};
use ostler_server::{
    app::App,
    dialect::Dialect,
    tools::{Invocation, ToolContext, ToolError, ToolSource},
};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use super::{Work, web::respond_once};
use crate::harness::{Engine, TestServer, id, one_engine};

const SERVER_SECRET: &str = "pl4nted-of-the-server-0123456789";
/// A short-lived variable of a job of the run.
const JOB_SECRET: &str = "pl4nted-of-the-job-0123456789";
const SECRETS: [&str; 2] = [SERVER_SECRET, JOB_SECRET];
/// The beginning of each secret, which a cut would leave.
const BEGINNING: &str = "pl4n";
/// Bytes of a secret before the cut.
const BEFORE_CUT: usize = 8;
/// Where recorded arguments are cut.
const ARGUMENTS_BYTES: usize = 16 * 1024;
/// Where summaries are cut.
const SUMMARY_CHARS: usize = 200;

/// Returns its argument.
struct Echo(Arc<ToolDefinition>);

impl ToolSource for Echo {
    fn list<'a>(&'a self, _: &'a App, _: &'a ToolContext) -> BoxFuture<'a, Result<Vec<Arc<ToolDefinition>>, Failure>> {
        Box::pin(async { Ok(vec![self.0.clone()]) })
    }

    fn call<'a>(&'a self, _: &'a App, invocation: &'a Invocation) -> BoxFuture<'a, Result<String, ToolError>> {
        Box::pin(async move { Ok(invocation.arguments["text"].as_str().unwrap_or_default().to_owned()) })
    }
}

fn echo() -> Echo {
    let schema = json!({"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]});
    let schema = schema.as_object().cloned().unwrap();
    Echo(Arc::new(ToolDefinition::new(ToolOrigin::Dialect("echo"), "echo", "Returns a text.", schema).unwrap()))
}

/// A run with both secrets.
async fn scene(engine: Engine) -> (TestServer, Work) {
    let (server, app) = TestServer::with_app(engine, |setup| {
        setup.dialects = std::mem::take(&mut setup.dialects).with(Dialect::new("echo").tool_source(echo()));
        setup.config.tools.http_request.hosts = vec!["127.0.0.1".into()];
    })
    .await;
    let work = Work::begin(&server, |_| ()).await;
    app.redactor.learn([SERVER_SECRET]);
    let run_id = work.run_id().parse().unwrap();
    app.job_redactors.add(run_id, RunnerJobId::new(app.ids.body()), &[JOB_SECRET]);
    (server, work)
}

/// A text whose secret begins before this place and ends after it.
fn straddling(secret: &str, cut: usize) -> String {
    format!("{}{secret} and more", "x".repeat(cut - BEFORE_CUT))
}

/// Calls `echo` with this text. Returns the reply and the recorded start and end of the call.
async fn call_echo(server: &TestServer, work: &Work, text: &str) -> (Value, Value, Value) {
    let called = work.call(server, "echo", &json!({"text": text}).to_string()).await;
    assert_eq!(called["status"], "completed", "{called}");
    let mut recorded = work.recorded(server).await;
    let (end, start) = (recorded.pop().unwrap(), recorded.pop().unwrap());
    (called, start, end)
}

/// Neither the log of the run nor a reply has any part of a secret.
async fn assert_clean(server: &TestServer, work: &Work, called: &Value) {
    let events = json!(server.events(work.run_id()).await).to_string();
    assert!(!events.contains(BEGINNING), "in the log");
    assert!(!called.to_string().contains(BEGINNING), "in the reply");
}

#[one_engine]
async fn a_secret_where_recorded_arguments_are_cut_is_redacted(engine: Engine) {
    let (server, work) = scene(engine).await;
    for secret in SECRETS {
        // The text begins after `{"text":"`.
        let (called, start, _) = call_echo(&server, &work, &straddling(secret, ARGUMENTS_BYTES - 9)).await;
        let recorded = start["arguments"].as_str().expect("arguments that were cut are a text");
        assert!((ARGUMENTS_BYTES..ARGUMENTS_BYTES + 4).contains(&recorded.len()), "{}", recorded.len());
        assert_clean(&server, &work, &called).await;
        // These are no JSON. As a JSON string, the text begins after `"{\"text\":\"`.
        let broken = format!(r#"{{"text":"{}"#, straddling(secret, ARGUMENTS_BYTES - 13));
        let called = work.call(&server, "echo", &broken).await;
        assert_eq!(called["status"], "failed", "{called}");
        assert_clean(&server, &work, &called).await;
    }
}

#[one_engine]
async fn a_secret_where_a_result_is_cut_is_redacted(engine: Engine) {
    let (server, work) = scene(engine).await;
    for secret in SECRETS {
        let (called, _, end) = call_echo(&server, &work, &straddling(secret, OUTPUT_BYTES_DEFAULT)).await;
        assert_eq!((&called["truncated"], &end["resultTruncated"]), (&json!(true), &json!(true)));
        assert_eq!(end["result"].as_str().unwrap().len(), OUTPUT_BYTES_DEFAULT);
        assert_clean(&server, &work, &called).await;
    }
}

#[one_engine]
async fn a_secret_where_a_summary_is_cut_is_redacted(engine: Engine) {
    let (server, work) = scene(engine).await;
    for secret in SECRETS {
        let (called, _, end) = call_echo(&server, &work, &straddling(secret, SUMMARY_CHARS)).await;
        assert_eq!(end["resultSummary"].as_str().unwrap().chars().count(), SUMMARY_CHARS + 1, "with the ellipsis");
        assert!(end["result"].as_str().unwrap().contains("[redacted]"));
        assert_clean(&server, &work, &called).await;
    }
}

/// The value is a secret only because of the name of its field, which is known while the JSON is complete.
#[one_engine]
async fn a_field_that_is_named_like_a_secret_is_redacted_where_its_json_is_cut(engine: Engine) {
    let (server, work) = scene(engine).await;
    for cut in [SUMMARY_CHARS, OUTPUT_BYTES_DEFAULT] {
        let json_with = |padding: usize| {
            let fields = json!({"padding": "x".repeat(padding), "secret": ["pl4nted-in-a-list"]});
            fields.to_string()
        };
        let before_secret = json_with(0).find(BEGINNING).unwrap();
        let text = json_with(cut - BEFORE_CUT - before_secret);
        assert_eq!(text.find(BEGINNING), Some(cut - BEFORE_CUT));
        let (called, _, end) = call_echo(&server, &work, &text).await;
        assert!(end["resultSummary"].as_str().unwrap().ends_with('…'), "{}", end["resultSummary"]);
        assert_clean(&server, &work, &called).await;
    }
}

/// Another server has accepted the job, or this one before it was restarted: only the store has its variables.
#[one_engine]
async fn a_variable_of_a_job_that_only_the_store_knows_is_redacted(engine: Engine) {
    let (server, app) = TestServer::with_app(engine, |setup| {
        setup.dialects = std::mem::take(&mut setup.dialects).with(Dialect::new("echo").tool_source(echo()));
    })
    .await;
    let run_id = server.create_run().await;
    let command_id = server.turn(&run_id, "hi").await;
    let job = server.create_job(&run_id, &json!({"commandId": command_id})).await.with_status(201);
    let job_id: RunnerJobId = id(&job, "runnerJobId").parse().unwrap();
    let variables = json!({"GH_TOKEN": JOB_SECRET}).to_string();
    let sealed = hex(&app.secrets.seal(&format!("variables of {job_id}"), variables.as_bytes()));
    let extras = json!({"sealed": sealed});
    server.store(&format!("UPDATE runner_jobs SET extras = '{extras}'")).await;
    assert!(!app.job_redactors.contains(job_id));
    let runner = server.claim(&run_id, &id(&job, "runnerId")).await;
    runner.ack(&command_id).await;
    let work = Work { runner, command_id, calls: AtomicUsize::new(0) };
    // The second call is executed without reading the run.
    for _ in 0..2 {
        let (called, ..) = call_echo(&server, &work, &format!("the value is {JOB_SECRET}")).await;
        assert_eq!(called["content"], "the value is [redacted]");
        assert_clean(&server, &work, &called).await;
    }
}

#[one_engine]
async fn the_response_to_a_request_is_redacted_before_it_is_cut(engine: Engine) {
    let (server, work) = scene(engine).await;
    for secret in SECRETS {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let arguments = json!({"method": "GET", "url": format!("http://{}/", listener.local_addr().unwrap())});
        // Wherever the body is cut, a secret is there.
        let (location, body) = (straddling(secret, 2_048).replace(' ', "-"), format!("{secret} ").repeat(4_000));
        let head = format!("HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Type: text/plain\r\n");
        let response = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        let arguments = arguments.to_string();
        let called = work.call(&server, "http_request", &arguments);
        let (called, ()) = tokio::join!(called, respond_once(&listener, &response));
        let result: Value = serde_json::from_str(called["content"].as_str().unwrap()).unwrap();
        assert_eq!((&result["status"], &result["truncated"]), (&json!(302), &json!(true)), "{called}");
        assert!(result["location"].as_str().unwrap().ends_with('…'), "{}", result["location"]);
        assert_clean(&server, &work, &called).await;
    }
}
