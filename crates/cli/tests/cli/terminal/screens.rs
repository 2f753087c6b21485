//! Whole screens at four widths. The state is never shortened, ids are shortened to what is unique, lesser columns are left
//! out first, and no line is wider than the terminal, except a command to copy, which is not broken.

use regex::Regex;
use serde_json::{Value, json};

use crate::{
    commands::trust::consent::manifest,
    fixtures::{
        http::Http,
        process::{Server, eventually, stdout_of},
        pty::{Ended, Terminal},
        snapshot::{assert_snapshot, mask},
        test_home::{Engine, TestHome},
    },
};

const WIDTHS: [u16; 4] = [60, 80, 120, 200];

/// What a command shows at each width, with short ids masked.
fn screens(home: &TestHome, server: &Server, args: &[&str], environment: &[(&str, &str)]) -> String {
    WIDTHS.iter().map(|width| screen(*width, home, server, args, environment)).collect()
}

fn screen(width: u16, home: &TestHome, server: &Server, args: &[&str], environment: &[(&str, &str)]) -> String {
    let columns = width.try_into().unwrap();
    let ended = Terminal::start_at(columns, home, server, args, environment).ends();
    framed(width, home, &ended.screen)
}

fn framed(width: u16, home: &TestHome, shown: &str) -> String {
    for line in shown.lines().filter(|line| !line.starts_with("  ostler ") && !line.trim_start().starts_with('`')) {
        assert!(line.chars().count() <= width.into(), "{line:?} is wider than {width}");
    }
    format!("--- {width} columns\n{}", masked(home, shown))
}

/// Masks what differs, with the same width where columns depend on it.
fn masked(home: &TestHome, shown: &str) -> String {
    let masks = [
        (r"\bagt_[0-9a-f]{32}\b", "agt_ID"),
        (r"\b(run|ses|prm|cmd|agt|rel|aut|cal)_[0-9a-f]{12,31}\b", "${1}_SHORT"),
        (r"\b(aut|cal)_[0-9a-f]{32}\b", "${1}_ID"),
        (r"\b(run|ses|prm|cmd|agt|rel|aut|cal)_[0-9a-f]*…", "${1}_CUT…"),
        (r"\brunner-[0-9a-f]*…", "runner-CUT…"),
        (r"\b[0-9a-f]{8}-[0-9a-f]{3,4}\b", "DELIVERY"),
        // How long turns took.
        (r"\b\d+(\.\d)?s +scripted", "TOOK  scripted"),
    ];
    let shown = masks.iter().fold(shown.to_owned(), |shown, (pattern, mask)| {
        Regex::new(pattern).unwrap().replace_all(&shown, *mask).into_owned()
    });
    mask(home, &shown)
}

/// A failed, a completed and a waiting session, one of them with a long name and a title.
fn scene() -> (TestHome, Server) {
    let mut home = TestHome::new(Engine::Sqlite);
    home.set("OSTLER_WEBHOOKS__ALLOW_LOOPBACK", "true");
    let server = home.serve();
    let cli = |args: &[&str]| home.cli(Some(&server), args);
    let fails = r#"{"script": [{"fail": {"kind": "backend-failed", "message": "the agent fell over"}}]}"#;
    assert_eq!(cli(&["run", "--session", "a-session-with-a-rather-long-name", fails]).status.code(), Some(10));
    let title = "The review of Tuesday, with everything that was said about it";
    assert!(cli(&["sessions", "rename", "a-session-with-a-rather-long-name", title]).status.success());
    assert!(cli(&["run", "hello"]).status.success());
    let asks = json!({"script": [{"say": "Looking at the disk."},
        {"tool": {"name": "shell", "command": "df -h", "output": "/dev/sda1 93%\n"}},
        {"ask": {"title": "Delete the logs of last year, which nobody has read since?", "command": "rm -r logs/2024"}}]});
    assert!(cli(&["run", "--detach", "--session", "disk", &asks.to_string()]).status.success());
    eventually("the agent asks", || {
        let shown: Value = serde_json::from_slice(&cli(&["sessions", "show", "disk", "-o", "json"]).stdout).unwrap();
        (shown["liveness"]["phase"] == "waiting-permission").then_some(())
    });
    (home, server)
}

#[test]
fn lists_fit_every_terminal() {
    let (home, server) = scene();
    for (name, args) in [
        ("ps", &["ps"][..]),
        ("runs", &["runs", "list"]),
        ("runs_by_cost", &["runs", "list", "--sort", "cost", "--status", "waiting,completed,failed"]),
        ("sessions", &["sessions", "list"]),
        ("inbox", &["inbox"]),
        ("profiles", &["profiles", "list"]),
        ("backends", &["backends", "list"]),
    ] {
        let text = screens(&home, &server, args, &[]);
        assert!(!text.contains("waiti…") && !text.contains("fail…"), "a state was shortened: {text}");
        if !["profiles", "backends"].contains(&name) {
            assert_eq!(text.matches("waiting for permission").count(), 4, "{name}: {text}");
        }
        assert_snapshot(&format!("screens_{name}"), &home, &text);
    }
}

