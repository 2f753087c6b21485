//! Acknowledged prompts and votes of the daemon. One session gets numbered prompts that ask for a permission, and a vote on each
//! request. Each acknowledged prompt must be in the log once and end once, completed; each acknowledged vote must have counted; and
//! the frames that a client reads afterwards must say the same. A prompt has no key, so that a lost response leaves it in doubt: it
//! was submitted once or not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::StreamExt;
use ostler_client::daemon::SessionClient;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use crate::{
    api::{Api, Reply, pause, text},
    clock::{now, since},
    load::{Beat, SETTLE_WITHIN},
};

const PAUSE: Duration = Duration::from_millis(20);
const FRAME_TIMEOUT: Duration = Duration::from_secs(5);
const PAGE_EVENTS: usize = 1_000;

pub(crate) struct Prompts {
    session_id: String,
    next: usize,
    /// The prompt ids of the numbers that were acknowledged.
    acknowledged: BTreeMap<usize, String>,
    /// Numbers whose response was lost.
    doubts: BTreeSet<usize>,
    /// The permission requests whose vote was acknowledged.
    votes: BTreeSet<String>,
}

fn prompt_text(number: usize) -> String {
    let ask = json!({"title": format!("question {number}"), "command": format!("make {number}")});
    json!({"script": [{"ask": ask}, {"say": format!("prompt {number} is done")}]}).to_string()
}

impl Prompts {
    /// The session that all clients share, so that a request whose response was lost can be repeated.
    pub(crate) async fn create(beat: &Beat) -> Result<Self, String> {
        let opened = beat.api.insist("POST", "/session", Some(&json!({})), SETTLE_WITHIN).await?;
        Ok(Self {
            session_id: text(&opened, "/sessionId")?,
            next: 0,
            acknowledged: BTreeMap::new(),
            doubts: BTreeSet::new(),
            votes: BTreeSet::new(),
        })
    }

    /// Sends prompts and votes until the round is over.
    pub(crate) async fn work(mut self, beat: Beat) -> Result<Self, String> {
        while !beat.is_over() {
            let number = self.next;
            self.next += 1;
            let body = json!({"prompt": [{"type": "text", "text": prompt_text(number)}]});
            match beat.api.call("POST", &format!("/session/{}/prompt", self.session_id), Some(&body)).await {
                Reply::Good(accepted) => {
                    self.acknowledged.insert(number, text(&accepted, "/promptId")?);
                    beat.acknowledge(1);
                }
                Reply::Refused(status, body) => return Err(format!("a prompt was refused: {status} {body}")),
                Reply::Lost(_) => {
                    self.doubts.insert(number);
                    pause().await;
                }
            }
            // The next prompt comes when nothing waits any more, so that the queue is never full.
            while !beat.is_over() {
                match self.log(&beat.api, Duration::ZERO).await {
                    Ok(log) if log.is_at_rest() => break,
                    Ok(log) => self.vote(&beat, &log).await?,
                    Err(_) => {}
                }
                sleep(PAUSE).await;
            }
        }
        Ok(self)
    }

    /// Votes on every request that is open.
    async fn vote(&mut self, beat: &Beat, log: &Log) -> Result<(), String> {
        for request in log.open_requests() {
            let vote = json!({"outcome": {"outcome": "selected", "optionId": "allow"}});
            match beat.api.call("POST", &format!("/permission/{request}"), Some(&vote)).await {
                Reply::Good(_) => {
                    self.votes.insert(request);
                    beat.acknowledge(1);
                }
                // A vote whose response was lost has counted, or the turn has ended.
                Reply::Refused(404, _) | Reply::Lost(_) => {}
                Reply::Refused(status, body) => return Err(format!("a vote was refused: {status} {body}")),
            }
        }
        Ok(())
    }

    async fn log(&self, api: &Api, within: Duration) -> Result<Log, String> {
        let mut events: Vec<Value> = vec![];
        loop {
            let after = events.len();
            let path = format!("/api/v1/sessions/{}/trace?limit={PAGE_EVENTS}&afterSeq={after}", self.session_id);
            let page = api.insist("GET", &path, None, within).await?;
            events.extend(page["events"].as_array().into_iter().flatten().cloned());
            if page["hasMore"] != true {
                return Ok(Log(events));
            }
        }
    }

