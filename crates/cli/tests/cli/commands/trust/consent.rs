//! The consent screens at a terminal, in both languages, and the exported ledger, checked without a server.

use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    process::Server,
    pty::{Ended, Terminal},
    test_home::{Engine, TestHome},
};

/// The scopes that the agent requests: a preset one and two of its own.
pub(crate) fn manifest(required: &[&str]) -> Value {
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}, "required": required,
        "additionalProperties": false});
    let own = |id: &str, label: &str, sensitivity: &str| {
        json!({"id": id, "label_i18n_key": "agent.scope.own.label", "label_fallback": label,
            "description_fallback": "As it says.", "sensitivity": sensitivity})
    };
    json!({"schema_version": "1.0", "agent_version": "1.0.0",
        "tools": [{"name": "read_note", "description_i18n_key": "agent.cap.read.description",
            "description_fallback": "Reads a note.", "input_schema": schema, "permission_scope": "notes:read"}],
        "permission_scopes": [own("notes:read", "Read notes", "low"), own("shell:exec", "Run programs", "high"),
            {"id": "filesystem:read", "label_i18n_key": "agent.scope.filesystem_read.label", "sensitivity": "medium"}]})
}

struct ConsentFixture {
    home: TestHome,
    server: Server,
    agent_id: String,
}

impl ConsentFixture {
    fn set() -> Self {
        let home = TestHome::new(Engine::Sqlite).without_runner();
        let server = home.serve();
        let body = json!({"name": "notes-helper", "capability_manifest": manifest(&[])});
        let made = Http::new(&server).post("/agents", &body).good();
        let agent_id = made["id"].as_str().unwrap().to_owned();
        Self { home, server, agent_id }
    }

    fn publish(&self, manifest: &Value) {
        let path = format!("/agents/{}", self.agent_id);
        Http::new(&self.server).patch(&path, &json!({"capability_manifest": manifest})).good();
    }

    fn consent(&self, args: &[&str], environment: &[(&str, &str)]) -> Terminal {
        Terminal::start(&self.home, &self.server, &[&["consent"], args].concat(), environment)
    }

    /// The only relation.
    fn relation(&self) -> Value {
        let page = Http::new(&self.server).get("/h2a/relations").good();
        assert_eq!(page["relations"].as_array().unwrap().len(), 1, "{page}");
        page["relations"][0].clone()
    }

    fn cli(&self, args: &[&str]) -> std::process::Output {
        self.home.cli(Some(&self.server), args)
    }
}

#[track_caller]
fn good(ended: Ended) -> String {
    assert_eq!(ended.code, 0, "{}", ended.screen);
    ended.screen
}

#[test]
fn a_person_chooses_scopes_in_english() {
    let fixture = ConsentFixture::set();
    let terminal = fixture.consent(&["grant", &fixture.agent_id], &[("LANG", "en_GB.UTF-8")]);
    let screen = terminal.shows("`q` leaves everything as it is");
    let order = [
        "▲ High: asks you every time",
        "[ ] 1  Run programs  shell:exec",
        "● Medium: asks you once a day",
        "[ ] 2  Read local files  filesystem:read",
        "○ Low: used without asking you",
        "[ ] 3  Read notes  notes:read",
        "used by read_note",
    ];
    let places: Vec<_> =
        order.iter().map(|text| screen.find(text).unwrap_or_else(|| panic!("{text}:\n{screen}"))).collect();
    assert!(places.is_sorted(), "the most sensitive comes first:\n{screen}");
    terminal.types("2 1h\n");
    terminal.shows("[x] 2  Read local files  filesystem:read  (for 1h)");
    terminal.types("1 never\n");
    terminal.shows("[-] 1  Run programs  shell:exec  (never)");
    terminal.types("3 nonsense\n");
    terminal.shows("unknown choice");
    terminal.types("3\n");
    terminal.shows("[x] 3  Read notes  notes:read");
    terminal.types("\n");
    terminal.shows("Grant 2 of 3 scopes to notes-helper? [y/N]");
    terminal.types("y\n");
    let screen = good(terminal.ends());
    assert!(screen.contains("granted filesystem:read, notes:read"), "{screen}");
    let relation = fixture.relation();
    assert_eq!(relation["granted_scopes"], json!(["filesystem:read", "notes:read"]));
    assert_eq!(relation["denied_scopes"], json!(["shell:exec"]));
    let limited: Vec<_> =
        relation["scopes"].as_array().unwrap().iter().filter(|s| s["expires_at"].is_string()).collect();
    assert_eq!((limited.len(), &limited[0]["id"]), (1, &json!("filesystem:read")));
}