#[test]
fn explanations_and_permits_fit_every_terminal() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    let mut text = String::new();
    for args in [&["explain"][..], &["explain", "manifest.tools"], &["explain", "apply.profiles"], &["can-i"]] {
        text += &screens(&home, &server, args, &[]);
    }
    assert_snapshot("screens_explain", &home, &text);
}

/// Two servers of one store, each bound to a directory of its own. The prompt waits for the first.
#[test]
fn a_prompt_for_another_server_shows_what_it_waits_for() {
    let mut home = TestHome::on_disk(Engine::Postgres).without_runner();
    let mut serve = |name: &str| {
        let workspace = home.path(name);
        std::fs::create_dir(&workspace).unwrap();
        home.flags = vec!["--workspace".into(), workspace.display().to_string()];
        home.serve()
    };
    let (here, there) = (serve("here"), serve("there"));
    let mut http = Http::new(&here);
    let session = http.post("/session", &json!({})).good()["sessionId"].as_str().unwrap().to_owned();
    let prompt = json!({"prompt": [{"type": "text", "text": "hello"}]});
    assert_eq!(http.post(&format!("/session/{session}/prompt"), &prompt).status, 202);
    let mut text = String::new();
    for width in [60, 80, 120] {
        for args in [&["ps"][..], &["sessions", "list"]] {
            let shown = screen(width, &home, &there, args, &[]);
            assert!(shown.contains("waiting for another server"), "{args:?}: {shown}");
            text += &shown;
        }
    }
    assert_snapshot("screens_placed", &home, &text);
    assert!(screen(80, &home, &here, &["ps"], &[]).contains("waiting for a runner"));
    let shown = screen(200, &home, &there, &["sessions", "show", &session], &[]);
    assert!(shown.contains("waiting for a server of workspace SCRATCH/here"), "{shown}");
}

#[test]
fn the_inbox_shows_how_turns_ended() {
    let (home, server) = scene();
    let shown = screen(120, &home, &server, &["inbox"], &[]);
    assert!(shown.contains("the agent fell over") && shown.contains("hello"), "{shown}");
    // Long texts are shortened, the command of a request is not.
    for width in [40, 80] {
        let shown = screen(width, &home, &server, &["inbox"], &[]);
        assert!(shown.contains("command: rm -r logs/2024"), "{shown}");
        assert!(width < 80 || shown.contains("the agent f") && shown.contains("SINCE"), "{shown}");
    }
    let items: Value = serde_json::from_str(&stdout_of(home.cli(Some(&server), &["inbox", "-o", "json"]))).unwrap();
    assert_eq!(items[2]["outcome"], "the agent fell over");
}

#[test]
fn a_state_is_whole_on_a_very_narrow_terminal() {
    let (home, server) = scene();
    for command in [&["runs", "list"][..], &["ps"], &["inbox"]] {
        for width in [24, 32, 40] {
            let shown = screen(width, &home, &server, command, &[]);
            let words: Vec<_> = shown.split_whitespace().collect();
            assert!(words.join(" ").contains("waiting for permission"), "{command:?}: {shown}");
        }
    }
}

/// Whether the program itself wrapped every line. A terminal would break them within words.
fn assert_wrapped(ended: &Ended, width: u16) {
    let escapes = Regex::new(r"\x1b\[[0-9;]*[A-Za-z]").unwrap();
    for line in escapes.replace_all(&ended.raw, "").lines() {
        assert!(line.chars().count() <= width.into(), "{line:?} is wider than {width}");
    }
}

#[test]
fn settings_and_the_consent_screen_are_wrapped_between_words() {
    let (home, server) = scene();
    let body = json!({"name": "notes-helper", "capability_manifest": manifest(&[])});
    Http::new(&server).post("/agents", &body).good();
    let mut text = String::new();
    for width in WIDTHS {
        let start = |args: &[&str]| Terminal::start_at(width.try_into().unwrap(), &home, &server, args, &[]);
        let shown = start(&["config", "show", "server"]).ends();
        assert_wrapped(&shown, width);
        assert!(!shown.screen.contains('…') && shown.screen.contains("OSTLER_DATA_DIR"), "{}", shown.screen);
        let asked = start(&["consent", "grant", "notes-helper"]);
        asked.shows("\n>\n");
        asked.types("all\n");
        asked.shows("[x] 3");
        asked.types("\n");
        asked.shows("[y/N]");
        asked.types("n\n");
        let asked = asked.ends();
        assert_wrapped(&asked, width);
        text += &format!("--- {width} columns\n{}", masked(&home, &asked.screen));
    }
    assert_snapshot("screens_consent_grant", &home, &text);
}

#[test]
fn a_result_and_a_trace_fit_every_terminal() {
    let (home, server) = scene();
    assert_snapshot("screens_trace", &home, &screens(&home, &server, &["trace", "disk"], &[]));
    let text = screens(&home, &server, &["result", "a-session-with-a-rather-long-name"], &[]);
    assert_snapshot("screens_result", &home, &text);
    let unreachable = [("OSTLER_SERVER", "http://127.0.0.1:1")];
    let text = screens(&home, &server, &["doctor"], &unreachable);
    assert_snapshot("screens_doctor", &home, &without_disk(&text));
}

