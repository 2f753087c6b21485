//! The guard of agents' programs: no process that a program starts outlives it or its runner, in whatever session; its limits
//! hold; and with Landlock it can read and write only what it is allowed to.

use std::{
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{Command, Stdio},
};

use ostler_runner::guard::{TOOL_LANDLOCK_LEVEL_MIN, landlock_level};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    process::{Guarded, eventually, ostler},
    test_home::{Engine, TestHome},
};

/// A program with a tool that has left its process group and session, and ignores signals.
const WITH_A_TOOL: &str = "setsid -f sh -c 'trap \"\" TERM HUP; echo $$; exec sleep 1000'; exec sleep 1000";

fn order(reach: Value) -> Value {
    json!({"limits": {"openFiles": 64}, "reach": reach, "runnerPid": std::process::id()})
}

fn guard(order: &Value, script: &str) -> Command {
    let mut command = ostler(&["guard", &order.to_string(), "/bin/sh", "-c", script]);
    command.env("PATH", std::env::var_os("PATH").unwrap()).stdin(Stdio::piped());
    command
}

fn first_line(child: &mut Guarded) -> String {
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    line.trim().to_owned()
}

fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn gone(pid: &str) {
    eventually("the process is gone", || (!is_alive(pid)).then_some(()));
}

#[test]
fn the_output_and_exit_code_of_a_guarded_program_are_passed_through() {
    let mut child =
        guard(&order(Value::Null), "read line; echo \"heard $line\"; ulimit -n; ulimit -c; exit 7").spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"this\n").unwrap();
    let mut stdout = String::new();
    child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
    assert_eq!(stdout, "heard this\n64\n0\n");
    assert_eq!(child.wait().unwrap().code(), Some(7));
}

#[test]
fn a_tool_in_another_session_ends_with_its_program() {
    let script = WITH_A_TOOL.replace("'; exec sleep 1000", "'; read line; exit 3");
    let mut child = Guarded(guard(&order(Value::Null), &script).spawn().unwrap());
    let tool = first_line(&mut child);
    assert!(is_alive(&tool));
    drop(child.0.stdin.take());
    assert_eq!(child.wait().code(), Some(3));
    gone(&tool);
}

#[test]
fn a_terminated_guard_ends_everything_first() {
    let mut child = Guarded(guard(&order(Value::Null), WITH_A_TOOL).spawn().unwrap());
    let tool = first_line(&mut child);
    assert!(is_alive(&tool));
    child.signal(Signal::TERM);
    child.wait();
    assert!(!is_alive(&tool), "it was there when the guard had gone");
}

#[test]
fn kill_9_of_a_runner_leaves_no_process() {
    let script = r#""$OSTLER" guard "{\"limits\":{},\"reach\":null,\"runnerPid\":$$}" /bin/sh -c "$PROGRAM" & wait"#;
    let mut runner = Command::new("/bin/sh");
    runner.args(["-c", script]).env("OSTLER", env!("CARGO_BIN_EXE_ostler")).env("PROGRAM", WITH_A_TOOL);
    let mut runner = Guarded(runner.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap());
    let tool = first_line(&mut runner);
    let children = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", runner.0.id())).unwrap();
    let guard = children.trim().to_owned();
    assert!(is_alive(&tool) && is_alive(&guard));
    runner.signal(Signal::KILL);
    runner.wait();
    gone(&tool);
    gone(&guard);
}

#[test]
fn a_guard_without_its_runner_starts_nothing() {
    let mut order = order(Value::Null);
    order["runnerPid"] = json!(1);
    let output = guard(&order, "echo started").output().unwrap();
    assert!(!output.status.success() && output.stdout.is_empty());
}

