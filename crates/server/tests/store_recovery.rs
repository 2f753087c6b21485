//! A store that fails under load: restarted, killed, cut off after it has carried a statement out, or full. Afterwards
//! everything that was accepted is finished, once, by a server that was never restarted.

use ostler_trust::config::WebhooksSection;
use std::{net::Ipv4Addr, sync::Arc, time::Duration};

use futures_util::future::join_all;
use ostler_protocol::FailureKind::InfraFailed;
use ostler_testkit::{
    disk::SmallDisk,
    postgres::{Cluster, find_binaries},
    proxy::{Direction, Proxy},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    harness::{
        Behaviour, Caller, Database, Engine, HookReceiver, TestServer, both_engines, eventually, id, run, run_body,
    },
    trust::sockets::new_agent,
};

const RESTARTS: usize = 20;
const LOST_ANSWERS: u32 = 60;
/// Everything must be finished this long after the store has come back.
const RECOVERY: Duration = Duration::from_secs(30);
/// Runs that are in flight at any time.
const CLIENTS: usize = 8;
const DISK_BYTES: u64 = 32 * 1024 * 1024;
/// Room for an empty cluster and its write-ahead log.
const POSTGRES_DISK_BYTES: u64 = 256 * 1024 * 1024;

#[test]
fn restarts_of_postgres_leave_nothing_unfinished() {
    let binaries = find_binaries().expect("Postgres is installed");
    // On this thread, which outlives it.
    let mut cluster = Cluster::start(&binaries).unwrap();
    run(async {
        let server = with_store(&cluster.url()).await;
        let load = Load::start(&server);
        for number in 0..RESTARTS {
            load.progress(2).await;
            if number % 2 == 0 {
                cluster.restart().unwrap();
            } else {
                cluster.kill().unwrap();
                cluster.start_again().unwrap();
            }
        }
        let finished = load.finish(&server).await;
        assert!(finished >= 2 * RESTARTS, "{finished} runs");
    });
}

#[test]
fn answers_that_postgres_could_not_deliver_leave_nothing_unfinished() {
    run(async {
        let database = Database::migrated();
        let port = |url: &str| url.rsplit_once('/').and_then(|(of, _)| of.rsplit_once(':')?.1.parse().ok());
        let port: u16 = port(database.url()).expect("a URL with a port");
        let proxy = Proxy::start((Ipv4Addr::LOCALHOST, port).into()).unwrap();
        let through = format!(":{}/", proxy.address.port());
        let server = with_store(&database.url().replace(&format!(":{port}/"), &through)).await;
        let load = Load::start(&server);
        for number in 0..LOST_ANSWERS {
            // The database has carried the statement out by then, and its client cannot know.
            proxy.cut_after(Direction::Down, number * 37 % 400);
            eventually("an answer is lost", async || (!proxy.is_cut_armed()).then_some(())).await;
            if number % 10 == 9 {
                load.progress(1).await;
            }
        }
        load.finish(&server).await;
    });
}

#[test]
fn a_full_disk_leaves_nothing_unfinished_once_there_is_room_again() {
    let Some(disk) = SmallDisk::mount_for("a_full_disk_leaves_nothing_unfinished", DISK_BYTES) else { return };
    run(async {
        let server = TestServer::with(Engine::Sqlite, |setup| {
            setup.config.server.data_dir = Some(disk.path().join("data"));
            setup.config.runner.slots = 64;
            // Runners give up while the disk is full, so that the ends of jobs fall into that time.
            setup.config.runner.lease_ms = 1_000;
            setup.config.runner.job_silence_ms = 2_000;
        })
        .await;
        server.clock.run();
        let load = Load::start(&server);
        for _ in 0..2 {
            load.progress(CLIENTS).await;
            disk.fill();
            eventually("writes are refused", async || {
                disk.fill();
                (server.post("/api/v1/runs", &run_body()).await.status == 503).then_some(())
            })
            .await;
            // Longer than a runner tries to write.
            tokio::time::sleep(Duration::from_millis(1_500)).await;
            disk.free().unwrap();
        }
        load.finish(&server).await;
    });
}

