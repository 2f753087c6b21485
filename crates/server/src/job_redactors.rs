//! Redactors for the short-lived variables of runner jobs. The values come from callers, so they are removed only from what the run
//! of the job reports: a caller must not change what others read, nor evict credentials from the redactor of the process.

use std::{borrow::Cow, collections::VecDeque, sync::Arc};

use ostler_protocol::{
    RawJson,
    ids::{RunId, RunnerJobId},
    redaction::Redactor,
};
use parking_lot::RwLock;

/// Jobs whose values are remembered. The oldest ones are removed first; runners redact their reports themselves, too.
const JOBS_MAX: usize = 256;
/// Bytes of all remembered values.
const VALUE_BYTES_MAX: usize = 4 * 1024 * 1024;

#[derive(Default)]
pub struct JobRedactors {
    /// The oldest first.
    jobs: RwLock<VecDeque<JobValues>>,
}

struct JobValues {
    run_id: RunId,
    job_id: RunnerJobId,
    bytes: usize,
    redactor: Arc<Redactor>,
}

impl JobRedactors {
    /// Remembers the values of a job that was accepted.
    pub fn add(&self, run_id: RunId, job_id: RunnerJobId, values: &[&str]) {
        let bytes: usize = values.iter().map(|value| value.len()).sum();
        // Built before the lock is taken.
        let added = JobValues { run_id, job_id, bytes, redactor: Arc::new(Redactor::new(values)) };
        let mut jobs = self.jobs.write();
        jobs.retain(|job| job.job_id != job_id);
        jobs.push_back(added);
        while jobs.len() > JOBS_MAX || jobs.iter().map(|job| job.bytes).sum::<usize>() > VALUE_BYTES_MAX {
            jobs.pop_front();
        }
    }

    pub fn contains(&self, job_id: RunnerJobId) -> bool {
        self.jobs.read().iter().any(|job| job.job_id == job_id)
    }

    /// What removes the values of a run's jobs.
    pub fn of_run(&self, run_id: RunId) -> RunRedactors {
        let jobs = self.jobs.read();
        RunRedactors(jobs.iter().filter(|job| job.run_id == run_id).map(|job| job.redactor.clone()).collect())
    }
}

/// The redactors of a run's jobs. Most runs have none.
#[derive(Default)]
pub struct RunRedactors(Vec<Arc<Redactor>>);

impl RunRedactors {
    pub fn redact(&self, mut text: String) -> String {
        for redactor in &self.0 {
            if let Cow::Owned(clean) = redactor.redact(&text) {
                text = clean;
            }
        }
        text
    }

    /// A JSON text that is a caller's: the names of its fields are redacted, too.
    pub fn redact_json_text(&self, mut json: String) -> String {
        for redactor in &self.0 {
            if let Cow::Owned(clean) = redactor.redact_json(&json) {
                json = clean;
            }
        }
        json
    }

    /// The JSON of an event or a summary: its top-level fields are ours.
    pub fn redact_json(&self, mut raw: RawJson) -> RawJson {
        for redactor in &self.0 {
            if let Cow::Owned(clean) = redactor.redact_json_payload(raw.as_str()) {
                // A text that is no JSON after it was redacted must not be stored as it was.
                raw = RawJson::parse(clean).unwrap_or_else(|_| RawJson::empty_object());
            }
        }
        raw
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    fn run(number: u128) -> RunId {
        RunId::new(Uuid::from_u128(number))
    }

    fn job(number: u128) -> RunnerJobId {
        RunnerJobId::new(Uuid::from_u128(number))
    }

    #[test]
    fn values_are_removed_from_reports_of_their_run_only() {
        let redactors = JobRedactors::default();
        redactors.add(run(1), job(1), &["pl4nted"]);
        redactors.add(run(1), job(2), &["an0ther"]);
        let clean = redactors.of_run(run(1)).redact("pl4nted and an0ther".into());
        assert_eq!(clean, "[redacted] and [redacted]");
        let event = RawJson::parse(r#"{"text":"pl4nted"}"#.to_owned()).unwrap();
        assert_eq!(redactors.of_run(run(1)).redact_json(event.clone()).as_str(), r#"{"text":"[redacted]"}"#);
        let named = redactors.of_run(run(1)).redact_json_text(r#"{"pl4nted":["an0ther"]}"#.into());
        assert_eq!(named, r#"{"[redacted]":["[redacted]"]}"#);
        assert_eq!(redactors.of_run(run(2)).redact("pl4nted".into()), "pl4nted");
        assert_eq!(redactors.of_run(run(2)).redact_json(event.clone()).as_str(), event.as_str());
    }

    #[test]
    fn jobs_and_bytes_are_bounded() {
        let redactors = JobRedactors::default();
        for number in 0..JOBS_MAX as u128 + 1 {
            redactors.add(run(number), job(number), &["pl4nted"]);
        }
        assert!(!redactors.contains(job(0)) && redactors.contains(job(1)));
        // Values of less than six bytes are counted, and cheap to build a redactor of.
        let short = vec!["12345"; VALUE_BYTES_MAX / 10];
        for number in 1_000..1_003 {
            redactors.add(run(number), job(number), &short);
        }
        assert!(redactors.contains(job(1_002)) && !redactors.contains(job(1_000)));
        let held: usize = redactors.jobs.read().iter().map(|job| job.bytes).sum();
        assert!(held <= VALUE_BYTES_MAX, "{held}");
    }
}