/// Whether a script could do each of these.
fn tries(reach: &Value, attempts: &[(&str, String)]) -> Vec<(String, bool)> {
    let lines = attempts
        .iter()
        .map(|(name, attempt)| format!("if ({attempt}) 2>/dev/null; then echo {name} yes; else echo {name} no; fi"));
    let output = guard(&order(reach.clone()), &lines.collect::<Vec<_>>().join("\n")).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    stdout
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, could)| (name.to_owned(), could == "yes"))
        .collect()
}

#[test]
fn a_confined_program_can_read_and_write_only_what_it_may() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    for folder in ["work", "outside", "data/home", "data/other"] {
        std::fs::create_dir_all(place.path().join(folder)).unwrap();
    }
    for file in ["data/token", "data/other/auth.json", "data/home/auth.json", "outside/file"] {
        std::fs::write(place.path().join(file), "text").unwrap();
    }
    std::os::unix::fs::symlink(place.path().join("data/token"), place.path().join("work/link")).unwrap();
    let reach = json!({"writable": [at("work"), at("data/home")], "readable": [], "hidden": [at("data")],
        "tmp": at("data/home/tmp")});
    let attempts = [
        ("write-work", format!("echo x > {}", at("work/new"))),
        ("write-home", format!("echo x > {}", at("data/home/new"))),
        ("read-home", format!("cat {} >/dev/null", at("data/home/auth.json"))),
        ("read-outside", format!("cat {} >/dev/null", at("outside/file"))),
        ("write-tmp", "echo x > \"$TMPDIR/new\"".to_owned()),
        ("run", "ls / >/dev/null".to_owned()),
        ("write-outside", format!("echo x > {}", at("outside/new"))),
        ("append-outside", format!("echo x >> {}", at("outside/file"))),
        ("remove-outside", format!("rm {}", at("outside/file"))),
        ("read-token", format!("cat {} >/dev/null", at("data/token"))),
        ("read-other", format!("cat {} >/dev/null", at("data/other/auth.json"))),
        ("read-link", format!("cat {} >/dev/null", at("work/link"))),
        ("signal-runner", format!("kill -0 {}", std::process::id())),
    ];
    let could = tries(&reach, &attempts);
    let level = landlock_level();
    let allowed = |name: &str| match name {
        "write-work" | "write-home" | "write-tmp" | "read-home" | "read-outside" | "run" => true,
        // Signals are confined since version 6; the rest since version 1, except truncating a file.
        "signal-runner" => level < 6,
        _ => level == 0,
    };
    let expected: Vec<_> = attempts.iter().map(|(name, _)| ((*name).to_owned(), allowed(name))).collect();
    assert_eq!(could, expected, "with Landlock {level}");
}

#[test]
fn a_read_only_workspace_can_be_read_and_not_written() {
    let place = tempfile::tempdir().unwrap();
    let (work, file) = (place.path().join("data/place"), place.path().join("data/place/file"));
    std::fs::create_dir_all(&work).unwrap();
    std::fs::write(&file, "text").unwrap();
    let reach = json!({"writable": [], "readable": [work], "hidden": [place.path().join("data")]});
    let write = |path: &Path| format!("echo x > {}", path.display());
    let attempts = [("read", format!("cat {} >/dev/null", file.display())), ("write", write(&work.join("new")))];
    let could = tries(&reach, &attempts);
    assert_eq!(could, [("read".to_owned(), true), ("write".to_owned(), landlock_level() == 0)]);
}

/// What runs in the sandbox that takes bubblewrap's place.
fn sandboxed(arguments: &[&str], script: &str) -> Command {
    let own = ["guard", "--tools", "--", "bwrap", "bwrap"];
    let mut command = ostler(&[&own[..], arguments, &["--argv0", "tool", "--", "/bin/sh", "-c", script]].concat());
    command.env("PATH", std::env::var_os("PATH").unwrap());
    command
}

