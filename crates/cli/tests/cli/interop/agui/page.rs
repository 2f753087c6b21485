//! `examples/chat`, bundled as its README describes, in a real browser against a real server.

use std::{fs, net::TcpListener, process::Command};

use serde_json::json;

use super::{example, installed, source};
use crate::fixtures::{
    test_home::{Engine, TestHome},
    web_site::WebSite,
};

/// The page's script, bundled with the client from npm.
fn bundle() -> String {
    let client = installed("OSTLER_TEST_AGUI_CLIENT");
    let modules = client.ancestors().find(|folder| folder.ends_with("node_modules")).unwrap();
    let mut esbuild = Command::new(installed("OSTLER_TEST_ESBUILD"));
    esbuild.arg(example("chat.js")).args(["--bundle", "--format=esm"]).env("NODE_PATH", modules);
    let bundled = esbuild.output().unwrap();
    assert!(bundled.status.success(), "{}", String::from_utf8_lossy(&bundled.stderr));
    String::from_utf8(bundled.stdout).unwrap()
}

#[test]
fn the_example_page_works_in_a_real_browser() {
    let page = fs::read_to_string(example("index.html")).unwrap();
    let person = r#"<script type="module" src="page.js"></script>"#;
    let pages = vec![
        ("/", "text/html", format!("{page}{person}")),
        ("/bundle.js", "text/javascript", bundle()),
        ("/page.js", "text/javascript", fs::read_to_string(source("page.js")).unwrap()),
    ];
    let site = WebSite::open(TcpListener::bind("127.0.0.1:0").unwrap(), pages, None);
    let origin = format!("http://127.0.0.1:{}", site.port);
    let mut home = TestHome::new(Engine::Sqlite);
    home.flags = vec!["--allow-origin".into(), origin.clone()];
    // A dead runner is detected soon.
    for (name, value) in [("LEASE_MS", "3000"), ("JOB_SILENCE_MS", "3000"), ("SWEEP_INTERVAL_MS", "50")] {
        home.set(&format!("OSTLER_RUNNER__{name}"), value);
    }
    let server = home.serve();
    let report = site.visited(&format!("{origin}/#server={}&token={}", server.url(), server.token), "");
    assert_eq!(
        report["said"],
        json!([
            "assistant: Hello",
            "tool: ⚙ shell: a",
            "question: Delete? rm a",
            "assistant: Deleted.",
            "question: Delete? rm b",
            "error: declined",
            "assistant: Never mind",
            "question: Delete? rm c",
            "error: it broke",
            "question: Delete? rm d",
            "error: stopped",
            "assistant: Wait…",
            "error: stopped",
            "error: RunAgentInput user message text exceeds limit",
            "assistant: half",
            "assistant: whole"
        ]),
        "{report}\n{}",
        home.log()
    );
    server.stop();
}
