//! What runs cost, and the labels by which they are found.

use serde_json::{Value, json};

use crate::fixtures::{
    process::{Server, stdout_of},
    test_home::{Engine, TestHome},
};

fn json_of(home: &TestHome, server: &Server, args: &[&str]) -> Value {
    let output = home.cli(Some(server), &[args, &["-o", "json"]].concat());
    assert!(output.status.success(), "{args:?}: {output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// A run whose one turn costs this much.
fn run(home: &TestHome, server: &Server, labels: &[&str], cost_usd: f64) -> String {
    let prompt =
        json!({"script": [{"usage": {"inputTokens": 900, "outputTokens": 100, "costUsd": cost_usd}}, {"say": "done"}]});
    let labels: Vec<_> = labels.iter().flat_map(|label| ["--label", label]).collect();
    let made = json_of(home, server, &[&["run", &prompt.to_string()], &labels[..]].concat());
    made["runId"].as_str().unwrap().to_owned()
}

#[test]
fn runs_are_found_by_label_sorted_by_cost_and_summed() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    let cheap = run(&home, &server, &["team=search", "stage=dev"], 0.25);
    let dear = run(&home, &server, &["team=search"], 1.5);
    run(&home, &server, &[], 9.0);
    let listed = |args: &[&str]| -> Vec<String> {
        let runs = json_of(&home, &server, &[&["runs", "list"], args].concat());
        runs.as_array().unwrap().iter().map(|run| run["runId"].as_str().unwrap().to_owned()).collect()
    };
    let found = listed(&["--label", "team=search", "--sort", "cost", "--since", "1d"]);
    assert_eq!(found, [dear.clone(), cheap.clone()]);
    assert_eq!(listed(&["-l", "team=search", "-l", "stage=dev"]), std::slice::from_ref(&cheap));
    let changed = stdout_of(home.cli(Some(&server), &["runs", "label", &cheap, "stage-", "verdict=good"]));
    assert_eq!(changed, format!("{cheap} has the labels team=search, verdict=good\n"));
    assert_eq!(listed(&["--label", "stage=dev"]), [""; 0]);
    let table = stdout_of(home.cli(Some(&server), &["runs", "list", "--sort", "cost", "--label", "team=search"]));
    assert!(table.lines().next().unwrap().contains("COST     TOKENS  TIME"), "{table}");
    assert!(table.contains("$1.50    1.0k"), "{table}");
    let names = stdout_of(home.cli(Some(&server), &["runs", "list", "-o", "name", "--label", "team=search"]));
    assert!(names.lines().any(|name| name == cheap), "{names}");
    let columns = ["runs", "list", "--columns", "runId,usage.costUsd", "--sort", "cost", "--label", "team=search"];
    let columns = stdout_of(home.cli(Some(&server), &columns));
    assert!(columns.starts_with("RUNID ") && columns.contains(&format!("{cheap}  ")), "{columns}");
    stdout_of(home.cli(Some(&server), &["sessions", "create", "review", "--label", "team=ads"]));
    stdout_of(home.cli(Some(&server), &["sessions", "create", "other", "--label", "team=search"]));
    let sessions = json_of(&home, &server, &["sessions", "list", "--label", "team=ads"]);
    let names: Vec<_> = sessions.as_array().unwrap().iter().map(|session| &session["sessionId"]).collect();
    assert_eq!(names, ["review"]);
    let shown = stdout_of(home.cli(Some(&server), &["sessions", "show", "review"]));
    assert!(shown.contains("\nlabels   team=ads\n"), "{shown}");
    let result = stdout_of(home.cli(Some(&server), &["result", &cheap]));
    assert!(result.ends_with("\nlabels   team=search, verdict=good\n"), "{result}");
    let session = stdout_of(home.cli(Some(&server), &["sessions", "label", "review", "team-"]));
    assert_eq!(session, "review has no labels\n");
    let report = json_of(&home, &server, &["usage", "--by", "user", "--since", "30d"]);
    let day = |name: &str| report[name].as_str().unwrap().parse::<jiff::civil::Date>().unwrap();
    assert_eq!((day("until") - day("since")).get_days(), 29, "30 days, of which today is one: {report}");
    let total =
        json!({"runs": 3, "turns": 3, "tokens": 3_000, "costUsd": 10.75, "activeMs": report["total"]["activeMs"]});
    assert_eq!(report["total"], total);
    assert_eq!(report["groups"][0]["key"], "operator");
    let text = stdout_of(home.cli(Some(&server), &["usage"]));
    assert!(text.contains("scripted  3     3      3.0k    $10.75"), "{text}");
    server.stop();
    home.assert_verified();
}
