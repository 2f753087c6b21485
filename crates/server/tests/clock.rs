//! The server's clock: a jump of the wall clock expires nothing, servers of one database agree on the time whatever their
//! own clocks show, and tokens end by the wall clock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::SeqCst},
    },
    time::Duration,
};

use ostler_protocol::{FailureKind::*, Timestamp};
use ostler_server::clock::{Machine, ServerClock, SystemMachine};
use serde_json::{Value, json};

use crate::{
    harness::{Engine, ManualRunner, TestServer, ask_body, both_engines, eventually, id},
    metrics::value,
};

mod postgres {
    #[test]
    fn a_server_with_a_wrong_clock_goes_by_the_databases() {
        crate::harness::run(super::a_server_with_a_wrong_clock_goes_by_the_databases());
    }

    #[test]
    fn a_jump_of_the_databases_clock_expires_nothing() {
        crate::harness::run(super::a_jump_of_the_databases_clock_expires_nothing());
    }

    #[test]
    fn a_server_that_starts_after_a_jump_of_the_databases_clock_expires_nothing() {
        crate::harness::run(super::a_server_that_starts_after_a_jump_of_the_databases_clock_expires_nothing());
    }

    #[test]
    fn a_server_that_was_suspended_catches_up_with_the_others() {
        crate::harness::run(super::a_server_that_was_suspended_catches_up_with_the_others());
    }
}

const HOUR_MS: i64 = 3_600_000;
const LEASE_MS: i64 = 60_000;
const MACHINE_JUMPS: &str = "ostler_clock_jumps_total{clock=\"machine\"}";
const DATABASE_JUMPS: &str = "ostler_clock_jumps_total{clock=\"database\"}";
const DIGEST: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// This machine, with a wall clock that the test sets.
#[derive(Clone, Default)]
struct Settable {
    machine: Arc<SystemMachine>,
    ahead_ms: Arc<AtomicI64>,
    /// How long it was suspended: its monotonic clock stood still.
    suspended_ms: Arc<AtomicI64>,
}

impl Settable {
    fn clock(&self) -> Arc<ServerClock> {
        self.clock_checked_every(Duration::from_millis(20))
    }

    fn clock_checked_every(&self, interval: Duration) -> Arc<ServerClock> {
        Arc::new(ServerClock::new(Box::new(self.clone())).checked_every(interval))
    }

    fn set_ahead(&self, by_ms: i64) {
        self.ahead_ms.fetch_add(by_ms, SeqCst);
    }
}

impl Machine for Settable {
    fn wall(&self) -> Timestamp {
        let ahead_us = self.ahead_ms.load(SeqCst) * 1_000;
        Timestamp::from_microsecond(self.machine.wall().as_microsecond() + ahead_us).unwrap()
    }

    fn monotonic(&self) -> Duration {
        // It begins far enough from zero to lose what the test takes away.
        let far = Duration::from_millis(10 * HOUR_MS.unsigned_abs());
        far + self.machine.monotonic() - Duration::from_millis(self.suspended_ms.load(SeqCst).unsigned_abs())
    }
}

/// Everything that a server measures: a lease, a budget, a permission's deadline, and a job of its own runner.
struct Timed {
    runner: ManualRunner,
    command_id: String,
    resident: (String, String),
}

impl Timed {
    async fn start(server: &TestServer) -> Self {
        let budget = |body: &mut Value| body["executionPolicy"] = json!({"timeoutMs": 600_000});
        let run_id = server.create_run_with(budget).await;
        let command_id = server.turn(&run_id, "work").await;
        let runner = server.claim(&run_id, "runner-a").await;
        runner.ack(&command_id).await;
        runner.ask(&command_id, "prm_00000000000000000000000000000001", DIGEST).await;
        let prompt = json!({"script": [{"wait": 600_000}]}).to_string();
        let resident = server.start_with(&prompt, budget).await;
        eventually("the resident runner is at work", async || {
            (server.command(&resident.0, &resident.1).await["state"] != "pending").then_some(())
        })
        .await;
        Self { runner, command_id, resident }
    }