/// Readiness must not recover while the disk is full: its probe needs room in the same way as an append.
#[test]
fn a_full_disk_under_postgres_is_not_ready_until_there_is_room_again() {
    let test = "a_full_disk_under_postgres_is_not_ready";
    let Some(disk) = SmallDisk::mount_for(test, POSTGRES_DISK_BYTES) else { return };
    disk.open_to_all().unwrap();
    let cluster = Cluster::start_in(&find_binaries().expect("Postgres is installed"), disk.path()).unwrap();
    run(async {
        let server = with_store(&cluster.url()).await;
        let readiness = async || server.get("/health/readiness").await;
        assert_eq!(readiness().await.status, 200);
        disk.fill();
        let refused = async || {
            let answer = server.post("/api/v1/runs", &run_body()).await;
            answer.status == 503 && answer.refused(InfraFailed).rule == "store-disk-full"
        };
        eventually("writes are refused", async || refused().await.then_some(())).await;
        for _ in 0..6 {
            let unready = readiness().await.with_status(503);
            assert_eq!(unready["store"]["reason"], "disk-full", "{unready}");
            assert!(refused().await, "there is no room, and a run was created");
            // Longer than what readiness found out is reused.
            tokio::time::sleep(Duration::from_millis(600)).await;
        }
        disk.free().unwrap();
        eventually("the server is ready without a write of a client", async || {
            (readiness().await.status == 200).then_some(())
        })
        .await;
        server.create_run().await;
    });
    drop(cluster);
    drop(disk);
}

/// Makes every statement on a table fail until [`Gone::restore`]: a store that fails for some and not for others.
struct Gone<'a> {
    server: &'a TestServer,
    table: &'static str,
}

impl<'a> Gone<'a> {
    async fn make(server: &'a TestServer, table: &'static str) -> Self {
        server.store(&format!("ALTER TABLE {table} RENAME TO {table}_gone")).await;
        Self { server, table }
    }

    async fn restore(self) {
        let Self { server, table } = self;
        server.store(&format!("ALTER TABLE {table}_gone RENAME TO {table}")).await;
    }
}

async fn phase(server: &TestServer, job: &Value) -> String {
    let path = format!("/api/v1/runs/{}/runner-jobs/{}", id(job, "runId"), id(job, "runnerJobId"));
    id(&server.get(&path).await.ok(), "phase")
}

/// The clock does not move: no sweeper helps.
#[both_engines]
async fn the_end_of_a_job_is_stored_once_the_store_answers_again(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let run_id = server.create_run().await;
    let ask = json!({"title": "Go on?", "command": "go on", "waitMs": 60_000});
    let script = json!({"script": [{"ask": ask}, {"crash": "once"}, {"say": "done"}]});
    let command_id = server.turn(&run_id, &script.to_string()).await;
    let job = server.create_job(&run_id, &json!({"commandId": command_id})).await.with_status(201);
    let open = async || {
        let requests = server.permissions(&run_id).await;
        requests.into_iter().find(|request| request["status"] == "pending")
    };
    let request = eventually("the turn asks", &open).await;
    let gone = Gone::make(&server, "runner_jobs").await;
    // The runner goes on only now, so that it cannot crash before.
    server.answer(&request, "allow", &id(&request, "digest")).await.with_status(200);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(server.store("SELECT phase FROM runner_jobs_gone").await, ["running"], "its end cannot be stored");
    gone.restore().await;
    let request = eventually("the next runner asks again", &open).await;
    server.answer(&request, "allow", &id(&request, "digest")).await.with_status(200);
    assert_eq!(server.ended(&run_id, &command_id).await["reply"], "done");
    eventually("the job has ended", async || (phase(&server, &job).await == "succeeded").then_some(())).await;
}

