//! The primary of a Postgres with a synchronous standby is killed under load, and the standby is promoted. The server has both
//! hosts in its URL and is not restarted: everything that it acknowledged is there, and every run ends.

use std::{
    sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    thread,
    time::{Duration, Instant},
};

use ostler_testkit::postgres::{Cluster, find_binaries};
use serde_json::json;

use crate::fixtures::{
    http::Http,
    process::{Server, eventually},
    runner::{Writer, submit},
    test_home::{Engine, TestHome},
};

const WRITERS: usize = 4;
/// Runs of the server's own runner that are in the middle of a turn when the primary dies.
const RUNS: usize = 6;
/// The server must write again this long after the standby was promoted.
const RECONNECT_MAX: Duration = Duration::from_secs(10);
const ENOUGH_BATCHES: usize = 100;

/// What the writers share with the test.
#[derive(Default)]
struct Load {
    batches_acked: AtomicUsize,
    is_over: AtomicBool,
}

impl Load {
    /// Appends batch after batch, each until it is acknowledged, as a runner does.
    fn write(&self, writer: &mut Writer, http: &mut Http) {
        while !self.is_over.load(SeqCst) {
            let batch = writer.next_batch();
            eventually("the batch is acknowledged", || {
                let answer = writer.append(http, &batch).ok()?;
                assert!(matches!(answer.status, 200 | 503), "{answer:?}");
                (answer.status == 200).then_some(())
            });
            self.batches_acked.fetch_add(1, SeqCst);
        }
    }

    fn wait_for(&self, batches: usize) {
        let enough = self.batches_acked.load(SeqCst) + batches;
        eventually("batches are acknowledged", || (self.batches_acked.load(SeqCst) >= enough).then_some(()));
    }
}

/// Ends the load when the test has finished or failed: the writers would go on for ever.
struct EndOfLoad<'a>(&'a Load);

impl Drop for EndOfLoad<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, SeqCst);
    }
}

/// Kills the primary under load and promotes the standby. Returns how long the server took to write again.
fn fail_over(server: &Server, writers: &mut [Writer], primary: &mut Cluster, standby: &Cluster) -> Duration {
    let load = Load::default();
    thread::scope(|scope| {
        for writer in writers {
            let (mut http, load) = (Http::new(server), &load);
            scope.spawn(move || load.write(writer, &mut http));
        }
        let _end = EndOfLoad(&load);
        load.wait_for(ENOUGH_BATCHES);
        primary.kill().unwrap();
        standby.promote().unwrap();
        let promoted = Instant::now();
        // More than can have been on its way when the primary died.
        load.wait_for(WRITERS + 1);
        let took = promoted.elapsed();
        load.wait_for(ENOUGH_BATCHES);
        took
    })
}

#[test]
fn a_failover_loses_no_acknowledged_event_and_wedges_no_run() {
    let binaries = find_binaries().expect("Postgres is installed");
    // On this thread, which outlives both.
    let mut primary = Cluster::start(&binaries).unwrap();
    let standby = primary.standby().unwrap();
    primary.commit_to_standby().unwrap();
    let mut home = TestHome::on_disk(Engine::Sqlite);
    // The standby first: the server passes it over as long as it takes no writes.
    let hosts = format!("127.0.0.1:{},127.0.0.1:{}", standby.port(), primary.port());
    home.set("DATABASE_URL", &format!("postgres://postgres@{hosts}/postgres?target_session_attrs=read-write"));
    let server = home.serve();
    let mut http = Http::new(&server);
    let mut writers: Vec<_> = (0..WRITERS).map(|n| Writer::new(&mut http, &format!("runner-{n}"))).collect();
    writers.iter_mut().for_each(|writer| writer.claim(&mut http));
    let script = json!({"script": [{"say": "one"}, {"wait": 2_000}, {"say": "two"}]}).to_string();
    let runs: Vec<_> = (0..RUNS).map(|_| submit(&mut http, &script)).collect();

    let took = fail_over(&server, &mut writers, &mut primary, &standby);
    assert!(took < RECONNECT_MAX, "{took:?}");

    for writer in &writers {
        writer.check(&mut http);
    }
    for (run_id, command_id) in &runs {
        let path = format!("/api/v1/runs/{run_id}/commands/{command_id}/result");
        let result = eventually("the turn ends", || {
            let result = http.get(&path).good();
            (!result["terminalStatus"].is_null()).then_some(result)
        });
        assert_eq!((&result["terminalStatus"], &result["reply"]), (&json!("completed"), &json!("two")), "{result}");
    }
    // The wake-ups and the probe of readiness have moved to the new primary as well.
    eventually("the server is ready", || (http.get("/health/readiness").status == 200).then_some(()));
    let acked: usize = writers.iter().map(|writer| writer.acked.len()).sum();
    println!("{acked} events acknowledged, none lost; writing {took:?} after the promotion");
    server.stop();
    home.assert_verified();
}