    /// Nothing has ended, nothing false was recorded, and the runner goes on under the same lease.
    async fn check(&self, server: &TestServer) {
        // A sweep that would end something comes every 50 ms.
        tokio::time::sleep(Duration::from_millis(350)).await;
        for (run_id, command_id) in [(&self.runner.run_id, &self.command_id), (&self.resident.0, &self.resident.1)] {
            assert_eq!(server.result(run_id, command_id).await["terminalStatus"], Value::Null);
            let events = server.events(run_id).await;
            for event in &events {
                assert_ne!(event["type"], "terminal_status", "{event}");
                // Waiting is what this test does itself, below.
                let state = event["payload"]["state"].as_str();
                assert!(event["type"] != "lease" || matches!(state, Some("claimed" | "claim-waiting")), "{event}");
            }
            assert!(
                events.is_sorted_by_key(|event| event["createdAt"].as_str().unwrap().parse::<Timestamp>().unwrap())
            );
        }
        assert_eq!(server.permissions(&self.runner.run_id).await[0]["status"], "pending");
        server.try_claim(&self.runner.run_id, "runner-b", LEASE_MS).await.refused(RunnerLeaseConflict);
        self.runner.heartbeat().await;
        let jobs = server.store("SELECT phase FROM runner_jobs").await;
        assert_eq!(jobs, ["running"]);
    }
}

#[both_engines]
async fn a_jump_of_the_wall_clock_expires_nothing(engine: Engine) {
    let machine = Settable::default();
    let server = TestServer::with(engine, |setup| {
        setup.clock = Some(machine.clock());
        setup.config.runner.slots = 4;
        setup.config.runner.job_silence_ms = LEASE_MS;
    })
    .await;
    let timed = Timed::start(&server).await;
    for (jumps, by_ms) in [(1.0, HOUR_MS), (2.0, -2 * HOUR_MS), (3.0, HOUR_MS)] {
        machine.set_ahead(by_ms);
        eventually("the jump is noticed", async || (value(&server, MACHINE_JUMPS).await == jumps).then_some(())).await;
        timed.check(&server).await;
        // Counted once, although the clock stays where it was set.
        assert_eq!(value(&server, MACHINE_JUMPS).await, jumps);
    }
    assert_eq!(value(&server, DATABASE_JUMPS).await, 0.0);
}

#[both_engines]
async fn a_token_ends_by_the_wall_clock(engine: Engine) {
    let machine = Settable::default();
    let server = TestServer::with(engine, |setup| setup.clock = Some(machine.clock())).await;
    let body = json!({"name": "short", "role": "client", "tenants": ["hwlab"], "expiresInMs": HOUR_MS / 2});
    let token = id(&server.post("/api/v1/tokens", &body).await.with_status(201), "token");
    let caller = server.with_token(Some(&token));
    let list = async || caller.get("/api/v1/runs").await.status;
    assert_eq!(list().await, 200);
    machine.set_ahead(HOUR_MS);
    assert_eq!(list().await, 401);
    machine.set_ahead(-HOUR_MS);
    assert_eq!(list().await, 200);
}

fn expiry(claimed: &Value) -> Timestamp {
    id(claimed, "leaseExpiresAt").parse().unwrap()
}

async fn a_server_with_a_wrong_clock_goes_by_the_databases() {
    let right = Settable::default();
    let first = TestServer::with(Engine::Postgres, |setup| setup.clock = Some(right.clock())).await;
    for wrong_ms in [HOUR_MS, -HOUR_MS] {
        let wrong = Settable::default();
        wrong.set_ahead(wrong_ms);
        let second = first.start_another_with(Some(wrong.clock()), |_| ()).await;
        let budget = |body: &mut Value| body["executionPolicy"] = json!({"timeoutMs": 600_000});
        let mut expiries = vec![];
        for server in [&first, &second] {
            let run_id = server.create_run_with(budget).await;
            let command_id = server.turn(&run_id, "work").await;
            let claimed = server.try_claim(&run_id, "runner-a", LEASE_MS).await.with_status(200);
            expiries.push(expiry(&claimed));
            let runner = ManualRunner::new(first.with_token(first.token()), &run_id, "runner-a", &claimed);
            runner.ack(&command_id).await;
            runner.tell(&command_id, "permission_request", ask_body(&fresh_permission(), DIGEST)).await;
            // Both servers sweep every 50 ms.
            tokio::time::sleep(Duration::from_millis(350)).await;
            for other in [&first, &second] {
                other.try_claim(&run_id, "runner-b", LEASE_MS).await.refused(RunnerLeaseConflict);
                assert_eq!(other.result(&run_id, &command_id).await["terminalStatus"], Value::Null);
                assert_eq!(other.permissions(&run_id).await[0]["status"], "pending");
            }
            runner.heartbeat().await;
        }
        let apart = expiries[1].duration_since(expiries[0]).as_secs();
        assert!((0..60).contains(&apart), "both servers grant leases of the same time: {expiries:?}");
    }
}