/// As a claim leaves it that the store carried out too late for its launcher.
#[both_engines]
async fn a_running_job_that_its_launcher_does_not_run_is_started_again(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 1;
        setup.config.runner.job_silence_ms = 500;
    })
    .await;
    let (busy, waits) = server.start(&json!({"script": [{"say": "begun"}, {"wait": 600_000}]}).to_string()).await;
    eventually("the only place is taken", async || {
        (!server.events_of(&busy, "assistant_message").await.is_empty()).then_some(())
    })
    .await;
    let (run_id, command_id) = server.start("hello").await;
    let claimed = "UPDATE runner_jobs SET phase = 'running', attempt = 1,
             owner = (SELECT owner FROM runner_jobs WHERE phase = 'running'),
             heartbeat_at = (SELECT heartbeat_at FROM runner_jobs WHERE phase = 'running')
         WHERE phase = 'pending' RETURNING runner_job_id";
    assert_eq!(server.store(claimed).await.len(), 1);
    server.clock.run();
    server.cancel_command(&waits).await;
    assert_eq!(server.ended(&run_id, &command_id).await["reply"], "hello");
}

/// The clock does not move: a failed attempt would not be repeated.
#[both_engines]
async fn a_webhook_that_could_not_be_read_has_not_failed(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.change(|webhooks: &mut WebhooksSection| webhooks.allow_loopback = true);
        setup.config.change(|webhooks: &mut WebhooksSection| webhooks.poll_ms = 10);
    })
    .await;
    let hook = HookReceiver::start([Behaviour::Answer(204, String::new())]).await;
    let path = format!("/agents/{}/webhook", new_agent(&server).await);
    server.call("PUT", &path, &json!({"url": hook.url()})).await.with_status(200);
    let gone = Gone::make(&server, "webhooks").await;
    let sql = "INSERT INTO webhook_deliveries (delivery_id, agent_id, event_type, body, status, attempts, due_at, created_at, updated_at)
         SELECT '00000000-0000-7000-8000-000000000001', agent_id, 'webhook.test', '{}', 'pending', 0, 0, 0, 0 FROM webhooks_gone";
    server.store(sql).await;
    eventually("a server has claimed it", async || {
        let claimed = "SELECT delivery_id FROM webhook_deliveries WHERE attempts > 0";
        (!server.store(claimed).await.is_empty()).then_some(())
    })
    .await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    gone.restore().await;
    hook.received(1).await;
    eventually("it is delivered", async || {
        let delivered = "SELECT delivery_id FROM webhook_deliveries WHERE status = 'delivered' AND attempts = 1";
        (!server.store(delivered).await.is_empty()).then_some(())
    })
    .await;
}

#[both_engines]
async fn runners_with_a_replaced_credential_are_let_go_once_the_store_answers_again(engine: Engine) {
    let server = TestServer::start(engine).await;
    let run_id = server.create_run_with(crate::harness::of_program).await;
    server.equip().await;
    server.claim(&run_id, "runner-a").await;
    let gone = Gone::make(&server, "sessions").await;
    let path = "/api/v1/provider-profiles/codex/credential";
    server.call("PUT", path, &json!({"apiKey": "k-another-0123"})).await.with_status(200);
    let dismissed = "SELECT run_id FROM leases WHERE dismissed = 1 OR ended = 1";
    assert!(server.store(dismissed).await.is_empty());
    gone.restore().await;
    eventually("its runner is let go", async || (server.store(dismissed).await == [run_id.clone()]).then_some(()))
        .await;
}

/// A server on this Postgres, with resident runners and a clock that runs.
async fn with_store(url: &str) -> TestServer {
    let server = TestServer::with(Engine::Sqlite, |setup| {
        setup.config.store.database_url = Some(url.to_owned().into());
        setup.config.runner.slots = 64;
    })
    .await;
    server.clock.run();
    server
}

/// Clients that order runs one after the other, each until it has ended.
struct Load {
    clients: Vec<tokio::task::JoinHandle<Vec<(String, String)>>>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    finished: std::sync::atomic::AtomicUsize,
    is_over: std::sync::atomic::AtomicBool,
}

