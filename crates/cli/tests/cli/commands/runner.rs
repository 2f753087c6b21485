//! The process launcher: a child process for each job. Its death, its exit and its log are recorded, its token is valid for
//! its run only, and no child outlives its server unless configured to.

use std::{
    collections::BTreeSet,
    fs,
    io::Read,
    net::TcpListener,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    process::{Guarded, Server, eventually, stdout_of},
    runner::{count, run_request, select, submit},
    test_home::{Engine, TestHome, both_engines},
};

fn home(engine: Engine) -> TestHome {
    let mut home = TestHome::on_disk(engine);
    home.set("OSTLER_RUNNER__LAUNCHER", "process");
    home.set("OSTLER_RUNNER__LEASE_MS", "2000");
    home.set("OSTLER_RUNNER__JOB_SILENCE_MS", "3000");
    home.set("OSTLER_RUNNER__SWEEP_INTERVAL_MS", "50");
    home
}

/// The runner processes of a server, by their ids.
fn children(server: &Server) -> BTreeSet<i32> {
    let parent = server.process.0.id().to_string();
    let ids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let found: BTreeSet<i32> = ids
        .filter(|id| {
            let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
            let mut fields = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
            // The server also has children for a moment that try the protections of this system or look for programs.
            let words = || fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
            let is_runner = || words().split('\0').nth(1) == Some("runner");
            fields.next().is_some_and(|state| state != "Z") && fields.next() == Some(&parent) && is_runner()
        })
        .collect();
    // One may have ended, and another begun in its slot, while the list was read.
    found.into_iter().filter(|id| is_alive(*id)).collect()
}

