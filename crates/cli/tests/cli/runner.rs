//! A runner played by the test: it writes numbered events in numbered batches and keeps its own book of what was
//! acknowledged, so that the store can be compared with it afterwards.

use std::{collections::BTreeMap, io, ops::Range};

use serde_json::{Value, json};

use crate::http::{Answer, Http};

const BATCH_EVENTS_MAX: i64 = 8;
const PAD_BYTES: usize = 200;

pub fn run_request() -> Value {
    json!({"tenantId": "local", "projectId": "local/default", "workspaceRef": {"kind": "none"}, "providerId": "local",
        "backendProfile": "scripted", "traceSink": null})
}

/// A run whose first turn is this prompt, ordered from the resident runner. Answers run and command.
pub fn submit(http: &mut Http, prompt: &str) -> (String, String) {
    let mut body = run_request();
    body["command"] = json!({"type": "turn", "payload": {"prompt": prompt}});
    let run = http.post("/api/v1/runs", &body).good();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    (text(&run["runId"]), text(&run["command"]["commandId"]))
}

/// A batch that was sent.
#[derive(Clone, Debug)]
pub struct Batch {
    epoch: i64,
    batch_no: i64,
    numbers: Range<i64>,
}

pub struct Writer {
    pub runner_id: String,
    pub run_id: String,
    pub command_id: String,
    pub epoch: Option<i64>,
    pub lease_ms: i64,
    pub pad_bytes: usize,
    last_batch_no: i64,
    next_number: i64,
    /// The number acknowledged at each seq.
    pub acked: BTreeMap<i64, i64>,
    /// Sent, and never answered.
    pub doubt: Option<Batch>,
}

impl Writer {
    /// A writer with a run and a turn of its own, not yet claimed.
    pub fn new(http: &mut Http, runner_id: &str) -> Self {
        let run = http.post("/api/v1/runs", &run_request()).good();
        let run_id = run["runId"].as_str().unwrap().to_owned();
        let turn = json!({"type": "turn", "payload": {"prompt": "count"}});
        let command = http.post(&format!("/api/v1/runs/{run_id}/commands"), &turn).good();
        Self {
            runner_id: runner_id.into(),
            run_id,
            command_id: command["commandId"].as_str().unwrap().to_owned(),
            epoch: None,
            lease_ms: 60_000,
            pad_bytes: PAD_BYTES,
            last_batch_no: 0,
            next_number: 0,
            acked: BTreeMap::new(),
            doubt: None,
        }
    }

    pub fn claim_as(&self, http: &mut Http, runner_id: &str) -> Answer {
        let body = json!({"runnerId": runner_id, "leaseMs": self.lease_ms});
        http.post(&format!("/api/v1/runs/{}/claim", self.run_id), &body)
    }

    pub fn claim(&mut self, http: &mut Http) {
        let claimed = self.claim_as(http, &self.runner_id).good();
        let epoch = claimed["leaseEpoch"].as_i64().unwrap();
        assert!(self.epoch.is_none_or(|before| epoch > before), "each claim raises the epoch");
        self.epoch = Some(epoch);
    }

    /// The next batch: a few events, numbered on.
    pub fn next_batch(&mut self) -> Batch {
        self.last_batch_no += 1;
        let first = self.next_number;
        self.next_number += 1 + self.last_batch_no % BATCH_EVENTS_MAX;
        Batch { epoch: self.epoch.unwrap(), batch_no: self.last_batch_no, numbers: first..self.next_number }
    }

    /// Sends a batch. Once it is answered well, it is in the book; without an answer it is in doubt.
    pub fn append(&mut self, http: &mut Http, batch: &Batch) -> io::Result<Answer> {
        let pad = "x".repeat(self.pad_bytes);
        let event = |n| json!({"type": "custom", "commandId": self.command_id, "payload": {"n": n, "pad": pad}});
        let events: Vec<_> = batch.numbers.clone().map(event).collect();
        let body = json!({"runnerId": self.runner_id, "leaseEpoch": batch.epoch, "batchNo": batch.batch_no,
            "events": events});
        self.doubt = Some(batch.clone());
        let answer = http.send("POST", &format!("/api/v1/runs/{}/events", self.run_id), &[], &body.to_string())?;
        self.doubt = None;
        if answer.status == 200 {
            let (first, last) = (seq(&answer, "firstSeq"), seq(&answer, "lastSeq"));
            assert_eq!(last - first, batch.numbers.end - batch.numbers.start - 1, "{answer:?}");
            self.acked.extend((first..=last).zip(batch.numbers.clone()));
        }
        Ok(answer)
    }

    /// Appends until the server is gone, or has had enough.
    pub fn write_until_cut_off(&mut self, http: &mut Http) {
        if self.epoch.is_none() {
            self.claim(http);
        }
        loop {
            let batch = self.next_batch();
            match self.append(http, &batch) {
                Ok(answer) => assert_eq!(answer.status, 200, "{answer:?}"),
                Err(_) => return,
            }
        }
    }

    /// Compares the store with the book. Answers whether the batch in doubt is there; it is wholly there or not at all.
    #[track_caller]
    pub fn check(&self, http: &mut Http) -> bool {
        let events = http.events(&self.run_id);
        let mut stored: BTreeMap<i64, i64> = BTreeMap::new();
        for event in events.iter().filter(|event| event["type"] == "custom") {
            stored.insert(event["seq"].as_i64().unwrap(), event["payload"]["n"].as_i64().unwrap());
        }
        for (seq, number) in &self.acked {
            assert_eq!(stored.remove(seq), Some(*number), "event {seq} of {} was acknowledged", self.run_id);
        }
        let left: Vec<_> = stored.into_values().collect();
        let doubted = self.doubt.as_ref().map(|batch| batch.numbers.clone().collect::<Vec<_>>()).unwrap_or_default();
        assert!(left.is_empty() || left == doubted, "stored {left:?}, in doubt {doubted:?}");
        !left.is_empty()
    }
}

fn seq(answer: &Answer, name: &str) -> i64 {
    answer.json()[name].as_i64().unwrap()
}

/// How many events of this type have this value at the pointer.
pub fn count(events: &[Value], event_type: &str, pointer: &str, value: &str) -> usize {
    select(events, event_type, pointer, value).len()
}

pub fn select<'a>(events: &'a [Value], event_type: &str, pointer: &str, value: &str) -> Vec<&'a Value> {
    let fits = |event: &&Value| event["type"] == event_type && event["payload"].pointer(pointer) == Some(&json!(value));
    events.iter().filter(fits).collect()
}
