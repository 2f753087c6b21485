use jiff::SignedDuration;
use ostler_protocol::{
    health::WorkspaceReadiness,
    kernel::backends::{BackendCapacity, ExternalBackend},
};
use tokio::time::Duration;

use super::{checks::render, *};
use crate::terminal::paint::Paint;

#[test]
fn a_clock_is_compared_by_the_second() {
    let now: Timestamp = "2026-11-15T05:09:02.9Z".parse().unwrap();
    let state = |date| clock(Some(date), now).state;
    assert_eq!(state("Sun, 15 Nov 2026 05:09:02 GMT"), CheckState::Ok);
    assert_eq!(state("Sun, 15 Nov 2026 05:09:07 GMT"), CheckState::Warn);
    assert_eq!(state("Sun, 15 Nov 2026 05:08:02 GMT"), CheckState::Fail);
    assert_eq!(clock(None, now).state, CheckState::Skip);
}

#[test]
fn a_closed_mesh_is_a_warning() {
    let found = |reason: Option<&str>| {
        mesh(&MeshReadiness { open: reason.is_none(), domain: "probe.test".into(), reason: reason.map(Into::into) })
    };
    assert_eq!(found(None), Check::ok("mesh", "open for names of probe.test"));
    let closed = found(Some("the keys are damaged"));
    assert_eq!((closed.state, closed.found.as_str()), (CheckState::Warn, "closed: the keys are damaged"));
}

#[test]
fn skipped_numbers_of_migrations_do_not_look_like_missing_ones() {
    let latest = |ids: &[&str]| latest_migration(&ids.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>());
    assert_eq!(latest(&["0001_kernel", "0002_more"]), ", the latest 0002_more");
    assert_eq!(latest(&["0001_kernel", "0003_more"]), ", the latest 0003_more; numbers may be skipped");
    assert_eq!(latest(&[]), "");
}

#[test]
fn root_and_a_missing_git_are_warnings() {
    let confined = |root| ConfinementReadiness::of(true, 6, true, root);
    assert_eq!((user(&confined(false)).state, user(&confined(true)).state), (CheckState::Ok, CheckState::Warn));
    let missing = WorkspaceReadiness { git: false, reason: Some("git is not on the server's PATH".into()) };
    assert!(git(&missing).found.starts_with("git is not on the server's PATH; checkouts fail"));
    assert_eq!(git(&missing).state, CheckState::Warn);
    assert_eq!(git(&WorkspaceReadiness { git: true, reason: None }).state, CheckState::Ok);
}

#[test]
fn a_profile_is_ready_if_the_server_reports_it_as_ready() {
    let mut all = ostler_protocol::kernel::backends::built_in();
    all.retain(|backend| matches!(backend.profile.as_str(), "scripted" | "model"));
    all[0].ready = true;
    all.push(Backend { profile: "qwen".into(), tenant_id: Some("hwlab".into()), ready: true, ..Backend::default() });
    let check = agents(&all, Timestamp::UNIX_EPOCH).unwrap();
    let found = "2 profiles can run: scripted, qwen of hwlab; not ready: model (`ostler backends list` shows why)";
    assert_eq!((check.state, check.found.as_str()), (CheckState::Ok, found));
    assert_eq!(agents(&[], Timestamp::UNIX_EPOCH), None);
}

#[test]
fn a_server_without_places_for_runners_is_a_warning() {
    let of = |runners_max| {
        let capacity = Some(BackendCapacity { runners_max, runners_active: 0 });
        places(&[Backend::default(), Backend { capacity, ..Backend::default() }])
    };
    assert_eq!(of(0).unwrap().state, CheckState::Warn);
    assert_eq!((of(4), places(&[])), (None, None));
}

#[test]
fn an_external_profile_without_a_recent_request_of_a_runner_is_a_warning() {
    let backend = |last_claim_at| Backend {
        profile: "mine".into(),
        message: Some("external profile; a runner last requested a job".into()),
        external: Some(ExternalBackend { last_claim_at }),
        ..Backend::default()
    };
    let after_ms = |ms: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_millis(ms);
    let recent = external(&backend(Some(Timestamp::UNIX_EPOCH)), after_ms(60_000)).unwrap();
    assert_eq!(recent, Check::ok("profile", "mine: external profile; a runner last requested a job"));
    let old = external(&backend(Some(Timestamp::UNIX_EPOCH)), after_ms(60_001)).unwrap();
    let none = external(&backend(None), after_ms(0)).unwrap();
    for check in [old, none] {
        assert_eq!(check.state, CheckState::Warn);
        let fix = check.fix.unwrap();
        assert!(fix.contains("claims profile mine") && fix.contains("uses another server of this store"), "{fix}");
    }
    assert_eq!(external(&Backend::default(), after_ms(0)), None);
    let found =
        |last_claim_at| agents(&[Backend { ready: true, ..backend(last_claim_at) }], after_ms(0)).unwrap().found;
    assert_eq!(found(Some(Timestamp::UNIX_EPOCH)), "1 profile can run: mine");
    assert!(found(None).contains("not ready: mine"), "{}", found(None));
}