fn is_alive(id: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn only_child(server: &Server) -> i32 {
    eventually("a child is there", || children(server).first().copied())
}

fn kill(id: i32) {
    kill_process(Pid::from_raw(id).unwrap(), Signal::KILL).unwrap();
}

/// A turn with a tool that runs for this long.
fn busy(tool_ms: u64) -> String {
    json!({"script": [{"tool": {"name": "shell", "command": "make", "waitMs": tool_ms}}, {"say": "done"}]}).to_string()
}

fn in_flight(http: &mut Http, run_id: &str, times: usize) {
    eventually("a tool is in flight", || {
        (count(&http.events(run_id), "tool_call", "/status", "started") >= times).then_some(())
    });
}

fn ended(http: &mut Http, run_id: &str, command_id: &str) -> Value {
    let path = format!("/api/v1/runs/{run_id}/commands/{command_id}/result");
    eventually("the command ends", || Some(http.get(&path).good()).filter(|result| !result["terminalStatus"].is_null()))
}

fn job(http: &mut Http, run_id: &str) -> Value {
    http.get(&format!("/api/v1/runs/{run_id}/runner-jobs")).good()["runnerJobs"][0].clone()
}

fn job_ended(http: &mut Http, run_id: &str) -> Value {
    eventually("the job ends", || {
        let job = job(http, run_id);
        (job["phase"] != "running" && job["phase"] != "pending").then_some(job)
    })
}

#[both_engines]
fn a_child_process_runs_the_turn_and_exits(engine: Engine) {
    let mut home = home(engine);
    home.set("OSTLER_LOG", "trace");
    home.set("NOT_FOR_CHILDREN", "x");
    home.set("FOR_CHILDREN", "x");
    let file = home.path("ostler.toml");
    fs::write(&file, "[runner]\npass_environment = [\"FOR_CHILDREN\"]\n").unwrap();
    home.flags = vec!["--config".into(), file.to_str().unwrap().into()];
    let server = home.serve();
    let mut http = Http::new(&server);
    let (run_id, command_id) = submit(&mut http, &busy(3_000));
    in_flight(&mut http, &run_id, 1);
    let child = only_child(&server);
    let of_child = |file: &str| String::from_utf8(fs::read(format!("/proc/{child}/{file}")).unwrap()).unwrap();
    let (arguments, environment) = (of_child("cmdline"), of_child("environ"));
    assert_eq!(arguments.replace('\0', " ").trim(), "ostler runner --launched");
    let names: BTreeSet<_> = environment.split_terminator('\0').filter_map(|pair| pair.split('=').next()).collect();
    // The variable is removed from the readable environment, like any other possible secret.
    assert_eq!(names, BTreeSet::from(["OSTLER_HANDOVER", "OSTLER_LOG"]));
    let group = of_child("stat").rsplit_once(") ").unwrap().1.split(' ').nth(2).unwrap().parse::<i32>().unwrap();
    assert_eq!(group, child, "it leads a process group of its own");

    assert_eq!(ended(&mut http, &run_id, &command_id)["reply"], "done");
    let job = job_ended(&mut http, &run_id);
    assert_eq!((&job["phase"], &job["launcher"], &job["attempt"]), (&json!("succeeded"), &json!("process"), &json!(1)));
    let summary = &job["terminalSummary"];
    assert_eq!((&summary["status"], &summary["exitCode"], &summary["turns"]), (&json!("idle"), &json!(0), &json!(1)));
    assert!(summary["logTail"].as_str().unwrap().len() > 100, "{summary}");
    eventually("the child is gone", || (!is_alive(child)).then_some(()));
    assert_eq!(count(&http.events(&run_id), "backend_status", "/phase", "runner-ended"), 0);
    server.stop();
    assert!(!home.everything_stored().contains("ost_run_") && !home.log().contains("ost_run_"));
    home.assert_verified();
}

#[both_engines]
fn a_killed_child_is_replaced_and_its_death_is_recorded(engine: Engine) {
    let home = home(engine);
    let server = home.serve();
    let mut http = Http::new(&server);
    let (run_id, command_id) = submit(&mut http, &busy(3_000));
    in_flight(&mut http, &run_id, 1);
    kill(only_child(&server));
    let result = ended(&mut http, &run_id, &command_id);
    assert_eq!((&result["status"], &result["reply"]), (&json!("completed"), &json!("done")));
    let events = http.events(&run_id);
    let deaths = select(&events, "backend_status", "/phase", "runner-ended");
    assert_eq!(deaths.len(), 1, "{events:?}");
    let end = &deaths[0]["payload"]["end"];
    assert_eq!((&end["signal"], &end["exitCode"]), (&json!(9), &Value::Null));
    assert_eq!(count(&events, "tool_call", "/status", "outcome-unknown"), 1);
    assert_eq!(count(&events, "backend_status", "/phase", "attempt-restarted"), 1);
    assert_eq!(select(&events, "lease", "/state", "expired")[0]["payload"]["orphaned"], true, "nobody waits for it");
    let job = job_ended(&mut http, &run_id);
    assert_eq!((&job["phase"], &job["attempt"]), (&json!("succeeded"), &json!(2)));
    server.stop();
    home.assert_verified();
}

#[both_engines]
fn a_failed_child_reports_the_reason(engine: Engine) {
    let home = home(engine);
    let server = home.serve();
    let mut http = Http::new(&server);
    let script = json!({"script": [{"say": "before"}, {"crash": "once"}]});
    let (run_id, command_id) = submit(&mut http, &script.to_string());
    assert_eq!(ended(&mut http, &run_id, &command_id)["status"], "completed");
    let events = http.events(&run_id);
    let end = &select(&events, "backend_status", "/phase", "runner-ended")[0]["payload"]["end"];
    assert_eq!((&end["status"], &end["exitCode"], &end["signal"]), (&json!("crashed"), &json!(10), &Value::Null));
    server.stop();
}

#[both_engines]
fn no_child_outlives_a_stopped_server(engine: Engine) {
    let mut home = home(engine);
    home.set("OSTLER_SERVER__DRAIN_MS", "100");
    let server = home.serve();
    let mut http = Http::new(&server);
    let (run_id, command_id) = submit(&mut http, &busy(1_500));
    in_flight(&mut http, &run_id, 1);
    let child = only_child(&server);
    server.stop();
    assert!(!is_alive(child), "the child went before its server did");

    let server = home.serve();
    let mut http = Http::new(&server);
    assert_eq!(ended(&mut http, &run_id, &command_id)["status"], "completed");
    let events = http.events(&run_id);
    assert_eq!(count(&events, "backend_status", "/phase", "runner-ended"), 0, "it was stopped; it did not fail");
    assert!(count(&events, "lease", "/state", "released") >= 1, "nobody had to wait for a lease to run out");
    assert_eq!(job_ended(&mut http, &run_id)["attempt"], 1, "what the stop cut off does not count");
    server.stop();
    home.assert_verified();
}

#[both_engines]
fn no_child_outlives_a_killed_server(engine: Engine) {
    let home = home(engine);
    let server = home.serve();
    let mut http = Http::new(&server);
    let (run_id, command_id) = submit(&mut http, &busy(1_500));
    in_flight(&mut http, &run_id, 1);
    let child = only_child(&server);
    server.kill();
    eventually("the child goes with its server", || (!is_alive(child)).then_some(()));

    let server = home.serve();
    let mut http = Http::new(&server);
    assert_eq!(ended(&mut http, &run_id, &command_id)["status"], "completed");
    assert_eq!(count(&http.events(&run_id), "tool_call", "/status", "outcome-unknown"), 1);
    server.stop();
    home.assert_verified();
}

#[both_engines]
fn a_child_that_may_outlive_its_server_continues_under_the_next_one(engine: Engine) {
    let mut home = home(engine);
    home.set("OSTLER_RUNNER__KEEP_ON_STOP", "true");
    home.set("OSTLER_RUNNER__LEASE_MS", "6000");
    home.set("OSTLER_SERVER__DRAIN_MS", "100");
    let server = home.serve();
    let address = server.address.clone();
    let mut http = Http::new(&server);
    let (run_id, command_id) = submit(&mut http, &busy(5_000));
    in_flight(&mut http, &run_id, 1);
    let child = only_child(&server);
    server.stop();
    // Long enough for a heartbeat to fail, which is logged to a pipe without a reader.
    std::thread::sleep(Duration::from_millis(2_500));
    assert!(is_alive(child), "it goes on");

    let server = home.serve_at(&address);
    let mut http = Http::new(&server);
    assert_eq!(ended(&mut http, &run_id, &command_id)["reply"], "done");
    let events = http.events(&run_id);
    assert_eq!(count(&events, "lease", "/state", "claimed"), 1, "one runner from beginning to end");
    assert_eq!(count(&events, "backend_status", "/phase", "attempt-restarted"), 0);
    let job = job_ended(&mut http, &run_id);
    assert_eq!((&job["phase"], &job["attempt"]), (&json!("succeeded"), &json!(1)));
    eventually("the child leaves", || (!is_alive(child)).then_some(()));
    server.stop();
    home.assert_verified();
}

#[both_engines]
fn no_more_children_than_slots(engine: Engine) {
    const PLACES: usize = 2;
    let mut home = home(engine);
    home.set("OSTLER_RUNNER__SLOTS", &PLACES.to_string());
    let server = home.serve();
    let mut http = Http::new(&server);
    let runs: Vec<_> = (0..6).map(|_| submit(&mut http, &busy(200))).collect();
    let mut most = 0;
    for (run_id, command_id) in &runs {
        let path = format!("/api/v1/runs/{run_id}/commands/{command_id}/result");
        eventually("the command ends", || {
            let now = children(&server);
            let words = |id: &i32| fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
            assert!(now.len() <= PLACES, "{:?}", now.iter().map(words).collect::<Vec<_>>());
            most = most.max(now.len());
            (http.get(&path).good()["terminalStatus"] == "completed").then_some(())
        });
    }
    assert_eq!(most, PLACES);
    server.stop();
}

#[both_engines]
fn a_runners_token_is_valid_for_its_own_run_while_its_job_runs(engine: Engine) {
    const TOKEN: &str = "ost_run_0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    /// In the year 2200, so that the job never counts as abandoned.
    const FAR_US: i64 = 7_258_118_400_000_000;
    const TOKEN_SHA256: &str = "6cfe267b28a4eaaaba0303139dadc80822cdba6965573d3801ccc4e1475dd429";
    let home = home(engine).without_runner();
    let server = home.serve();
    let mut operator = Http::new(&server);
    let (run_id, _) = submit(&mut operator, "hi");
    let other = operator.post("/api/v1/runs", &run_request()).good()["runId"].as_str().unwrap().to_owned();
    let mut runner = Http::with_token(&server.address, Some(TOKEN));
    let own = format!("/api/v1/runs/{run_id}");
    assert_eq!(runner.get(&own).status, 401, "nobody has minted it yet");
    home.execute(&format!(
        "UPDATE runner_jobs SET phase = 'running', owner = 'a launcher', heartbeat_at = {FAR_US}, token_hash = '{TOKEN_SHA256}'
         WHERE run_id = '{run_id}'"
    ));
    assert_eq!(runner.get(&own).status, 200);
    assert_eq!(runner.get(&format!("/api/v1/runs/{other}")).refusal().0, 404, "like an absent run");
    let claim = json!({"runnerId": "r", "leaseMs": 1_000});
    assert_eq!(runner.post(&format!("/api/v1/runs/{other}/claim"), &claim).refusal().0, 404);
    assert_eq!(runner.post("/api/v1/runs", &run_request()).refusal(), (403, "forbidden".into(), "role".into()));
    home.execute(&format!("UPDATE runner_jobs SET phase = 'succeeded' WHERE run_id = '{run_id}'"));
    assert_eq!(runner.get(&own).status, 401, "its job has ended");
    server.stop();
}

/// A server with TLS, whose certificate is the file `web.crt`.
fn serve_with_tls(home: &mut TestHome) -> Server {
    home.use_tls();
    let server = home.serve();
    assert!(server.url().starts_with("https://"), "{}", server.url());
    server
}

#[both_engines]
fn a_child_process_reaches_a_server_with_tls(engine: Engine) {
    let mut home = home(engine);
    let server = serve_with_tls(&mut home);
    // Only this client trusts the certificate by its name. The server and its children know no authority.
    let mut client = home.command(&["run", "--profile", "scripted", "say hello"]);
    client.env("OSTLER_SERVER", server.url()).env("SSL_CERT_FILE", home.path("web.crt"));
    let output = client.output().unwrap();
    assert!(output.status.success(), "{output:?}: {}", home.log());
    assert!(String::from_utf8(output.stdout).unwrap().contains("say hello"));
    server.stop();
    home.assert_verified();
}

#[test]
fn a_runner_trusts_the_authority_that_its_environment_names() {
    let mut home = home(Engine::Sqlite).without_runner();
    let server = serve_with_tls(&mut home);
    let with_ca = |args: &[&str]| {
        let mut command = home.command(args);
        command.env("OSTLER_SERVER", server.url()).env("OSTLER_CA_FILE", home.path("web.crt"));
        command
    };
    let run_id = stdout_of(with_ca(&["run", "--detach", "say hello"]).output().unwrap()).trim().to_owned();
    // As in a pod, whose manager has a certificate of the cluster's authority.
    let mut runner = with_ca(&["runner"]);
    runner.env("AGENTRUN_MANAGER_URL", server.url()).env("AGENTRUN_RUN_ID", &run_id).env_remove("OSTLER_SERVER");
    runner.env("AGENTRUN_RUNNER_ID", "pod-1").env("AGENTRUN_RUNNER_ONE_SHOT", "true");
    runner.env("AGENTRUN_CODEX_ARGS", "--help").env("AGENTRUN_RUNNER_POLL_INTERVAL_MS", "500");
    let output = runner.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let log = String::from_utf8(output.stderr).unwrap();
    assert_eq!(log.matches("accepted for compatibility, without effect").count(), 1, "{log}");
    let result = stdout_of(with_ca(&["result", &run_id, "-o", "json"]).output().unwrap());
    let result: Value = serde_json::from_str(&result).unwrap();
    assert_eq!((&result["state"], &result["reply"]), (&json!("completed"), &json!("say hello")));
    server.stop();
}

#[test]
fn only_a_certificate_of_an_unknown_authority_is_reported_as_untrusted() {
    let mut home = home(Engine::Sqlite).without_runner();
    let server = serve_with_tls(&mut home);
    let refused = |url: &str, authority: Option<&str>| {
        let mut command = home.command(&["ps"]);
        command.env("OSTLER_SERVER", url).envs(authority.map(|file| ("OSTLER_CA_FILE", home.path(file))));
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(7), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let untrusted = refused(&server.url(), None);
    assert!(untrusted.contains("\n  rule: server-certificate\n"), "{untrusted}");
    assert!(untrusted.contains("set OSTLER_CA_FILE"), "{untrusted}");
    // The authority is known, but the certificate names an address and not this host.
    let misnamed = refused(&server.url().replace("127.0.0.1", "localhost"), Some("web.crt"));
    assert!(misnamed.contains("\n  rule: server-unreachable\n"), "{misnamed}");
    assert!(misnamed.contains("certificate"), "{misnamed}");
    server.stop();
}

#[both_engines]
fn a_runner_that_its_environment_starts_hands_back_its_run_when_it_is_stopped(engine: Engine) {
    let home = home(engine).without_runner();
    let server = home.serve();
    let mut http = Http::new(&server);
    let (run_id, _) = submit(&mut http, &busy(60_000));
    let mut command = home.command(&["runner"]);
    command.env("AGENTRUN_MANAGER_URL", server.url()).env("AGENTRUN_RUN_ID", &run_id);
    command.env("AGENTRUN_RUNNER_ID", "pod-1").env("AGENTRUN_RUNNER_PLACEMENT", "kubernetes-job");
    let mut runner = Guarded(command.spawn().unwrap());
    in_flight(&mut http, &run_id, 1);
    runner.signal(Signal::TERM);
    assert_eq!(runner.wait().code(), Some(130));
    let mut printed = String::new();
    runner.0.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    let summary: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((&summary["status"], &summary["turns"]), (&json!("stopped"), &json!(1)));
    let events = http.events(&run_id);
    let released = select(&events, "lease", "/state", "released");
    assert_eq!(released.len(), 1, "{events:?}");
    assert_eq!(released[0]["payload"]["runnerId"], "pod-1");
    // Another runner need not wait.
    let claim = json!({"runnerId": "pod-2", "leaseMs": 1_000});
    http.post(&format!("/api/v1/runs/{run_id}/claim"), &claim).good();
    server.stop();
    home.assert_verified();
}

#[test]
fn a_runner_that_still_looks_for_its_run_stops_at_the_first_signal() {
    let home = TestHome::new(Engine::Sqlite);
    // Accepts the connection and never responds.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let run_id = format!("run_{:032x}", 1);
    let mut command = home.command(&["runner", &run_id]);
    command.env("OSTLER_SERVER", format!("http://{}", silent.local_addr().unwrap()));
    let mut runner = Guarded(command.spawn().unwrap());
    let connected = silent.accept().unwrap();
    let signalled = Instant::now();
    runner.signal(Signal::TERM);
    assert_eq!(runner.wait().code(), Some(130));
    assert!(signalled.elapsed() < Duration::from_secs(10), "{:?}", signalled.elapsed());
    drop(connected);
}

#[test]
fn a_second_signal_ends_a_runner_whose_server_does_not_respond() {
    let home = TestHome::new(Engine::Sqlite).without_runner();
    let server = home.serve();
    let mut http = Http::new(&server);
    let (run_id, _) = submit(&mut http, &busy(60_000));
    let mut command = home.command(&["runner", &run_id]);
    command.env("OSTLER_SERVER", server.url()).env("OSTLER_RUNNER_GRACE_MS", "50000");
    let mut runner = Guarded(command.spawn().unwrap());
    in_flight(&mut http, &run_id, 1);
    server.process.signal(Signal::STOP);
    let signalled = Instant::now();
    // Two signals that arrive together count as one.
    let status = eventually("the runner exits", || {
        runner.signal(Signal::TERM);
        runner.0.try_wait().unwrap()
    });
    server.process.signal(Signal::CONT);
    assert_eq!(status.code(), Some(130));
    assert!(signalled.elapsed() < Duration::from_secs(10), "{:?}", signalled.elapsed());
    server.stop();
}