/// Without the check of the disk, whose path is long and differs.
fn without_disk(text: &str) -> String {
    let mut is_disk = false;
    let lines = text.lines().filter(|line| {
        is_disk = line.split_whitespace().nth(1) == Some("disk") || (is_disk && line.starts_with(' '));
        !is_disk
    });
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn a_question_shows_the_whole_call_at_every_width() {
    let (home, server) = scene();
    let mut text = String::new();
    for width in WIDTHS {
        let terminal = Terminal::start_at(width.try_into().unwrap(), &home, &server, &["approve", "disk"], &[]);
        let shown = terminal.shows("allow this? [y]es, [n]o, [s]kip:");
        assert!(shown.contains("rm -r logs/2024"), "{shown}");
        terminal.types("s\n");
        let ended = terminal.ends();
        assert_eq!(ended.code, 0, "{}", ended.screen);
        text += &format!("--- {width} columns\n{}", masked(&home, &ended.screen));
    }
    assert_snapshot("screens_approve", &home, &text);
    // Nothing was answered.
    let shown: Value =
        serde_json::from_str(&stdout_of(home.cli(Some(&server), &["sessions", "show", "disk", "-o", "json"]))).unwrap();
    assert_eq!(shown["liveness"]["phase"], "waiting-permission");
}

#[test]
fn lists_of_agents_fit_every_terminal() {
    let (home, server) = scene();
    let body = json!({"name": "notes-helper-of-the-whole-team", "capability_manifest": manifest(&[])});
    let made = Http::new(&server).post("/agents", &body).good();
    let agent = made["id"].as_str().unwrap();
    let cli = |args: &[&str]| home.cli(Some(&server), args);
    let granted = cli(&["consent", "grant", agent, "--grant", "notes:read", "--grant", "filesystem:read", "--yes"]);
    assert!(granted.status.success(), "{granted:?}");
    assert_snapshot("screens_consent", &home, &screens(&home, &server, &["consent", "list"], &[]));
    assert!(cli(&["webhooks", "set", agent, "https://localhost:9/hook"]).status.success());
    let delivery = stdout_of(cli(&["webhooks", "test", agent]));
    assert!(cli(&["webhooks", "remove", agent, "--yes"]).status.success());
    let text = screens(&home, &server, &["webhooks", "list", agent], &[]);
    let attempts = Regex::new(r"dead +\d +").unwrap();
    assert_snapshot("screens_webhooks", &home, &attempts.replace_all(&text, "dead N "));
    // The beginning that a table shows is enough.
    let begun = &delivery.trim()[..12];
    assert!(stdout_of(cli(&["webhooks", "show", agent, begun])).starts_with("webhook.test dead"));
}

#[test]
fn automations_and_calendars_fit_every_terminal() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    let cli = |args: &[&str]| assert!(home.cli(Some(&server), args).status.success(), "{args:?}");
    let digest = "A digest of everything that happened in the whole team";
    cli(&[
        "automations",
        "create",
        digest,
        "--at",
        "07:30",
        "--on",
        "mon,fri",
        "--timezone",
        "Europe/Berlin",
        "-m",
        "hi",
    ]);
    cli(&["automations", "create", "Review", "--at", "17:00", "--timezone", "UTC", "-m", "hi", "--paused"]);
    // When it starts next depends on when this runs.
    let next = Regex::new(r"\b20\d\d-\d\d-\d\dT07:30:00[+-]\d\d:\d\d").unwrap();
    let text = screens(&home, &server, &["automations", "list"], &[]);
    assert_snapshot("screens_automations", &home, &next.replace_all(&text, "NEXT"));
    cli(&["calendar", "add", digest, "2030-03-18T09:00", "--timezone", "Europe/Berlin", "--location", "Room 7"]);
    let window = ["calendar", "list", "--from", "2030-03-16T00:00:00Z"];
    assert_snapshot("screens_calendar", &home, &screens(&home, &server, &window, &[]));
}

#[test]
fn states_have_colours_and_ids_are_accepted_as_they_are_shown() {
    let (home, server) = scene();
    let ended = Terminal::start(&home, &server, &["runs", "list"], &[]).ends();
    assert!(ended.raw.contains("\x1b[1;31mfailed\x1b[0m") && ended.raw.contains("\x1b[32mcompleted\x1b[0m"));
    let plain = Terminal::start(&home, &server, &["runs", "list"], &[("NO_COLOR", "1")]).ends();
    assert!(!plain.raw.contains("\x1b[1;31m"), "{:?}", plain.raw);
    for line in plain.screen.lines().skip(1) {
        let (id, rest) = line.split_once(' ').unwrap();
        assert!(id.len() < 36, "{id}");
        let shown: Value =
            serde_json::from_slice(&home.cli(Some(&server), &["result", id, "-o", "json"]).stdout).unwrap();
        assert!(rest.contains(shown["state"].as_str().unwrap()), "{line}");
    }
}
