//! What an agent can learn about its server: an ACP agent in shell inspects every process it can see, with and without
//! namespaces, under both launchers. Most of this is meaningful only if the tests run as root, whose processes could read
//! everything without the guard.

use std::process::{Command, Stdio};

use rustix::process::geteuid;
use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    process::{Server, ostler},
    shell_agent,
    test_home::{Engine, TestHome},
};

const KEY: &str = "11d3c0ffee5eed0011d3c0ffee5eed0011d3c0ffee5eed0011d3c0ffee5eed00";
const PASSWORD: &str = "pl4nted-in-the-environment";

/// Tries everything it can see, and prints what succeeded.
const LOOK: &str = r#"
can() { if eval "$2" >/dev/null 2>&1; then found="$found $1"; fi; }
can environ "cat /proc/SERVER/environ"
can memory "head -c 1 /proc/SERVER/mem"
can maps "head -c 1 /proc/SERVER/maps"
can descriptors "readlink /proc/SERVER/fd/0"
can directory "ls /proc/SERVER/cwd/ | grep ."
can trace "cat /proc/SERVER/syscall"
# Without a program that has the secrets among its own arguments.
tells() { case "$1" in *KEY*|*PASSWORD*|*ost_*) return 0;; *) return 1;; esac; }
can any-environ 'tells "$(cat /proc/[0-9]*/environ | tr "\\0" " ")"'
can any-arguments 'tells "$(cat /proc/[0-9]*/cmdline | tr "\\0" " ")"'
can own-environ 'tells "$(env)"'
can capabilities "grep -E '^Cap(Inh|Prm|Eff|Bnd|Amb):' /proc/self/status | grep -v 0000000000000000"
can new-privileges "grep -E '^NoNewPrivs:.*0' /proc/self/status"
# The shell's own descriptors have higher numbers, except those of a pipe.
ls /proc/$$/fd >listed
can descriptor-inherited "grep -xE '[3-9]' listed"
can sees-server "ls -d /proc/SERVER"
reply="found:$found."
"#;

fn home(namespaces: bool, launcher: &str) -> TestHome {
    let mut home = TestHome::on_disk(Engine::Sqlite);
    for (name, value) in [
        ("OSTLER_SECRETS__KEY", KEY),
        ("SOME_PASSWORD", PASSWORD),
        ("PGPASSWORD", PASSWORD),
        ("OSTLER_CONFINEMENT__NAMESPACES", if namespaces { "true" } else { "false" }),
        ("OSTLER_RUNNER__LAUNCHER", launcher),
        ("OSTLER_POLICY__CEILING__SANDBOX", "danger-full-access"),
        ("OSTLER_SERVER__DRAIN_MS", "100"),
        ("PATH", &std::env::var("PATH").unwrap()),
    ] {
        home.set(name, value);
    }
    home
}

/// What the agent found in one turn.
fn found(home: &TestHome, server: &Server, sandbox: &str) -> String {
    let look = LOOK.replace("SERVER", &server.process.0.id().to_string());
    shell_agent::set_profile(home, server, &look.replace("KEY", KEY).replace("PASSWORD", PASSWORD));
    let (_, result) = shell_agent::turn(home, server, sandbox, &json!({}));
    assert_eq!(result["terminalStatus"], "completed", "{result}\n{}", home.log());
    result["reply"].as_str().unwrap_or_else(|| panic!("{result}")).to_owned()
}

/// Whether this system supports namespaces for agents.
fn can_isolate() -> bool {
    ["userNamespace", "root"].iter().any(|isolation| guarded(&[], isolation, "true").is_some())
}

#[test]
fn an_agent_cannot_inspect_its_server() {
    for (namespaces, launcher, sandbox) in [
        (true, "resident", "danger-full-access"),
        (false, "resident", "danger-full-access"),
        (true, "process", "workspace-write"),
        (false, "process", "workspace-write"),
    ] {
        let home = home(namespaces, launcher);
        let server = home.serve();
        let isolated = namespaces && can_isolate();
        // Without namespaces the existence of the server is not a secret.
        let expected = if isolated { "found:." } else { "found: sees-server." };
        assert_eq!(found(&home, &server, sandbox), expected, "namespaces: {namespaces}, {launcher}, {sandbox}");
        assert_eq!(Http::new(&server).get("/health/readiness").good()["confinement"]["isolated"], isolated);
        server.stop();
    }
}

#[test]
fn the_servers_environment_and_arguments_hold_no_secret() {
    let mut home = TestHome::on_disk(Engine::Postgres);
    let url = home.database_url().replacen('@', &format!(":{PASSWORD}@"), 1);
    home.environment.retain(|(name, _)| name != "DATABASE_URL");
    home.flags = vec!["--database-url".into(), url.clone()];
    home.set("OSTLER_SECRETS__KEY", KEY);
    home.set("OSTLER_RUNNER__SLOTS", "3");
    let server = home.serve();
    let read = |file: &str| {
        let bytes = std::fs::read(format!("/proc/{}/{file}", server.process.0.id()));
        String::from_utf8_lossy(&bytes.expect("we are its parent")).into_owned()
    };
    // Without root the test cannot read it, either.
    if geteuid().is_root() {
        let environment = read("environ");
        assert!(environment.contains("OSTLER_RUNNER__SLOTS=3"), "{environment}");
        for secret in [KEY, PASSWORD, "DATABASE_URL"] {
            assert!(!environment.contains(secret), "{environment}");
        }
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", server.process.0.id())).unwrap().flatten();
        let memory = descriptors.filter_map(|entry| std::fs::read_link(entry.path()).ok());
        assert!(memory.into_iter().all(|path| !path.to_string_lossy().contains("ostler-environment")));
    }
    let arguments = read("cmdline");
    assert!(arguments.contains("serve") && !arguments.contains(PASSWORD), "{arguments}");
    assert_eq!(read("comm").trim(), "ostler");
    // They are still in use: the server works on that database, and decrypts data with that key.
    let mut http = Http::new(&server);
    assert_eq!(http.get("/health/readiness").good()["store"]["engine"], "postgres");
    assert!(!home.data_dir.join("secrets-key").exists());
    server.stop();
}

