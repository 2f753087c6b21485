//! A server that consists of the pure kernel only: one session in memory, called in process. It has no store, no
//! authentication and no sweeper. Those are tested with the real server.

use std::{
    str::FromStr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU32, Ordering},
    },
};

use bytes::Bytes;
use futures_util::FutureExt;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use ostler_client::{Client, ReplyBody};
use ostler_protocol::{
    Failure, FailureKind, RawJson, Timestamp,
    ids::{AttemptId, CommandId, PermissionId, RunId, SessionId},
    kernel::{
        commands::{AckCommand, Command, CommandPage, CommandState, CommandType, PollCommands, news_mark},
        conversation::{Conversation, HistoryAttachment},
        events::{AppendEvents, Event, EventType, NewEvent},
        leases::{ClaimRun, PatchLease},
        operations::{self, *},
        permissions::{PermissionRequest, PermissionStatus, Voter, VotingRules},
        results::{ResultParts, RunResult, TargetingEvents},
        runs::Run,
        sessions::Session,
    },
    redaction::Redactor,
    run_input::history::{Picture, pictures},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::{
    sync::Notify,
    time::{Duration, Instant, timeout},
};
use uuid::Uuid;

pub(crate) const RUN: u128 = 1;

static KERNELS: AtomicU32 = AtomicU32::new(0);

pub(crate) struct Kernel {
    number: u32,
    desk: Mutex<Desk>,
    redactor: Redactor,
    changed: Notify,
    started: Instant,
    /// Each call, as `METHOD path-without-ids`.
    pub calls: Mutex<Vec<String>>,
    /// Calls, in the same form, that fail once each, as if the connection broke after the server had handled them.
    pub breaks: Mutex<Vec<String>>,
}

impl Kernel {
    pub(crate) fn new(policy: Value) -> Arc<Self> {
        let session_id = SessionId::new(Uuid::from_u128(9));
        let mut execution_policy = json!({"sandbox": "read-only", "approval": "never", "timeoutMs": 60_000,
            "network": "enabled", "secretScope": {}});
        execution_policy.as_object_mut().unwrap().extend(policy.as_object().cloned().unwrap_or_default());
        let run = json!({"runId": RunId::new(Uuid::from_u128(RUN)), "sessionId": "s", "tenantId": "local", "projectId": "p",
            "workspaceRef": {"kind": "none"}, "providerId": "x", "backendProfile": "scripted", "traceSink": null,
            "executionPolicy": execution_policy, "status": "pending", "terminal": null, "cancelRequestedAt": null,
            "lastSeq": 0, "commandCount": 0, "unfinishedCommands": 0, "leaseEpoch": 0, "attemptId": null, "createdAt": "1970-01-01T00:00:00Z",
            "updatedAt": "1970-01-01T00:00:00Z"});
        let mut run: Run = serde_json::from_str(&run.to_string()).unwrap();
        run.session = session_id;
        let session = Session::new(session_id, "local".into(), None, "scripted".into(), Timestamp::UNIX_EPOCH);
        let mut desk = Desk::new(Tracked::new(session));
        desk.runs.insert(run.run_id, RunDesk::new(Tracked::new(run)));
        Arc::new(Self {
            number: KERNELS.fetch_add(1, Ordering::Relaxed),
            desk: Mutex::new(desk),
            redactor: Redactor::new(&[]),
            changed: Notify::new(),
            started: Instant::now(),
            calls: Mutex::default(),
            breaks: Mutex::default(),
        })
    }

    pub(crate) fn client(self: &Arc<Self>) -> Client {
        let kernel = self.clone();
        Client::in_process(Arc::new(move |request| kernel.clone().respond(request).boxed()), None)
    }

    pub(crate) fn run_id(&self) -> RunId {
        RunId::new(Uuid::from_u128(RUN))
    }

    pub(crate) fn apply(&self, op: Op) -> Result<Reply, Failure> {
        let now = self.now();
        let request =
            operations::Request { session: SessionId::new(Uuid::from_u128(9)), run_id: Some(self.run_id()), op };
        let reply = operations::apply(&mut self.desk(), request, now);
        self.changed.notify_waiters();
        reply
    }

    /// Submits a command. Commands are numbered from 1.
    pub(crate) fn submit(&self, command_type: CommandType, payload: Value) -> CommandId {
        let number = self.desk().runs[&self.run_id()].commands.len() as u128 + 1;
        let command_id = CommandId::new(Uuid::from_u128(number));
        let command = json!({"commandId": command_id, "runId": self.run_id(), "seq": 0, "type": command_type,
            "payload": payload, "payloadHash": "", "idempotencyKey": null, "state": "pending", "targetCommandId": null,
            "cancelRequestedAt": null, "ackedAt": null, "attemptId": null, "terminal": null,
            "createdAt": "1970-01-01T00:00:00Z", "updatedAt": "1970-01-01T00:00:00Z"});
        let command = serde_json::from_str(&command.to_string()).unwrap();
        let content = json!({"commandType": command_type, "content": [{"type": "text", "text": payload["prompt"]}]});
        let message = NewEvent::written(EventType::UserMessage, Some(command_id), &content);
        let storage_missing = Default::default();
        let op = CreateCommandOp { command, message, facts: vec![], storage_missing, unsteerable: None };
        self.apply(Op::CreateCommand(Box::new(op))).unwrap();
        command_id
    }

    pub(crate) fn turn(&self, steps: Value) -> CommandId {
        self.submit(CommandType::Turn, json!({"prompt": json!({"script": steps}).to_string()}))
    }

    pub(crate) fn command(&self, id: CommandId) -> Command {
        (*self.desk().runs[&self.run_id()].commands[&id]).clone()
    }

    pub(crate) fn run(&self) -> Run {
        (*self.desk().runs[&self.run_id()].run).clone()
    }

    pub(crate) fn leased(&self) -> bool {
        let now = self.now();
        self.desk().runs[&self.run_id()].live_lease(now).is_some()
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        self.desk().events.clone()
    }

    /// The types of the events that the runner appended for a command.
    pub(crate) fn types(&self, command_id: CommandId) -> Vec<&'static str> {
        let of_runner = |e: &&Event| e.command_id == Some(command_id) && e.event_type != EventType::UserMessage;
        self.events().iter().filter(of_runner).map(|e| e.event_type.as_str()).collect()
    }

    pub(crate) fn permissions(&self) -> Vec<PermissionRequest> {
        self.desk().runs[&self.run_id()].permissions.values().map(|p| (**p).clone()).collect()
    }

    pub(crate) fn answer_permission(&self, permission_id: PermissionId, option_id: &str, digest: &str) {
        let (choice, digest) = (Choice::Option(option_id.to_owned()), Some(digest.to_owned()));
        let voter = Voter { principal: "me".into(), client: None, is_local: true };
        self.apply(Op::AnswerPermission(Box::new(AnswerPermissionOp { permission_id, choice, digest, voter })))
            .unwrap();
    }

    pub(crate) async fn until(&self, holds: impl Fn(&Self) -> bool) {
        self.until_within(Duration::from_secs(120), holds).await;
    }

    pub(crate) async fn until_within(&self, limit: Duration, holds: impl Fn(&Self) -> bool) {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                if holds(self) {
                    return;
                }
                changed.await;
            }
        };
        if timeout(limit, wait).await.is_err() {
            let events: Vec<_> =
                self.events().iter().map(|event| (event.event_type.as_str(), payload(event))).collect();
            panic!("the condition never held: {events:#?}");
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().expect("no test panics while it holds the desk")
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_millisecond((Instant::now() - self.started).as_millis() as i64).unwrap()
    }

    async fn respond(self: Arc<Self>, request: Request<Bytes>) -> Response<ReplyBody> {
        let path = request.uri().path().trim_start_matches("/api/v1/").to_owned();
        let parts: Vec<_> = path.split('/').collect();
        let shape: Vec<_> = parts.iter().filter(|p| !p.contains('_')).copied().collect();
        let call = format!("{} {}", request.method(), shape.join("/"));
        self.calls.lock().expect("no panic").push(call.clone());
        let result = self.route(request.method(), &parts, request.uri().query().unwrap_or(""), request.body()).await;
        let broken = {
            let mut breaks = self.breaks.lock().expect("no panic");
            let hit = breaks.iter().position(|b| *b == call);
            hit.map(|index| breaks.remove(index)).is_some()
        };
        let (status, body) = match result {
            _ if broken => (502, json!("the connection broke").to_string()),
            Ok(body) => (200, body),
            Err(f) => {
                let details = f.details.unwrap_or_default();
                let problem = json!({"failureKind": f.kind, "message": f.message, "traceId": "t", "details": details});
                (f.kind.row().status, problem.to_string())
            }
        };
        let body: ReplyBody = Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync();
        Response::builder().status(status).body(body).expect("a well-formed response")
    }

    async fn route(&self, method: &Method, parts: &[&str], query: &str, body: &Bytes) -> Result<String, Failure> {
        match (method.as_str(), parts) {
            ("POST", ["runs", _, "claim"]) => {
                let ClaimRun { runner_id, lease_ms, take_up } = read(body);
                // Unique across test processes, because the processes of a backend are recognised by it.
                let own = u128::from(std::process::id()) << 64 | u128::from(self.number) << 32;
                let attempt_id = AttemptId::new(Uuid::from_u128(own | (100 + self.run().lease_epoch as u128)));
                match self.apply(Op::Claim(ClaimOp {
                    runner_id,
                    lease_ms: lease_ms.unwrap_or(60_000),
                    attempt_id,
                    take_up,
                }))? {
                    Reply::Claimed(claimed) => Ok(text(&claimed)),
                    other => panic!("{other:?}"),
                }
            }
            ("PATCH", ["runs", _, "lease"]) => {
                let PatchLease { runner_id, lease_epoch, lease_ms, release, only_if_idle } = read(body);
                match self.apply(Op::PatchLease(PatchLeaseOp {
                    runner_id,
                    lease_epoch,
                    lease_ms,
                    release,
                    only_if_idle,
                }))? {
                    Reply::Lease(state) => Ok(text(&state)),
                    other => panic!("{other:?}"),
                }
            }
            ("POST", ["commands", id, "ack"]) => {
                let AckCommand { runner_id, lease_epoch, attempt_id } = read(body);
                let attempt_id = attempt_id.map(|id| id.parse().unwrap());
                match self.apply(Op::Ack(AckOp {
                    command_id: id.parse().unwrap(),
                    runner_id,
                    lease_epoch,
                    attempt_id,
                }))? {
                    Reply::Command(command, _) => Ok(text(&command)),
                    other => panic!("{other:?}"),
                }
            }
            ("POST", ["runs", _, "events"]) => self.append(read(body)),
            ("GET", ["runs", _, "commands"]) => self.poll(query).await,
            ("GET", ["runs", _, "commands", id, "result"]) => Ok(self.result(id.parse().unwrap())),
            ("GET", ["runs", _, "commands", id, "conversation"]) => {
                let id = id.parse().unwrap();
                let attachment = |picture: Picture| {
                    let (mime_type, url) = (picture.mime_type, picture.url.expect("pictures with URLs only"));
                    HistoryAttachment { mime_type, url }
                };
                let images = pictures(self.command(id).payload.as_str()).into_iter().map(attachment).collect();
                Ok(text(&Conversation { images, ..Conversation::before(id, &self.events()) }))
            }
            ("GET", ["agent", "attachments", "object", _, "here.gif"]) => {
                assert_eq!(query, "expires=1&signature=2");
                Ok("GIF89a".into())
            }
            other => Err(Failure::new(FailureKind::NotFound, format!("{other:?}"))),
        }
    }

    fn append(&self, batch: AppendEvents) -> Result<String, Failure> {
        let events: Result<_, _> = batch.events.into_iter().map(|e| NewEvent::receive(e, &self.redactor)).collect();
        let op = AppendOp {
            runner_id: batch.runner_id,
            lease_epoch: batch.lease_epoch,
            attempt_id: batch.attempt_id.map(|id| id.parse().unwrap()),
            batch_no: batch.batch_no,
            release_if_idle: batch.release_if_idle,
            ends_job: None,
            voting: VotingRules::default(),
            known_calls: None,
            events: events?,
        };
        match self.apply(Op::Append(op))? {
            Reply::Appended(appended) => Ok(text(&appended)),
            other => panic!("{other:?}"),
        }
    }

    async fn poll(&self, query: &str) -> Result<String, Failure> {
        let get = |name: &str| query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
        let number = |name| get(name).map_or(0, |n| u64::from_str(n).unwrap());
        let polled = PollCommands { after_seq: number("afterSeq") as i64, ..PollCommands::default() };
        let known = get("knownNews").unwrap_or_default();
        let news = |page: &CommandPage| !page.commands.is_empty() || page.news_mark != known;
        let _ = timeout(Duration::from_millis(number("waitMs")), self.until(|k| news(&k.page(polled.after_seq)))).await;
        Ok(text(&self.page(polled.after_seq)))
    }

    fn page(&self, after_seq: i64) -> CommandPage {
        let desk = self.desk();
        let rows = &desk.runs[&self.run_id()];
        let resolved = |p: &&PermissionRequest| {
            p.status != PermissionStatus::Pending && !rows.commands[&p.command_id].state.is_terminal()
        };
        let cancelling = rows.run.cancel_requested_at.is_some();
        let cancelled = rows.unfinished().filter(|c| c.cancel_requested_at.is_some());
        let cancel_requested: Vec<_> = cancelled.map(|c| c.command_id).collect();
        let resolved_permissions: Vec<_> = rows.permissions.values().map(|p| &**p).filter(resolved).cloned().collect();
        CommandPage {
            commands: rows.unfinished().filter(|c| c.seq > after_seq).cloned().collect(),
            news_mark: news_mark(&rows.run, &cancel_requested, &resolved_permissions),
            cancel_requested,
            run_cancel_requested: cancelling,
            resolved_permissions,
            next_after_seq: rows.run.command_count,
        }
    }

    fn result(&self, command_id: CommandId) -> String {
        let now = self.now();
        let desk = self.desk();
        let rows = &desk.runs[&self.run_id()];
        let parts = ResultParts {
            run: (*rows.run).clone(),
            command: Some((*rows.commands[&command_id]).clone()),
            lease: rows.lease.as_deref().cloned(),
            open_permissions: vec![],
            reply_text: None,
            payloads_removed_at: None,
            target_last_seq: None,
            targeting: TargetingEvents::default(),
            session_seq: desk.session.last_seq,
            chain_head: desk.session.chain_head,
        };
        text(&RunResult::of(parts, now))
    }
}

pub(crate) fn payload(event: &Event) -> Value {
    RawJson::parse(event.payload.as_deref().unwrap_or("null").to_owned()).unwrap().to_value()
}

pub(crate) fn is_running(kernel: &Kernel, id: CommandId) -> bool {
    kernel.command(id).state == CommandState::Running
}

pub(crate) fn of_type(kernel: &Kernel, event_type: EventType) -> Vec<Value> {
    kernel.events().iter().filter(|e| e.event_type == event_type).map(payload).collect()
}

fn read<T: DeserializeOwned>(body: &Bytes) -> T {
    serde_json::from_slice(body).unwrap()
}

fn text<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap()
}
