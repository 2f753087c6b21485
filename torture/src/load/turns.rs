//! Acknowledged runs. Each is submitted under an idempotency key with a turn for the scripted agent, and must end once,
//! with the reply of its script.

use serde_json::{Value, json};

use crate::{
    api::{Api, Reply, pause, text},
    clock::{now, since},
    load::{Beat, SETTLE_WITHIN, run_request},
    random::Random,
};

const TURNS_MAX: usize = 60;
const TOOL_MS_MAX: u64 = 80;
const PAGE_RUNS: usize = 200;
const DAEMON_PROJECT: &str = "ostler/daemon";

#[derive(Default)]
pub(crate) struct Turns {
    submitted: Vec<Turn>,
    /// Was sent and never answered when the round ended.
    doubt: Option<Value>,
}

struct Turn {
    run_id: String,
    command_id: String,
    reply: String,
}

fn request(number: usize, tool_ms: u64) -> Value {
    let mut body = run_request();
    let script = json!({"script": [{"say": "looking"},
        {"tool": {"name": "shell", "command": "make", "output": "made\n", "waitMs": tool_ms}}, {"say": reply(number)}]});
    body["command"] = json!({"type": "turn", "payload": {"prompt": script.to_string()}});
    body["idempotencyKey"] = json!(format!("turn-{number}"));
    body
}

fn reply(number: usize) -> String {
    format!("done {number}")
}

impl Turns {
    /// Submits turns until the round is over. A lost answer is followed by the same request.
    pub(crate) async fn work(mut self, beat: Beat, mut random: Random) -> Result<Self, String> {
        while !beat.is_over() && self.submitted.len() < TURNS_MAX {
            let body = request(self.submitted.len(), random.between(0..TOOL_MS_MAX));
            loop {
                match beat.api.call("POST", "/api/v1/runs", Some(&body)).await {
                    Reply::Good(run) => {
                        self.record(&run)?;
                        beat.acknowledge(1);
                        break;
                    }
                    Reply::Refused(status, body) => return Err(format!("a run was refused: {status} {body}")),
                    Reply::Lost(_) if beat.is_over() => {
                        self.doubt = Some(body);
                        return Ok(self);
                    }
                    Reply::Lost(_) => pause().await,
                }
            }
            tokio::time::sleep(random.millis(5..40)).await;
        }
        Ok(self)
    }

    fn record(&mut self, run: &Value) -> Result<(), String> {
        let (run_id, command_id) = (text(run, "/runId")?, text(run, "/command/commandId")?);
        let reply = reply(self.submitted.len());
        self.submitted.push(Turn { run_id, command_id, reply });
        Ok(())
    }

    /// Runs that exist, if each request had a single effect.
    pub(crate) fn count(&self) -> usize {
        self.submitted.len() + usize::from(self.doubt.is_some())
    }

    /// Waits until every turn has ended. `runs_expected` counts those of other tasks too.
    pub(crate) async fn settle(mut self, api: &Api, runs_expected: usize) -> Vec<String> {
        let mut violations = vec![];
        if let Some(body) = self.doubt.take() {
            let settled = api.insist("POST", "/api/v1/runs", Some(&body), SETTLE_WITHIN).await;
            violations.extend(settled.and_then(|run| self.record(&run)).err());
        }
        let started = now();
        for turn in &self.submitted {
            violations.extend(ended(api, turn, started).await.err());
        }
        match count_runs(api).await {
            Ok(runs) if runs == runs_expected => {}
            Ok(runs) => violations.push(format!("{runs} runs exist for {runs_expected} acknowledged keys")),
            Err(why) => violations.push(why),
        }
        violations
    }
}

async fn ended(api: &Api, turn: &Turn, started: std::time::Instant) -> Result<(), String> {
    let path = format!("/api/v1/runs/{}/commands/{}/result", turn.run_id, turn.command_id);
    let result = loop {
        let result = api.insist("GET", &path, None, SETTLE_WITHIN).await?;
        if !result["terminalStatus"].is_null() {
            break result;
        }
        if since(started) > SETTLE_WITHIN {
            let run = api.insist("GET", &format!("/api/v1/runs/{}", turn.run_id), None, SETTLE_WITHIN).await?;
            let jobs =
                api.insist("GET", &format!("/api/v1/runs/{}/runner-jobs", turn.run_id), None, SETTLE_WITHIN).await;
            return Err(format!(
                "{} has not ended {SETTLE_WITHIN:?} after the last fault: command {}, run {}, jobs {jobs:?}",
                turn.command_id, result["status"], run["status"]
            ));
        }
        pause().await;
    };
    if result["status"] != "completed" || result["reply"] != turn.reply.as_str() {
        let (status, kind, blocker) = (&result["status"], &result["failureKind"], &result["blocker"]);
        return Err(format!("{} ended {status} {kind} {blocker} with {}", turn.command_id, result["reply"]));
    }
    let events = api.events(&turn.run_id, SETTLE_WITHIN).await?;
    let of_type =
        |name: &str| events.iter().filter(|e| e["type"] == name && e["commandId"] == turn.command_id.as_str()).count();
    match (of_type("terminal_status"), of_type("user_message")) {
        (1, 0 | 1) => Ok(()),
        (ends, asked) => Err(format!("{} has {ends} ends and {asked} user messages", turn.command_id)),
    }
}

async fn count_runs(api: &Api) -> Result<usize, String> {
    let (mut count, mut cursor) = (0, String::new());
    loop {
        let path = format!("/api/v1/runs?limit={PAGE_RUNS}{cursor}");
        let page = api.insist("GET", &path, None, SETTLE_WITHIN).await?;
        // Prompts of the daemon have no key, so that how many runs they have started is not known.
        let runs = page["runs"].as_array().into_iter().flatten();
        count += runs.filter(|run| run["projectId"] != DAEMON_PROJECT).count();
        match page["nextCursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return Ok(count),
        }
    }
}
