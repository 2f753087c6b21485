//! Acknowledged events. A writer plays a runner: it appends numbered events in numbered batches and records at which
//! sequence number each was acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use serde_json::{Value, json};

use crate::{
    api::{Reply, number, pause, text},
    clock::{now, since},
    load::{Beat, SETTLE_WITHIN},
};

const BATCH_EVENTS_MAX: i64 = 8;
const PAD_BYTES: usize = 120;
const LEASE_MS: i64 = 60_000;

pub(crate) fn run_request() -> Value {
    json!({"tenantId": "local", "projectId": "local/default", "workspaceRef": {"kind": "none"}, "providerId": "local",
        "backendProfile": "scripted", "traceSink": null})
}

pub(crate) struct Writer {
    runner_id: String,
    pub run_id: String,
    command_id: String,
    epoch: Option<i64>,
    last_epoch: i64,
    batch_no: i64,
    next: i64,
    pad: String,
    /// The number acknowledged at each sequence number.
    acknowledged: BTreeMap<i64, i64>,
    /// Batches that were sent and never settled: each is stored whole or not at all.
    doubts: Vec<Range<i64>>,
}

/// What became of a batch.
enum Sent {
    Stored,
    Refused,
    Doubtful,
}

impl Writer {
    /// A writer with a run and a turn of its own. The idempotency key makes a lost answer harmless.
    pub(crate) async fn create(beat: &Beat, name: &str) -> Result<Self, String> {
        let mut body = run_request();
        body["idempotencyKey"] = json!(format!("run-of-{name}"));
        let run = beat.api.insist("POST", "/api/v1/runs", Some(&body), SETTLE_WITHIN).await?;
        let run_id = text(&run, "/runId")?;
        let turn = json!({"type": "turn", "payload": {"prompt": "count"}, "idempotencyKey": "turn"});
        let path = format!("/api/v1/runs/{run_id}/commands");
        let command = beat.api.insist("POST", &path, Some(&turn), SETTLE_WITHIN).await?;
        Ok(Self {
            runner_id: name.to_owned(),
            run_id,
            command_id: text(&command, "/commandId")?,
            epoch: None,
            last_epoch: 0,
            batch_no: 0,
            next: 0,
            pad: "x".repeat(PAD_BYTES),
            acknowledged: BTreeMap::new(),
            doubts: vec![],
        })
    }

    /// Appends until the round is over.
    pub(crate) async fn work(mut self, beat: Beat) -> Result<Self, String> {
        while !beat.is_over() {
            let Some(epoch) = self.claim(&beat).await? else { continue };
            let first = self.next;
            self.batch_no += 1;
            self.next += 1 + self.batch_no % BATCH_EVENTS_MAX;
            match self.append(&beat, epoch, first..self.next).await? {
                Sent::Stored => {}
                Sent::Refused => self.epoch = None,
                Sent::Doubtful => {
                    self.doubts.push(first..self.next);
                    self.epoch = None;
                }
            }
        }
        Ok(self)
    }

    /// The epoch to write under. `None` if the claim was not answered.
    async fn claim(&mut self, beat: &Beat) -> Result<Option<i64>, String> {
        if self.epoch.is_some() {
            return Ok(self.epoch);
        }
        let body = json!({"runnerId": self.runner_id, "leaseMs": LEASE_MS});
        match beat.api.call("POST", &format!("/api/v1/runs/{}/claim", self.run_id), Some(&body)).await {
            Reply::Good(claimed) => {
                let epoch = number(&claimed, "/leaseEpoch")?;
                if epoch <= self.last_epoch {
                    return Err(format!("{}: a claim gave epoch {epoch} after {}", self.run_id, self.last_epoch));
                }
                (self.epoch, self.last_epoch, self.batch_no) = (Some(epoch), epoch, 0);
                Ok(self.epoch)
            }
            Reply::Refused(status, body) => Err(format!("{}: a claim was refused: {status} {body}", self.run_id)),
            Reply::Lost(_) => {
                pause().await;
                Ok(None)
            }
        }
    }

    /// Sends one batch, again and again as it is, until it is settled or the round is over.
    async fn append(&mut self, beat: &Beat, epoch: i64, numbers: Range<i64>) -> Result<Sent, String> {
        let event = |n| json!({"type": "custom", "commandId": self.command_id, "payload": {"n": n, "pad": self.pad}});
        let events: Vec<Value> = numbers.clone().map(event).collect();
        let body = json!({"runnerId": self.runner_id, "leaseEpoch": epoch, "batchNo": self.batch_no, "events": events});
        let path = format!("/api/v1/runs/{}/events", self.run_id);
        let mut was_lost = false;
        loop {
            match beat.api.call("POST", &path, Some(&body)).await {
                Reply::Good(appended) => {
                    let (first, last) = (number(&appended, "/firstSeq")?, number(&appended, "/lastSeq")?);
                    if last - first != numbers.end - numbers.start - 1 {
                        return Err(format!("{}: {} events got {first} to {last}", self.run_id, events.len()));
                    }
                    self.acknowledged.extend((first..=last).zip(numbers.clone()));
                    beat.acknowledge(events.len());
                    return Ok(Sent::Stored);
                }
                Reply::Refused(409, body) if body["failureKind"] == "runner-lease-conflict" => {
                    return Ok(if was_lost { Sent::Doubtful } else { Sent::Refused });
                }
                Reply::Refused(status, body) => {
                    return Err(format!("{}: an append was refused: {status} {body}", self.run_id));
                }
                Reply::Lost(_) if beat.is_over() => return Ok(Sent::Doubtful),
                Reply::Lost(_) => {
                    was_lost = true;
                    pause().await;
                }
            }
        }
    }