#[test]
fn a_person_chooses_scopes_in_chinese() {
    let fixture = ConsentFixture::set();
    let terminal = fixture.consent(&["grant", &fixture.agent_id], &[("LANG", "zh_CN.UTF-8")]);
    let screen = terminal.shows("`q` 保持不变并退出");
    let order = [
        "请求 3 项权限。未经你同意，不会授予任何权限。",
        "▲ 高：每次都询问",
        "[ ] 1  Run programs  shell:exec",
        "● 中：每天询问一次",
        "[ ] 2  读取本地文件  filesystem:read",
        "○ 低：使用时不再询问",
        "[ ] 3  Read notes  notes:read",
        "用于 read_note",
    ];
    let places: Vec<_> =
        order.iter().map(|text| screen.find(text).unwrap_or_else(|| panic!("{text}:\n{screen}"))).collect();
    assert!(places.is_sorted(), "the most sensitive comes first:\n{screen}");
    terminal.types("2 1h\n");
    terminal.shows("[x] 2  读取本地文件  filesystem:read  (限时 1h)");
    terminal.types("1 never\n");
    terminal.shows("[-] 1  Run programs  shell:exec  (始终拒绝)");
    terminal.types("3 nonsense\n");
    terminal.shows("无法理解：");
    terminal.types("3\n");
    terminal.shows("[x] 3  Read notes  notes:read");
    terminal.types("\n");
    terminal.shows("向 notes-helper 授予 3 项权限中的 2 项？ [y/N]");
    terminal.types("y\n");
    let screen = good(terminal.ends());
    assert!(screen.contains("已授予 filesystem:read, notes:read"), "{screen}");
    let relation = fixture.relation();
    assert_eq!(relation["granted_scopes"], json!(["filesystem:read", "notes:read"]));
    assert_eq!(relation["denied_scopes"], json!(["shell:exec"]));
    // The receipt records the language and the texts that the person read.
    let page = Http::new(&fixture.server).get(&format!("/h2a/relations/{}/receipts", relation["id"].as_str().unwrap()));
    let receipt = page.good()["receipts"][0].clone();
    assert_eq!(receipt["language"], "zh", "{receipt}");
    assert!(receipt.to_string().contains("读取本地文件"), "{receipt}");
}

#[test]
fn a_person_reviews_what_changed_in_english() {
    let fixture = ConsentFixture::set();
    let granted =
        ["consent", "grant", &fixture.agent_id, "--grant", "notes:read", "--grant", "filesystem:read", "--yes"];
    assert!(fixture.cli(&granted).status.success());
    fixture.publish(&manifest(&["path"]));
    let terminal = fixture.consent(&["review"], &[("LANG", "en_GB.UTF-8")]);
    let screen = terminal.shows("`q` leaves everything as it is");
    for text in [
        "has changed since you consented (manifest 1, now 2):",
        "! uses a tool in another way: read_note",
        "required-added /tools/0/input_schema",
        "[x] 2  Read local files  filesystem:read",
        "[ ] 3  Read notes  notes:read  (paused since the agent changed)",
    ] {
        assert!(screen.contains(text), "{text}:\n{screen}");
    }
    terminal.types("3 once\n");
    terminal.shows("[x] 3  Read notes  notes:read  (paused since the agent changed; now: once)");
    terminal.types("2\n");
    terminal.shows("[ ] 2  Read local files");
    terminal.types("\n");
    terminal.shows("Grant 1 of 3 scopes to notes-helper, and take back filesystem:read? [y/N]");
    terminal.types("y\n");
    let screen = good(terminal.ends());
    assert!(screen.contains("granted notes:read"), "{screen}");
    let relation = fixture.relation();
    assert_eq!((&relation["reauth_required"], &relation["consented_manifest_version"]), (&json!(false), &json!(2)));
    assert_eq!(relation["granted_scopes"], json!(["notes:read"]));
    let screen = good(fixture.consent(&["review"], &[]).ends());
    assert!(screen.contains("nothing waits for an answer"), "{screen}");
}