#[test]
fn a_missing_program_is_a_failure_only_for_callers_who_can_mend_it() {
    let profile: ProviderProfile =
        serde_json::from_value(serde_json::json!({"profile": "mine", "builtIn": false, "agent": "acp",
        "configured": true, "ready": false, "secretRef": {"name": "s", "keys": []}, "resourceVersion": null,
        "failureKind": "infra-failed", "message": "the profile's program \"nosuchprog\" is not installed"}))
        .unwrap();
    let (managed, used) = (program(&profile, true).unwrap(), program(&profile, false).unwrap());
    assert_eq!((managed.state, used.state), (CheckState::Fail, CheckState::Warn));
    assert!(
        managed.fix.as_deref().is_some_and(|fix| fix.ends_with("`ostler profiles config mine --file FILE`")),
        "{managed:?}"
    );
    assert!(used.fix.as_deref().is_some_and(|fix| fix.contains("ask the operator")), "{used:?}");
}

#[test]
fn a_server_without_tls_is_reported_with_the_hint_of_its_rule() {
    let check = server_failure(&Failure::rule(Rule::ServerWithoutTls, "the server does not use TLS"));
    assert!(check.fix.unwrap().starts_with("check the scheme and the port of the address"));
    let check = server_failure(&Failure::rule(Rule::ServerUnreachable, "no answer"));
    assert!(check.fix.unwrap().contains("ostler serve"));
}

#[test]
fn a_data_directory_that_does_not_exist_is_named_as_such() {
    let directory = tempfile::tempdir().unwrap();
    let absent = directory.path().join("absent");
    assert!(disk(&absent).unwrap().found.ends_with(&format!("; {} does not exist", absent.display())));
    assert!(!disk(directory.path()).unwrap().found.contains("does not exist"));
}

#[test]
fn another_version_is_a_warning() {
    let health: Health = serde_json::from_value(serde_json::json!({"serviceId": "ostler", "status": "ok",
        "version": "9.0.0", "sourceCommit": "x"}))
    .unwrap();
    let check = version(&health, "0.1.0", "x");
    assert_eq!((check.state, check.found.as_str()), (CheckState::Warn, "here 0.1.0, the server 9.0.0"));
    assert_eq!(version(&health, "9.0.0", "x").state, CheckState::Ok);
}

#[test]
fn another_commit_of_the_same_version_is_a_warning() {
    let check = |theirs: &str, ours: &str| {
        let health = serde_json::json!({"serviceId": "ostler", "status": "ok", "version": "1", "sourceCommit": theirs});
        version(&serde_json::from_value(health).unwrap(), "1", ours)
    };
    let other = check("0123456789ab", "fedcba987654");
    let found = "1, here of commit fedcba987654, on the server of commit 0123456789ab";
    assert_eq!((other.state, other.found.as_str()), (CheckState::Warn, found));
    for (theirs, ours) in [("0123456789abcdef", "0123456789ab"), ("unknown", "0123456789ab"), ("0123", "unknown")] {
        assert_eq!(check(theirs, ours).state, CheckState::Ok, "{theirs} {ours}");
    }
}

#[test]
fn each_line_shows_the_state_and_the_fix() {
    let checks =
        [Check::ok("server", "responds"), Check::of("token", CheckState::Fail, "rejected", "set OSTLER_TOKEN")];
    let text = "ok    server      responds\nfail  token       rejected\n                  fix: set OSTLER_TOKEN\n\n1 check failed, 0 warnings\n";
    let lines: String = checks.iter().map(|check| render(check, None, Paint::PLAIN)).collect();
    assert_eq!(lines + &verdict(&checks), text);
}

#[test]
fn a_command_in_a_fix_is_not_broken() {
    let fix = "install it, or change the command: `ostler profiles config a-rather-long-name --file /etc/config.toml`";
    for width in [60, 80] {
        let text = render(&Check::of("profile", CheckState::Fail, "missing", fix), Some(width), Paint::PLAIN);
        let command = "                  `ostler profiles config a-rather-long-name --file /etc/config.toml`";
        assert!(text.lines().any(|line| line == command), "{width}: {text}");
    }
}

#[test]
fn a_long_name_is_followed_by_a_space() {
    let check = Check::ok("server address", "https://ostler.example responds");
    assert_eq!(render(&check, None, Paint::PLAIN), "ok    server address https://ostler.example responds\n");
}

#[test]
fn the_codex_of_runners_in_pods_is_not_looked_for_on_this_machine() {
    let found = CodexProgram { image: Some("registry.example/ostler:1".into()), ..CodexProgram::default() };
    let check = codex(&found);
    assert_eq!(check.state, CheckState::Skip);
    assert!(check.found.contains("registry.example/ostler:1"), "{}", check.found);
}

#[test]
fn checks_that_need_the_store_are_unknown_while_it_does_not_respond() {
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
    assert_eq!((check("store").state, check("ready").state), (CheckState::Fail, CheckState::Fail));
    for name in ["migrations", "durability"] {
        assert_eq!(check(name), &unknown(name), "{name}");
        assert_eq!((check(name).state, &check(name).fix), (CheckState::Skip, &None));
    }
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_respond_is_not_waited_for() {
    let began = Instant::now();
    let failure = within(std::future::pending::<Result<(), Failure>>()).await.unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    assert!(failure.message.contains("did not respond within 4 s"), "{failure:?}");
}