    /// Ends the command and compares the store with the ledger. Returns the number of acknowledged events and the last
    /// sequence number of the run.
    pub(crate) async fn settle(mut self, beat: &Beat) -> Result<(u64, i64), String> {
        self.end(beat).await?;
        let events = beat.api.events(&self.run_id, SETTLE_WITHIN).await?;
        self.compare(&events)?;
        let ends = events.iter().filter(|event| event["type"] == "terminal_status");
        let ends: Vec<_> = ends.filter(|event| event["commandId"] == self.command_id.as_str()).collect();
        match ends.as_slice() {
            [end] if end["payload"]["status"] == "completed" => {
                Ok((self.acknowledged.len() as u64, events.len() as i64))
            }
            ends => Err(format!("{}: its command has the ends {ends:?}", self.run_id)),
        }
    }

    async fn end(&mut self, beat: &Beat) -> Result<(), String> {
        let started = now();
        let path = format!("/api/v1/commands/{}/status", self.command_id);
        while since(started) < SETTLE_WITHIN {
            let Some(epoch) = self.claim(beat).await? else { continue };
            let body = json!({"runnerId": self.runner_id, "leaseEpoch": epoch, "status": "completed"});
            match beat.api.call("PATCH", &path, Some(&body)).await {
                Reply::Good(_) => return Ok(()),
                Reply::Refused(409, body) if body["failureKind"] == "runner-lease-conflict" => self.epoch = None,
                Reply::Refused(status, body) => {
                    return Err(format!("{}: the end was refused: {status} {body}", self.run_id));
                }
                Reply::Lost(_) => pause().await,
            }
        }
        Err(format!("{}: its command could not be ended within {SETTLE_WITHIN:?}", self.run_id))
    }

    /// Every acknowledged event at its number, once and in order; of the batches in doubt all or nothing; nothing else.
    fn compare(&self, events: &[Value]) -> Result<(), String> {
        let mut stored: BTreeMap<i64, i64> = BTreeMap::new();
        for event in events.iter().filter(|event| event["type"] == "custom") {
            stored.insert(number(event, "/seq")?, number(event, "/payload/n")?);
        }
        if !stored.values().is_sorted_by(|before, after| before < after) {
            return Err(format!("{}: events are stored twice or out of order", self.run_id));
        }
        for (seq, n) in &self.acknowledged {
            match stored.remove(seq) {
                Some(found) if found == *n => {}
                other => return Err(format!("{}: event {n} was acknowledged at {seq}, found {other:?}", self.run_id)),
            }
        }
        let mut rest: BTreeSet<i64> = stored.into_values().collect();
        for doubt in &self.doubts {
            let there = doubt.clone().filter(|n| rest.remove(n)).count() as i64;
            if there != 0 && there != doubt.end - doubt.start {
                return Err(format!("{}: {there} of the batch {doubt:?} are stored", self.run_id));
            }
        }
        match rest.first() {
            None => Ok(()),
            Some(n) => Err(format!("{}: event {n} was refused or never sent, and is stored", self.run_id)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer() -> Writer {
        Writer {
            runner_id: "r".into(),
            run_id: "run_1".into(),
            command_id: "cmd_1".into(),
            epoch: None,
            last_epoch: 0,
            batch_no: 0,
            next: 6,
            pad: String::new(),
            acknowledged: [(2, 0), (3, 1)].into(),
            doubts: std::iter::once(2..4).collect(),
        }
    }

    fn events(numbers: &[(i64, i64)]) -> Vec<Value> {
        numbers.iter().map(|(seq, n)| json!({"type": "custom", "seq": seq, "payload": {"n": n}})).collect()
    }

    #[test]
    fn the_comparison_finds_every_kind_of_violation() {
        let found = |numbers: &[(i64, i64)]| writer().compare(&events(numbers)).err().unwrap_or_default();
        assert_eq!(found(&[(2, 0), (3, 1)]), "");
        assert_eq!(found(&[(2, 0), (3, 1), (4, 2), (5, 3)]), "", "a batch in doubt may be stored whole");
        assert!(found(&[(2, 0)]).contains("found None"), "a lost event");
        assert!(found(&[(2, 0), (3, 2)]).contains("found Some(2)"), "another event at its number");
        assert!(found(&[(2, 0), (3, 1), (4, 1)]).contains("twice"), "a repeated event");
        assert!(found(&[(2, 0), (3, 1), (4, 2)]).contains("of the batch"), "half a batch");
        assert!(found(&[(2, 0), (3, 1), (4, 5)]).contains("never sent"), "a refused event");
    }
}
