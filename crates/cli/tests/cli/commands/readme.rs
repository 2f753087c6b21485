//! The README's transcripts are the real output.

use regex::Regex;
use serde_json::json;

use crate::fixtures::{
    http::Http,
    pty::Terminal,
    snapshot::mask,
    test_home::{Engine, TestHome},
};

#[test]
fn the_readme_shows_the_real_output() {
    let readme = include_str!("../../../../../README.md");
    let block = readme.split("```text\n").nth(1).unwrap().split("```").next().unwrap();
    let (typed, shown) = block.split_at(block.find("run run_").unwrap());
    let prompt = typed.split('\'').nth(1).unwrap();

    let home = TestHome::on_disk(Engine::Sqlite);
    let server = home.serve();
    let terminal = Terminal::start(&home, &server, &["run", "--session", "disk", prompt], &[]);
    terminal.shows("allow this?");
    terminal.types("y\n");
    let ended = terminal.ends();
    // With the default server, suggested commands have no flags.
    let flags = format!(" --server {} --data-dir {}", server.url(), home.data_dir.display());
    assert_eq!(mask(&home, &ended.screen.replace(&flags, "")), mask(&home, shown));
}

#[test]
fn the_readme_shows_the_real_consent_screen() {
    let readme = include_str!("../../../../../README.md");
    let shown = readme.split("$ ostler consent grant $AGENT\n").nth(1).unwrap();
    let shown = shown.split("$ ostler agents diff").next().unwrap();

    let home = TestHome::new(Engine::Sqlite).without_runner();
    let server = home.serve();
    let schema = json!({"type": "object", "properties": {"path": {"type": "string"}}, "additionalProperties": false});
    let manifest = json!({"schema_version": "1.0", "agent_version": "1.0.0",
        "tools": [{"name": "read_file", "description_i18n_key": "agent.cap.read.description",
            "description_fallback": "Reads a file.", "input_schema": schema, "permission_scope": "filesystem:read"}],
        "permission_scopes": [{"id": "filesystem:read", "label_i18n_key": "agent.scope.filesystem_read.label",
            "sensitivity": "medium"}]});
    let body = json!({"name": "reader", "capability_manifest": manifest});
    let agent_id = Http::new(&server).post("/agents", &body).good()["id"].as_str().unwrap().to_owned();
    let english = [("LANG", "en_GB.UTF-8")];
    let terminal = Terminal::start(&home, &server, &["consent", "grant", &agent_id], &english);
    terminal.shows("`?` shows this help");
    terminal.types("1\n");
    terminal.shows("[x] 1  Read local files");
    terminal.types("\n");
    terminal.shows("[y/N]");
    terminal.types("y\n");
    let ended = terminal.ends();
    assert_eq!(ended.code, 0, "{}", ended.screen);

    let ids = Regex::new(r"\b(agt|rel)_[0-9a-f]{32}\b").unwrap();
    let masked = |text: &str| ids.replace_all(text, "${1}_ID").into_owned();
    let (printed, shown) = (masked(&ended.screen), masked(shown));
    let mut lines = printed.lines();
    // `…` matches any number of lines.
    for line in shown.lines().map(str::trim_end).filter(|line| !line.is_empty() && *line != "…") {
        assert!(lines.any(|printed| printed == line), "{line:?} is not, or not in this place, in\n{printed}");
    }
}
