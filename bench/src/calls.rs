//! The calls of the manager dialect that the measurements are made of.

use crate::http::{Connection, field, number, request};
use crate::outcome::Outcome;
use crate::server::Server;

pub(crate) const CREATE_RUN: &str = r#"{"tenantId":"local","projectId":"local/bench","workspaceRef":{"kind":"none"},"providerId":"local","backendProfile":"scripted","traceSink":null}"#;
pub(crate) const CREATE_COMMAND: &str = r#"{"type":"turn","payload":{"prompt":"hi"}}"#;
const CLAIM: &str = r#"{"runnerId":"bench","leaseMs":600000}"#;

/// Long enough that no wait ends without the event it waits for.
pub(crate) const WAIT_MS: u64 = 20_000;

/// A run with one command, claimed by us.
pub(crate) struct Claimed {
    pub run_id: String,
    pub command_id: String,
    pub lease_epoch: i64,
}

pub(crate) async fn create_run(connection: &mut Connection, server: &Server) -> Outcome<String> {
    let answer = connection.call(&request(server, "POST", "/api/v1/runs", CREATE_RUN)).await?;
    Ok(field(answer, "runId")?.to_owned())
}

pub(crate) async fn create_command(connection: &mut Connection, server: &Server, run_id: &str) -> Outcome<String> {
    let path = format!("/api/v1/runs/{run_id}/commands");
    let answer = connection.call(&request(server, "POST", &path, CREATE_COMMAND)).await?;
    Ok(field(answer, "commandId")?.to_owned())
}

/// Creates a run and a command, and takes the run's lease as a runner from outside would.
pub(crate) async fn claimed_run(connection: &mut Connection, server: &Server) -> Outcome<Claimed> {
    claim_new_run(connection, server, CREATE_RUN).await
}

/// The same, with another request for the run.
pub(crate) async fn claim_new_run(connection: &mut Connection, server: &Server, run: &str) -> Outcome<Claimed> {
    let answer = connection.call(&request(server, "POST", "/api/v1/runs", run)).await?;
    let run_id = field(answer, "runId")?.to_owned();
    let command_id = create_command(connection, server, &run_id).await?;
    let claim = request(server, "POST", &format!("/api/v1/runs/{run_id}/claim"), CLAIM);
    let lease_epoch = number(connection.call(&claim).await?, "leaseEpoch")?;
    Ok(Claimed { run_id, command_id, lease_epoch })
}

/// An append whose batch number can be changed in place, so that nothing is formatted between two requests.
pub(crate) struct Append {
    bytes: Vec<u8>,
    number_at: usize,
    next: u32,
}

/// All numbers have as many digits, or the request's length would change.
const FIRST_BATCH_NO: u32 = 1_000_000;

impl Append {
    pub(crate) fn new(server: &Server, claimed: &Claimed, events: &[(&str, String)]) -> Self {
        let Claimed { run_id, command_id, lease_epoch } = claimed;
        let start = format!(r#"{{"runnerId":"bench","leaseEpoch":{lease_epoch},"batchNo":"#);
        let events: Vec<String> = events
            .iter()
            .map(|(kind, payload)| format!(r#"{{"type":"{kind}","commandId":"{command_id}","payload":{payload}}}"#))
            .collect();
        let body = format!(r#"{start}{FIRST_BATCH_NO},"events":[{}]}}"#, events.join(","));
        let bytes = request(server, "POST", &format!("/api/v1/runs/{run_id}/events"), &body);
        let number_at = bytes.len() - body.len() + start.len();
        Self { bytes, number_at, next: FIRST_BATCH_NO }
    }

    /// Goes on where another append of the same run has stopped.
    pub(crate) fn numbered_after(self, other: &Append) -> Self {
        Self { next: other.next, ..self }
    }

    pub(crate) async fn send(&mut self, connection: &mut Connection) -> Outcome<()> {
        let digits = self.next.to_string();
        self.bytes[self.number_at..self.number_at + digits.len()].copy_from_slice(digits.as_bytes());
        self.next += 1;
        connection.call(&self.bytes).await.map(drop)
    }
}