#[test]
fn a_tool_can_read_and_write_what_bubblewraps_arguments_allow() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).to_str().unwrap().to_owned();
    for folder in ["work", "home/scratch", "secret"] {
        std::fs::create_dir_all(place.path().join(folder)).unwrap();
    }
    for file in ["home/auth.json", "secret/key", "open"] {
        std::fs::write(place.path().join(file), "text").unwrap();
    }
    let (work, home, scratch, secret) = (at("work"), at("home"), at("home/scratch"), at("secret"));
    let mounts =
        ["--as-pid-1", "--die-with-parent", "--ro-bind", "/", "/", "--dev", "/dev", "--perms", "111", "--tmpfs", &home];
    let mounts = [&mounts[..], &["--bind", &scratch, &scratch, "--bind", &work, &work, "--perms", "000"]].concat();
    let mounts = [&mounts[..], &["--tmpfs", &secret, "--unshare-net", "--cap-drop", "ALL"]].concat();
    let attempts = [
        format!("cat {}", at("open")),
        format!("echo x > {work}/new"),
        format!("echo x > {scratch}/new"),
        format!("cat {home}/auth.json"),
        format!("cat {secret}/key"),
        format!("echo x > {home}/new"),
        format!("echo x > {}", at("new")),
    ];
    let lines: Vec<_> = attempts.iter().map(|attempt| format!("({attempt}) >/dev/null 2>&1; echo $?")).collect();
    let output = sandboxed(&mounts, &format!("echo $0; {}", lines.join("; "))).output().unwrap();
    if landlock_level() < TOOL_LANDLOCK_LEVEL_MIN {
        assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
        return;
    }
    let printed = String::from_utf8(output.stdout).unwrap();
    assert_eq!(printed.lines().next(), Some("tool"), "the name that --argv0 gives");
    let codes: Vec<_> = printed.lines().skip(1).map(|code| code == "0").collect();
    assert_eq!(codes, [true, true, true, false, false, false, false], "{printed}");
}

/// In a pod, the runner's report is a file in `/dev`.
#[test]
fn a_tool_can_write_to_devices_and_not_to_files_beside_them() {
    if landlock_level() < TOOL_LANDLOCK_LEVEL_MIN {
        return;
    }
    let file = format!("/dev/ostler-guard-test-{}", std::process::id());
    // Only root can create it. Without it, only the device is tried.
    let is_there = std::fs::write(&file, "report").is_ok();
    let script = format!("echo x > /dev/null && echo device; echo x > {file} && echo file");
    let output = sandboxed(&["--ro-bind", "/", "/", "--dev", "/dev"], &script).output();
    let text = std::fs::read_to_string(&file).unwrap_or_default();
    let _ = std::fs::remove_file(&file);
    assert_eq!(String::from_utf8(output.unwrap().stdout).unwrap(), "device\n");
    assert_eq!(text, if is_there { "report" } else { "" });
}

#[test]
fn a_tool_does_not_start_with_arguments_that_cannot_be_enforced() {
    let output = sandboxed(&["--ro-bind", "/", "/", "--overlay-src", "/"], "echo started").output().unwrap();
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    let help = ostler(&["guard", "--tools", "--", "bwrap", "bwrap", "--help"]).output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    assert!(["--argv0", "--perms", "--as-pid-1"].iter().all(|option| help.contains(option)), "{help}");
}

#[test]
fn readiness_shows_the_confinement_in_force() {
    for landlock in [true, false] {
        let mut home = TestHome::on_disk(Engine::Sqlite);
        home.set("OSTLER_CONFINEMENT__LANDLOCK", if landlock { "true" } else { "false" });
        let server = home.serve();
        let level = if landlock { landlock_level() } else { 0 };
        let found = &Http::new(&server).get("/health/readiness").good()["confinement"];
        let root = rustix::process::geteuid().is_root();
        let expected = json!({"guarded": true, "filesConfined": level > 0, "landlock": level,
            "isolated": found["isolated"], "root": root, "network": "codex-sandbox"});
        assert_eq!(*found, expected);
        server.stop();
    }
}