#[test]
fn a_person_reviews_what_changed_in_chinese() {
    let fixture = ConsentFixture::set();
    let granted =
        ["consent", "grant", &fixture.agent_id, "--grant", "notes:read", "--grant", "filesystem:read", "--yes"];
    assert!(fixture.cli(&granted).status.success());
    fixture.publish(&manifest(&["path"]));
    assert_eq!(fixture.relation()["suspended_scopes"], json!(["notes:read"]));
    let terminal = fixture.consent(&["review"], &[("LANG", "zh_CN.UTF-8")]);
    let screen = terminal.shows("`q` 保持不变并退出");
    for text in [
        "自你同意以来已变更（清单版本 1，现为 2）",
        "! 工具的用法有改动: read_note",
        "/tools/0/input_schema",
        "▲ 高：每次都询问",
        "● 中：每天询问一次",
        "[x] 2  读取本地文件  filesystem:read",
        "○ 低：使用时不再询问",
        "[ ] 3  Read notes  notes:read  (Agent 变更后已暂停)",
    ] {
        assert!(screen.contains(text), "{text}:\n{screen}");
    }
    terminal.types("3 once\n");
    terminal.shows("仅一次");
    terminal.types("\n");
    terminal.shows("向 notes-helper 授予 3 项权限中的 2 项？ [y/N]");
    terminal.types("y\n");
    let screen = good(terminal.ends());
    assert!(screen.contains("已授予 filesystem:read, notes:read"), "it ends in the language it began in:\n{screen}");
    assert!(screen.contains(&format!("{}，所有者 local", fixture.agent_id)), "{screen}");
    let relation = fixture.relation();
    assert_eq!((&relation["reauth_required"], &relation["consented_manifest_version"]), (&json!(false), &json!(2)));
    assert_eq!(relation["granted_scopes"], json!(["filesystem:read", "notes:read"]));
    let screen = good(fixture.consent(&["review"], &[]).ends());
    assert!(screen.contains("nothing waits for an answer"), "{screen}");
}

#[test]
fn quitting_the_screen_changes_nothing() {
    let fixture = ConsentFixture::set();
    for (lang, expected) in [("en", "nothing was changed"), ("zh", "未做任何更改")] {
        let terminal = fixture.consent(&["grant", &fixture.agent_id, "--lang", lang], &[]);
        terminal.shows("\n>");
        terminal.types("all\n");
        terminal.shows("[x] 3");
        terminal.types("q\n");
        assert!(good(terminal.ends()).contains(expected));
    }
    let terminal = fixture.consent(&["grant", &fixture.agent_id], &[]);
    terminal.shows("\n>");
    terminal.types("all\n\n");
    terminal.shows("[y/N]");
    terminal.types("\n");
    good(terminal.ends());
    let page = Http::new(&fixture.server).get("/h2a/relations").good();
    assert_eq!(page["relations"], json!([]));
}