use std::sync::atomic::Ordering::SeqCst;

impl Load {
    fn start(server: &TestServer) -> Self {
        let shared = Arc::<Shared>::default();
        let clients = (0..CLIENTS).map(|number| {
            let (caller, shared) = ((**server).clone(), shared.clone());
            tokio::spawn(async move {
                let mut ordered = vec![];
                while !shared.is_over.load(SeqCst) {
                    let key = format!("client-{number}-{}", ordered.len());
                    let (run_id, command_id) = order(&caller, &key).await;
                    ordered.push((run_id.clone(), command_id.clone()));
                    if ends(&caller, &run_id, &command_id, &shared).await {
                        shared.finished.fetch_add(1, SeqCst);
                    }
                }
                ordered
            })
        });
        Self { clients: clients.collect(), shared }
    }

    /// Waits until so many more runs have ended, or for a while: with the store gone none does.
    async fn progress(&self, runs: usize) {
        let (before, until) = (self.shared.finished.load(SeqCst), Instant::now() + Duration::from_secs(1));
        while self.shared.finished.load(SeqCst) < before + runs && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Orders nothing more, and checks that everything that was accepted ends within [`RECOVERY`]. How much that was.
    async fn finish(self, server: &TestServer) -> usize {
        let until = Instant::now() + RECOVERY;
        self.shared.is_over.store(true, SeqCst);
        let ordered: Vec<_> = join_all(self.clients).await.into_iter().flat_map(Result::unwrap).collect();
        let unfinished = async || {
            let open = "SELECT 'command ' || command_id || ' ' || state FROM commands
                 WHERE state IN ('pending', 'acked', 'running') UNION ALL
                 SELECT 'job ' || runner_job_id || ' ' || phase FROM runner_jobs WHERE phase IN ('pending', 'running')";
            server.store(open).await
        };
        let mut left = unfinished().await;
        while !left.is_empty() {
            assert!(Instant::now() < until, "{RECOVERY:?} after the last fault: {left:#?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
            left = unfinished().await;
        }
        for (run_id, command_id) in &ordered {
            check(server, run_id, command_id).await;
        }
        ordered.len()
    }
}

/// Orders a run, again and again under the same key until the server has answered.
async fn order(caller: &Caller, key: &str) -> (String, String) {
    let script = json!([{"say": "one"}, {"wait": 30}, {"say": "two"}, {"wait": 30}, {"say": "three"}]);
    let mut body = run_body();
    body["idempotencyKey"] = json!(key);
    body["command"] = json!({"type": "turn", "payload": {"prompt": json!({"script": script}).to_string()}});
    loop {
        let answer = caller.post("/api/v1/runs", &body).await;
        if answer.status != 503 {
            let created = answer.ok();
            return (id(&created, "runId"), id(&created["command"], "commandId"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Whether the command ends before the load is over.
async fn ends(caller: &Caller, run_id: &str, command_id: &str, shared: &Shared) -> bool {
    let path = format!("/api/v1/runs/{run_id}/commands/{command_id}/result");
    while !shared.is_over.load(SeqCst) {
        let answer = caller.get(&path).await;
        if answer.status == 200 && !answer.body["terminalStatus"].is_null() {
            return true;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    false
}

/// Asserts that the command completed and ended exactly once. It does not look at followers.
async fn check(server: &TestServer, run_id: &str, command_id: &str) {
    let result = server.result(run_id, command_id).await;
    assert_eq!((&result["terminalStatus"], &result["reply"]), (&json!("completed"), &json!("three")), "{result}");
    let events = server.events(run_id).await;
    let ends = events.iter().filter(|event| event["type"] == "terminal_status").count();
    assert_eq!(ends, 1, "{events:#?}");
    let numbers: Vec<_> = events.iter().map(|event| event["seq"].as_i64().unwrap()).collect();
    assert_eq!(numbers, (1..=numbers.len() as i64).collect::<Vec<_>>());
}