    /// Waits until everything has ended, and compares log and frames with the ledger. Returns the number of acknowledged prompts
    /// and votes.
    pub(crate) async fn settle(mut self, beat: Beat) -> Result<u64, String> {
        let started = now();
        let log = loop {
            let log = self.log(&beat.api, SETTLE_WITHIN).await?;
            if log.is_at_rest() {
                break log;
            }
            if since(started) > SETTLE_WITHIN {
                return Err(format!("prompts of {} have not ended in time: {:?}", self.session_id, log.unfinished()));
            }
            self.vote(&beat, &log).await?;
            sleep(PAUSE).await;
        };
        for number in 0..self.next {
            let commands = log.commands_of(&prompt_text(number));
            match (commands.len(), self.doubts.contains(&number)) {
                (1, _) | (0, true) => {}
                (count, _) => return Err(format!("prompt {number} is in the log {count} times")),
            }
            for command in commands {
                let ends = log.ends_of(&command);
                if ends != ["completed"] {
                    return Err(format!("prompt {number} ended {ends:?}"));
                }
            }
        }
        for request in &self.votes {
            if log.choice(request) != Some("allow") {
                return Err(format!("the vote on {request} was acknowledged and did not count"));
            }
        }
        self.check_frames(&beat.api).await?;
        Ok((self.acknowledged.len() + self.votes.len()) as u64)
    }

    /// The replayed frames have the end of every acknowledged prompt once, and rising ids.
    async fn check_frames(&self, api: &Api) -> Result<(), String> {
        let (mut ended, mut last) = (vec![], 0);
        let started = now();
        'connections: loop {
            if since(started) > SETTLE_WITHIN {
                return Err(format!("the frames of {} were not replayed in time", self.session_id));
            }
            let session = SessionClient::new(api.client().clone(), self.session_id.clone(), None);
            let Ok(Ok(mut frames)) = timeout(FRAME_TIMEOUT, session.frames(Some(last))).await else {
                api.turn_away();
                pause().await;
                continue;
            };
            while let Ok(Some(Ok(frame))) = timeout(FRAME_TIMEOUT, frames.next()).await {
                if let Some(id) = frame.id {
                    if id <= last {
                        return Err(format!("frame {id} came after frame {last}"));
                    }
                    last = id;
                }
                match frame.frame_type.as_str() {
                    "turn_complete" => ended.extend(frame.data["promptId"].as_str().map(str::to_owned)),
                    "replay_complete" => break 'connections,
                    _ => {}
                }
            }
        }
        for (number, prompt_id) in &self.acknowledged {
            let count = ended.iter().filter(|id| *id == prompt_id).count();
            if count != 1 {
                return Err(format!("{count} frames report the end of prompt {number}"));
            }
        }
        Ok(())
    }
}

/// All events of the session.
struct Log(Vec<Value>);

impl Log {
    fn of_type<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Value> {
        self.0.iter().filter(move |event| event["type"] == name)
    }

    fn commands_of(&self, prompt: &str) -> Vec<String> {
        let messages = self.of_type("user_message").filter(|event| event["payload"]["content"][0]["text"] == prompt);
        messages.filter_map(|event| event["commandId"].as_str().map(str::to_owned)).collect()
    }

    fn ends_of(&self, command: &str) -> Vec<&str> {
        let ends = self.of_type("terminal_status").filter(|event| event["commandId"] == command);
        ends.filter_map(|event| event["payload"]["status"].as_str()).collect()
    }

    fn unfinished(&self) -> Vec<&str> {
        let commands = self.of_type("user_message").filter_map(|event| event["commandId"].as_str());
        commands.filter(|command| self.ends_of(command).is_empty()).collect()
    }

    fn is_at_rest(&self) -> bool {
        self.unfinished().is_empty()
    }

    fn choice(&self, request: &str) -> Option<&str> {
        self.of_type("permission_resolved")
            .find(|event| event["payload"]["permissionId"] == request)
            .and_then(|event| event["payload"]["optionId"].as_str())
    }

    fn open_requests(&self) -> Vec<String> {
        let resolved: BTreeSet<&str> = self.ids("permission_resolved").collect();
        self.ids("permission_request").filter(|id| !resolved.contains(id)).map(str::to_owned).collect()
    }

    fn ids<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a str> {
        self.of_type(kind).filter_map(|event| event["payload"]["permissionId"].as_str())
    }
}