#[test]
fn a_ledger_is_verified_without_a_server() {
    let fixture = ConsentFixture::set();
    for args in [&["--grant", "notes:read=once"][..], &["--none"], &["--grant", "notes:read", "--never", "shell:exec"]]
    {
        let all = [&["consent", "grant", &fixture.agent_id, "--yes"], args].concat();
        let output = fixture.cli(&all);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let refused = |args: &[&str], expected: &str| {
        let output = fixture.cli(&[&["consent", "grant", &fixture.agent_id], args].concat());
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), words.contains(expected)), (Some(2), true), "{expected}: {words}");
        assert!(!words.contains("cannot be undone"), "{words}");
    };
    refused(&[], "there is no terminal to choose at");
    refused(&["--yes"], "hint: name what to grant, as in `--grant ");
    refused(&["--none"], "there is no terminal to ask at: Grant 0 of 3 scopes");
    refused(&["--grant", "notes:read", "--never", "notes:read", "--yes"], "is given twice");
    refused(&["--grant", "notes:read=99999d", "--yes"], "3660d at most");
    let without_terminal = fixture.cli(&["consent", "revoke", "notes-helper"]);
    let expected = String::from_utf8_lossy(&without_terminal.stderr).into_owned();
    let question = "there is no terminal to ask at: End the relation with notes-helper, and revoke notes:read?";
    assert!(expected.contains(question) && !expected.contains("cannot be undone"), "{expected}");
    // The id that `grant` prints is accepted as well.
    let relations: Vec<Value> =
        serde_json::from_slice(&fixture.cli(&["consent", "list", "-o", "json"]).stdout).unwrap();
    let relation = relations[0]["id"].as_str().unwrap();
    let shown = fixture.cli(&["consent", "revoke", relation, "--dry-run"]);
    assert!(shown.status.success(), "{shown:?}");
    let unknown = fixture.cli(&["consent", "revoke", "rel_ffffffffffffffffffffffffffffffff", "--yes"]);
    assert_eq!(unknown.status.code(), Some(4), "{unknown:?}");
    assert!(fixture.cli(&["consent", "revoke", &fixture.agent_id, "--yes"]).status.success());
    // A new relation shows what was refused in the last one.
    let again = fixture.cli(&["consent", "grant", &fixture.agent_id, "--grant", "notes:read", "--dry-run"]);
    assert!(String::from_utf8_lossy(&again.stderr).contains("(refused before"), "{again:?}");
    let exported = fixture.cli(&["consent", "export"]).stdout;
    let ConsentFixture { home, server, .. } = fixture;
    server.stop();
    let verify = |ledger: &[u8], head: &[&str]| {
        let file = home.path("ledger.jsonl");
        std::fs::write(&file, ledger).unwrap();
        let output = home.cli(None, &[&["consent", "verify", file.to_str().unwrap()], head].concat());
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let (code, expected) = verify(b"", &[]);
    assert!(code == 1 && expected.contains("the ledger has no receipts"), "nothing proves nothing: {expected}");
    let (code, expected) = verify(&exported, &[]);
    assert!(code == 0 && expected.starts_with("ok 4 receipts"), "{expected}");
    let (_, expected) = verify(&exported, &["-o", "json"]);
    let report: Value = serde_json::from_str(&expected).unwrap();
    assert_eq!((&report["heads"][0]["user_id"], &report["heads"][0]["seq"]), (&json!("local"), &json!(4)));
    assert!(std::str::from_utf8(&exported).unwrap().contains(report["heads"][0]["hash"].as_str().unwrap()));
    let lines: Vec<_> = std::str::from_utf8(&exported).unwrap().lines().map(str::to_owned).collect();
    let last: Value = serde_json::from_str(&lines[3]).unwrap();
    let head = ["--head", last["hash"].as_str().unwrap()];
    assert_eq!(verify(&exported, &head).0, 0);

    let whole = |lines: &[String]| format!("{}\n", lines.join("\n")).into_bytes();
    let third: Value = serde_json::from_str(&lines[2]).unwrap();
    let mut changed = lines.clone();
    changed[2] = changed[2].replace("shell:exec", "shell:eXec");
    let (code, expected) = verify(&whole(&changed), &[]);
    assert_eq!(
        (code, expected.contains("line 3") && expected.contains(third["id"].as_str().unwrap())),
        (1, true),
        "{expected}"
    );
    let mut dropped = lines.clone();
    dropped.remove(1);
    assert!(verify(&whole(&dropped), &[]).1.contains("line 2"));
    // A ledger that is not UTF-8 is rejected like a changed one.
    let mut bytes = whole(&lines);
    let third = lines[0].len() + lines[1].len() + 2;
    bytes[third + 20] = 0xff;
    let (code, expected) = verify(&bytes, &[]);
    assert!(code == 1 && expected.contains("line 3") && expected.contains("not UTF-8"), "{expected}");
    // A truncated ledger is consistent, unless the hash of its end is given.
    assert_eq!(verify(&whole(&lines[..3]), &[]).0, 0);
    assert_eq!(verify(&whole(&lines[..3]), &head).0, 1);
}

#[test]
fn newer_agents_do_not_hide_an_older_one() {
    let fixture = ConsentFixture::set();
    let added = fixture.cli(&["users", "add", "eve", "--timezone", "UTC"]);
    assert!(added.status.success(), "{added:?}");
    let token = String::from_utf8(fixture.cli(&["users", "token", "eve"]).stdout).unwrap();
    let mut eve = Http::with_token(&fixture.server.address, Some(token.trim()));
    eve.post("/agents", &json!({"name": "notes-helper", "capability_manifest": manifest(&[])})).good();
    // A full page of newer agents with a similar name.
    for number in 1..1_000 {
        eve.post("/agents", &json!({"name": format!("notes-helper-{number}")})).good();
    }
    let refused = fixture.cli(&["consent", "grant", "notes-helper", "--grant", "notes:read", "--yes"]);
    let expected = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && expected.contains("2 agents have this name"), "{expected}");
    assert!(expected.contains(&fixture.agent_id), "{expected}");
    // Only one of the user's relations is with an agent of this name.
    let granted = fixture.cli(&["consent", "grant", &fixture.agent_id, "--grant", "notes:read=once", "--yes"]);
    assert!(granted.status.success(), "{granted:?}");
    let listed = String::from_utf8(fixture.cli(&["consent", "list"]).stdout).unwrap();
    assert!(listed.contains("notes-helper") && listed.contains("notes:read (once)"), "{listed}");
    let revoked = fixture.cli(&["consent", "revoke", "notes-helper", "--yes"]);
    assert!(revoked.status.success(), "{revoked:?}");
}
