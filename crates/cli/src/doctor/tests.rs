use super::*;

#[test]
fn a_clock_is_judged_by_the_second() {
    let now: Timestamp = "2026-11-15T05:09:02.9Z".parse().unwrap();
    let state = |date| clock(Some(date), now).state;
    assert_eq!(state("Sun, 15 Nov 2026 05:09:02 GMT"), State::Ok);
    assert_eq!(state("Sun, 15 Nov 2026 05:09:07 GMT"), State::Warn);
    assert_eq!(state("Sun, 15 Nov 2026 05:08:02 GMT"), State::Fail);
    assert_eq!(clock(None, now).state, State::Skip);
}

#[test]
fn a_closed_mesh_is_said() {
    let found = |reason: Option<&str>| {
        mesh(&MeshReadiness { open: reason.is_none(), domain: "probe.test".into(), reason: reason.map(Into::into) })
    };
    assert_eq!(found(None), Check::ok("mesh", "open for names of probe.test"));
    let closed = found(Some("the keys are damaged"));
    assert_eq!((closed.state, closed.found.as_str()), (State::Warn, "closed: the keys are damaged"));
}

#[test]
fn root_and_a_missing_git_are_warnings() {
    let confined = |root| ConfinementReadiness::of(true, 6, true, root);
    assert_eq!((user(&confined(false)).state, user(&confined(true)).state), (State::Ok, State::Warn));
    let missing = WorkspaceReadiness { git: false, reason: Some("git is not on the server's PATH".into()) };
    assert!(git(&missing).found.starts_with("git is not on the server's PATH; checkouts fail"));
    assert_eq!(git(&missing).state, State::Warn);
    assert_eq!(git(&WorkspaceReadiness { git: true, reason: None }).state, State::Ok);
}

#[test]
fn what_can_run_is_listed() {
    let built_in = ostler_protocol::kernel::backends::built_in();
    let profile = |name: &str, configured: bool| -> ProviderProfile {
        let secret = serde_json::json!({"name": "s", "keys": []});
        serde_json::from_value(serde_json::json!({"profile": name, "configured": configured, "secretRef": secret,
            "builtIn": true, "agent": "model"}))
        .unwrap()
    };
    let check = agents(&built_in, &[profile("model", false), profile("qwen", true)]).unwrap();
    let found = "2 profiles can run: scripted, qwen; not configured: model";
    assert_eq!((check.state, check.found.as_str()), (State::Ok, found));
    assert_eq!(agents(&[], &[]), None);
}

#[test]
fn other_versions_are_said_and_do_not_fail() {
    let health: Health = serde_json::from_value(serde_json::json!({"serviceId": "ostler", "status": "ok",
        "version": "9.0.0", "sourceCommit": "x"}))
    .unwrap();
    let check = version(&health, "0.1.0");
    assert_eq!((check.state, check.found.as_str()), (State::Warn, "here 0.1.0, the server 9.0.0"));
    assert_eq!(version(&health, "9.0.0").state, State::Ok);
}

#[test]
fn each_line_says_how_it_stands_and_what_to_do() {
    let checks = [Check::ok("server", "answers"), Check::of("token", State::Fail, "refused", "set OSTLER_TOKEN")];
    let text = "ok    server      answers\nfail  token       refused\n                  fix: set OSTLER_TOKEN\n\n1 check failed, 0 warnings\n";
    let lines: String = checks.iter().map(|check| render(check, Paint::PLAIN)).collect();
    assert_eq!(lines + &verdict(&checks), text);
}

#[test]
fn what_only_the_store_could_tell_is_unknown_while_it_does_not_answer() {
    let readiness: Readiness = serde_json::from_value(serde_json::json!({"serviceId": "ostler", "status": "not-ready",
        "version": "1", "sourceCommit": "x",
        "store": {"engine": "postgres", "reachable": false, "writable": false, "reason": "silent", "multiReplica": true},
        "migrations": {"ready": false, "applied": []}, "durability": {"durable": false, "weakSettings": []},
        "secretRefs": {"redacted": true, "databaseUrl": "configured", "providerSecrets": "local-files"},
        "confinement": ConfinementReadiness::of(true, 6, true, false), "workspaces": {"git": true},
        "mesh": {"open": true, "domain": "probe.test"}}))
    .unwrap();
    let checks = store(Ok(readiness));
    let check = |name: &str| checks.iter().find(|check| check.name == name).unwrap();
    assert_eq!((check("store").state, check("ready").state), (State::Fail, State::Fail));
    for name in ["migrations", "durability"] {
        assert_eq!(check(name), &unknown(name), "{name}");
        assert_eq!((check(name).state, &check(name).fix), (State::Skip, &None));
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_respond_is_not_waited_for() {
    let began = Instant::now();
    let failure = within(std::future::pending::<Result<(), Failure>>()).await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(failure.message.contains("did not respond within 4 s"), "{failure:?}");
}