fn order(isolation: &str) -> String {
    json!({"limits": {}, "reach": null, "runnerPid": std::process::id(), "isolation": isolation}).to_string()
}

/// The output of a guarded shell. `None` if the system does not support this isolation.
fn guarded(before: &[&str], isolation: &str, script: &str) -> Option<String> {
    let ostler = ostler(&["guard", &order(isolation), "/bin/sh", "-c", script]);
    let mut command = Command::new(before.first().copied().unwrap_or(env!("CARGO_BIN_EXE_ostler")));
    if !before.is_empty() {
        command.args(&before[1..]).arg(ostler.get_program());
    }
    command.args(ostler.get_args()).env_clear().env("PATH", std::env::var_os("PATH").unwrap()).stdin(Stdio::null());
    let output = command.output().unwrap();
    output.status.success().then(|| String::from_utf8(output.stdout).unwrap())
}

/// As the current user, and also as another one if the tests run as root.
fn as_each_user() -> Vec<Vec<&'static str>> {
    let other = vec!["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let can_be_other = geteuid().is_root() && Command::new("setpriv").arg("--version").output().is_ok();
    if can_be_other { vec![vec![], other] } else { vec![vec![]] }
}

#[test]
fn a_guarded_program_has_no_capability_and_cannot_gain_one() {
    let status = "grep -E '^(Cap(Inh|Prm|Eff|Amb)|NoNewPrivs):' /proc/self/status | tr -d '\\t'";
    let none = "0000000000000000";
    let expected = format!("CapInh:{none}\nCapPrm:{none}\nCapEff:{none}\nCapAmb:{none}\nNoNewPrivs:1\n");
    for user in as_each_user() {
        let plain = guarded(&user, "none", status).expect("a guard without namespaces works everywhere");
        assert_eq!(plain, expected, "{user:?}");
        for isolation in ["userNamespace", "root"] {
            if let Some(printed) = guarded(&user, isolation, status) {
                assert_eq!(printed, expected, "{user:?} {isolation}");
            }
        }
    }
}

#[test]
fn a_program_in_namespaces_sees_only_its_own_processes_and_not_root() {
    let look = "test -e /proc/$PPID/status && ls -d /proc/[0-9]* | wc -l; tr '\\0' ' ' </proc/1/cmdline; echo; id -u";
    for user in as_each_user() {
        for isolation in ["userNamespace", "root"] {
            let Some(printed) = guarded(&user, isolation, look) else { continue };
            let lines: Vec<_> = printed.lines().collect();
            let count: u32 = lines[0].trim().parse().unwrap();
            assert!((2..10).contains(&count), "{user:?} {isolation}: {printed}");
            assert!(lines[1].starts_with("ostler guard --init"), "{printed}");
            if isolation == "userNamespace" {
                assert_ne!(lines[2], "0", "root is nobody there");
            }
        }
    }
}

#[test]
fn a_guarded_program_inherits_only_its_standard_streams() {
    let script = r#"exec 7</dev/null 9</dev/zero; exec "$OSTLER" guard "$ORDER" /bin/ls /proc/self/fd"#;
    for isolation in ["none", "userNamespace", "root"] {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).env("OSTLER", env!("CARGO_BIN_EXE_ostler")).env("ORDER", order(isolation));
        let output = command.stdin(Stdio::null()).output().unwrap();
        if isolation != "none" && !output.status.success() {
            continue;
        }
        // The fourth is the directory being listed.
        assert_eq!(String::from_utf8(output.stdout).unwrap(), "0\n1\n2\n3\n", "{isolation}");
    }
}

#[test]
fn nothing_outlives_the_first_process_of_a_namespace() {
    let tool = "setsid -f sh -c 'trap \"\" TERM HUP; exec sleep 731'; sleep 731 & exit 3";
    for isolation in ["userNamespace", "root"] {
        let mut command = ostler(&["guard", &order(isolation), "/bin/sh", "-c", tool]);
        command.env("PATH", std::env::var_os("PATH").unwrap());
        let mut child = crate::fixtures::process::Guarded(command.spawn().unwrap());
        if child.wait().code() == Some(3) {
            assert_eq!(crate::fixtures::backend_server::processes("sleep 731"), []);
        }
    }
}

#[test]
fn running_as_root_is_a_warning() {
    let home = TestHome::on_disk(Engine::Sqlite);
    let server = home.serve();
    let root = geteuid().is_root();
    assert_eq!(Http::new(&server).get("/health/readiness").good()["confinement"]["root"], root);
    assert_eq!(home.log().contains("the server runs as root"), root, "{}", home.log());
    let checks = home.cli(Some(&server), &["doctor", "-o", "json"]).stdout;
    let checks: Vec<Value> = serde_json::from_slice(&checks).unwrap();
    let user = checks.iter().find(|check| check["name"] == "user").unwrap();
    assert_eq!(user["state"], if root { "warn" } else { "ok" }, "{user}");
    server.stop();
}
