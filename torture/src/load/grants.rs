//! Acknowledged grants. A person answers an agent's request again and again, each time differently; every acknowledged
//! answer must have its receipt, in order, and the relation must be as in the last receipt.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    api::{Api, Reply, text},
    load::{Beat, SETTLE_WITHIN},
};

/// Each answer grants another subset of these, so that a receipt identifies its answer.
const SCOPES: usize = 10;
const ANSWERS_MAX: usize = (1 << SCOPES) - 1;
const PAUSE: Duration = Duration::from_millis(15);
const PAGE_RECEIPTS: usize = 100;

pub(crate) struct Grants {
    relation_id: String,
    manifest_hash: String,
    answers: Vec<Answer>,
}

#[derive(Debug)]
struct Answer {
    granted: Vec<String>,
    is_acknowledged: bool,
}

fn manifest() -> Value {
    let scope = |number: usize| {
        json!({"id": scope(number), "label_i18n_key": "a.b", "label_fallback": "Notes", "description_fallback": "Notes.",
            "sensitivity": "low"})
    };
    json!({"schema_version": "1.0", "agent_version": "1.0.0", "tools": [],
        "permission_scopes": (0..SCOPES).map(scope).collect::<Vec<_>>()})
}

fn scope(number: usize) -> String {
    format!("notes:{}", char::from(b'a' + number as u8))
}

/// The scopes of the answer with this number: a subset that is never empty.
fn granted(number: usize) -> Vec<String> {
    (0..SCOPES).filter(|scope| (number + 1) >> scope & 1 == 1).map(scope).collect()
}

impl Grants {
    pub(crate) async fn create(beat: &Beat) -> Result<Self, String> {
        let body = json!({"name": "notes-helper", "capability_manifest": manifest()});
        let agent = beat.api.insist("POST", "/agents", Some(&body), SETTLE_WITHIN).await?;
        let first = granted(0);
        let body = json!({"agent_id": text(&agent, "/id")?, "granted_scopes": first});
        let relation = beat.api.insist("POST", "/h2a/relations", Some(&body), SETTLE_WITHIN).await?;
        Ok(Self {
            relation_id: text(&relation, "/id")?,
            manifest_hash: text(&relation, "/manifest_hash")?,
            answers: vec![Answer { granted: first, is_acknowledged: true }],
        })
    }

    fn path(&self) -> String {
        format!("/h2a/relations/{}", self.relation_id)
    }

    /// Answers until the round is over. An answer whose reply was lost is not repeated: a person would look first.
    pub(crate) async fn work(mut self, beat: Beat) -> Result<Self, String> {
        while !beat.is_over() && self.answers.len() < ANSWERS_MAX {
            let granted = granted(self.answers.len());
            let body = json!({"granted_scopes": granted, "manifest_hash": self.manifest_hash});
            let is_acknowledged = match beat.api.call("PATCH", &self.path(), Some(&body)).await {
                Reply::Good(relation) if scopes(&relation["granted_scopes"]) == granted => true,
                Reply::Good(relation) => return Err(format!("granted {granted:?}, answered with {relation}")),
                // Another answer that was in doubt came in between.
                Reply::Refused(409, _) => false,
                Reply::Refused(status, body) => return Err(format!("a grant was refused: {status} {body}")),
                Reply::Lost(_) => false,
            };
            beat.acknowledge(usize::from(is_acknowledged));
            self.answers.push(Answer { granted, is_acknowledged });
            tokio::time::sleep(PAUSE).await;
        }
        Ok(self)
    }