fn fresh_permission() -> String {
    let mut body = [0; 16];
    ostler_server::clock::fill(&mut body);
    format!("prm_{}", ostler_protocol::json::hex(&body))
}

/// The clock of the test's database cannot be set. To the server it is the same when what it wrote about that clock is moved
/// the other way.
async fn a_jump_of_the_databases_clock_expires_nothing() {
    let machine = Settable::default();
    let server = TestServer::with(Engine::Postgres, |setup| {
        setup.clock = Some(machine.clock());
        setup.config.runner.slots = 4;
        setup.config.runner.job_silence_ms = LEASE_MS;
    })
    .await;
    let timed = Timed::start(&server).await;
    for (jumps, hours) in [(1.0, 1), (2.0, -1)] {
        let jump_us = hours * HOUR_MS * 1_000;
        let sql = format!("UPDATE store_clock SET correction_us = {jump_us}, seen_us = seen_us - {jump_us}");
        server.store(&sql).await;
        eventually("the jump is noticed", async || (value(&server, DATABASE_JUMPS).await == jumps).then_some(())).await;
        timed.check(&server).await;
        assert_eq!(value(&server, DATABASE_JUMPS).await, jumps);
    }
    assert_eq!(value(&server, MACHINE_JUMPS).await, 0.0);
}

/// The running server looks so rarely that the second one reads the clock first.
async fn a_server_that_starts_after_a_jump_of_the_databases_clock_expires_nothing() {
    let (clock, hour_us) = (|| Settable::default().clock_checked_every(Duration::from_secs(3)), HOUR_MS * 1_000);
    let mut first = TestServer::with(Engine::Postgres, |setup| {
        setup.clock = Some(clock());
        setup.config.runner.slots = 4;
        setup.config.runner.job_silence_ms = LEASE_MS;
    })
    .await;
    // An earlier jump was corrected by an hour, so that a correction of 0 would be wrong.
    let now_us = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint";
    first.store(&format!("UPDATE store_clock SET correction_us = -{hour_us}, seen_us = {now_us}")).await;
    first.restart().await;
    let timed = Timed::start(&first).await;
    let seen = async || first.store("SELECT seen_us::text FROM store_clock").await;
    let before = seen().await;
    eventually("the server looks at the clock", async || (seen().await != before).then_some(())).await;
    let jump = format!("correction_us = correction_us + {hour_us}, seen_us = seen_us - {hour_us}");
    first.store(&format!("UPDATE store_clock SET {jump}")).await;
    let second = first.start_another_with(Some(clock()), |_| ()).await;
    eventually("the jump is noticed", async || (value(&first, DATABASE_JUMPS).await == 1.0).then_some(())).await;
    for server in [&first, &second] {
        timed.check(server).await;
    }
    let mut expiries = vec![];
    for server in [&first, &second] {
        let run_id = server.create_run().await;
        server.turn(&run_id, "work").await;
        expiries.push(expiry(&server.try_claim(&run_id, "runner-a", LEASE_MS).await.with_status(200)));
    }
    let apart = expiries[1].duration_since(expiries[0]).as_secs();
    assert!(apart.abs() < 60, "both servers grant leases of the same time: {expiries:?}");
    assert_eq!(value(&second, DATABASE_JUMPS).await, 0.0);
}

async fn a_server_that_was_suspended_catches_up_with_the_others() {
    let first = TestServer::with(Engine::Postgres, |setup| setup.clock = Some(Settable::default().clock())).await;
    let suspended = Settable::default();
    let second = first.start_another_with(Some(suspended.clock()), |_| ()).await;
    suspended.suspended_ms.store(HOUR_MS, SeqCst);
    suspended.set_ahead(0);
    eventually("the suspension is noticed", async || (value(&second, MACHINE_JUMPS).await == 1.0).then_some(())).await;
    eventually("both servers grant leases of the same time", async || {
        let mut expiries = vec![];
        for server in [&first, &second] {
            let run_id = server.create_run().await;
            server.turn(&run_id, "work").await;
            expiries.push(expiry(&server.try_claim(&run_id, "runner-a", LEASE_MS).await.with_status(200)));
        }
        (expiries[1].duration_since(expiries[0]).as_secs().abs() < 60).then_some(())
    })
    .await;
    assert_eq!(value(&first, DATABASE_JUMPS).await + value(&second, DATABASE_JUMPS).await, 0.0);
}
