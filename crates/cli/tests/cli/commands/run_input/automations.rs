//! `ostler automations`: create, start, pause, resume, change and delete.

use serde_json::Value;

use crate::fixtures::{
    process::{eventually, stdout_of},
    test_home::{Engine, TestHome, both_engines},
};

#[both_engines]
fn an_automation_is_created_started_paused_changed_and_deleted(engine: Engine) {
    let home = TestHome::new(engine);
    let server = home.serve();
    let ostler = |args: &[&str]| home.cli(Some(&server), &[&["automations"][..], args].concat());
    let json = |args: &[&str]| -> Value {
        serde_json::from_str(&stdout_of(ostler(&[args, &["-o", "json"]].concat()))).unwrap()
    };
    let digest =
        ["create", "Digest", "--at", "07:30", "--on", "mon,fri", "--timezone", "Europe/Berlin", "--message", "hi"];
    let made = stdout_of(ostler(&digest));
    assert!(made.starts_with("aut_"), "{made}");
    let shown = stdout_of(ostler(&["show", "Digest"]));
    assert!(shown.contains("schedule: Mon, Fri 07:30 (Europe/Berlin)"), "{shown}");
    assert_eq!(stdout_of(ostler(&["next", "Digest", "--count", "3"])).lines().count(), 4);
    let started = ostler(&["run", &made.trim()[..20]]);
    let thread = stdout_of(started);
    eventually("the run has ended", || {
        let history = json(&["history", "Digest"]);
        let start = &history[0];
        assert_eq!(start["thread_id"], thread.trim());
        (start["status"] == "completed").then_some(())
    });
    let paused = json(&["pause", "Digest"]);
    assert_eq!((&paused["status"], &paused["next_run_at"]), (&"disabled".into(), &Value::Null));
    assert_eq!(json(&["list", "--paused"]).as_array().unwrap().len(), 1);
    assert_eq!(json(&["resume", "Digest"])["status"], "active");
    let changed = json(&["update", "Digest", "--at", "08:00", "--on", "every", "--title", "Daily digest"]);
    assert_eq!((&changed["config"]["schedule"]["type"], &changed["title"]), (&"daily".into(), &"Daily digest".into()));
    assert_eq!(changed["config"]["input_template"], "hi", "what is left out stays");
    let unknown = ostler(&["show", "nothing"]);
    let printed = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert!(!unknown.status.success() && printed.contains("ostler automations list"), "{printed}");
    let incomplete = ostler(&["create", "Digest"]);
    let printed = String::from_utf8_lossy(&incomplete.stderr).into_owned();
    assert!(!incomplete.status.success() && printed.contains("--at HH:MM"), "{printed}");
    assert_eq!(stdout_of(ostler(&["delete", "Daily digest", "--yes"])), "Daily digest deleted\n");
    assert_eq!(json(&["list"]), Value::Array(vec![]));
}