    /// Compares receipts and relation with the ledger. Returns the number of acknowledged answers, and the exported ledger.
    pub(crate) async fn settle(self, api: Api) -> Result<(u64, String), String> {
        let relation = api.insist("GET", &self.path(), None, SETTLE_WITHIN).await?;
        let receipts = self.receipts(&api).await?;
        self.compare(&receipts)?;
        let last = receipts.last().cloned().unwrap_or_default();
        if scopes(&relation["granted_scopes"]) != last {
            return Err(format!("the relation grants {}, its last receipt {last:?}", relation["granted_scopes"]));
        }
        let mut ledger = vec![];
        let export = api.client().ledger(|bytes| {
            ledger.extend_from_slice(bytes);
            Ok(())
        });
        export.await.map_err(|failure| format!("the ledger cannot be exported: {}", failure.message))?;
        let count = self.answers.iter().filter(|answer| answer.is_acknowledged).count();
        Ok((count as u64, String::from_utf8_lossy(&ledger).into_owned()))
    }

    /// The granted scopes of each receipt, in order.
    async fn receipts(&self, api: &Api) -> Result<Vec<Vec<String>>, String> {
        let (mut found, mut after) = (vec![], 0);
        loop {
            let path = format!("{}/receipts?after_seq={after}&limit={PAGE_RECEIPTS}", self.path());
            let page = api.insist("GET", &path, None, SETTLE_WITHIN).await?;
            for receipt in page["receipts"].as_array().into_iter().flatten() {
                let granted =
                    receipt["scopes"].as_array().into_iter().flatten().filter(|scope| scope["granted"] == true);
                let mut granted: Vec<String> =
                    granted.filter_map(|scope| scope["id"].as_str().map(str::to_owned)).collect();
                granted.sort();
                found.push(granted);
            }
            match page["next_after_seq"].as_i64() {
                Some(next) => after = next,
                None => return Ok(found),
            }
        }
    }

    /// Every acknowledged answer has its receipt, once and in order. Every other receipt is of an answer in doubt, and
    /// may be late.
    fn compare(&self, receipts: &[Vec<String>]) -> Result<(), String> {
        let mut numbers = vec![];
        for receipt in receipts {
            match self.answers.iter().position(|answer| &answer.granted == receipt) {
                Some(number) if numbers.contains(&number) => return Err(format!("answer {number} has two receipts")),
                Some(number) => numbers.push(number),
                None => return Err(format!("a receipt of an answer that was never given: {receipt:?}")),
            }
        }
        let is_acknowledged = |number: &usize| self.answers[*number].is_acknowledged;
        let found: Vec<usize> = numbers.into_iter().filter(is_acknowledged).collect();
        let expected: Vec<usize> = (0..self.answers.len()).filter(is_acknowledged).collect();
        if found == expected {
            return Ok(());
        }
        Err(format!("the answers {expected:?} were acknowledged, the receipts are of {found:?}"))
    }
}

fn scopes(value: &Value) -> Vec<String> {
    let texts = value.as_array().into_iter().flatten().filter_map(|scope| scope.as_str().map(str::to_owned));
    let mut scopes: Vec<String> = texts.collect();
    scopes.sort();
    scopes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(answers: &[(usize, bool)]) -> Grants {
        let answer = |(number, is_acknowledged): &(usize, bool)| Answer {
            granted: granted(*number),
            is_acknowledged: *is_acknowledged,
        };
        let answers = answers.iter().map(answer).collect();
        Grants { relation_id: String::new(), manifest_hash: String::new(), answers }
    }

    #[test]
    fn receipts_are_the_acknowledged_answers_and_some_in_doubt() {
        let grants = given(&[(0, true), (1, false), (2, true)]);
        let fits = |numbers: &[usize]| {
            grants.compare(&numbers.iter().map(|number| granted(*number)).collect::<Vec<_>>()).is_ok()
        };
        assert!(fits(&[0, 2]) && fits(&[0, 1, 2]) && fits(&[0, 2, 1]), "an answer in doubt may be there, also late");
        assert!(!fits(&[0, 1]) && !fits(&[0]), "a lost answer");
        assert!(!fits(&[2, 0]), "another order");
        assert!(!fits(&[0, 2, 2]) && !fits(&[0, 1, 1, 2]), "carried out twice");
        assert!(!fits(&[0, 3, 2]), "never given");
    }
}
