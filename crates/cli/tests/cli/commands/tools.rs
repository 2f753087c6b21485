//! `ostler tools`: list the tools, and try one.

use serde_json::Value;

use crate::fixtures::{
    process::stdout_of,
    test_home::{Engine, TestHome},
};

#[test]
fn tools_are_listed_and_called() {
    let home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    let ostler = |args: &[&str]| home.cli(Some(&server), &[&["tools"][..], args].concat());
    let listed = stdout_of(ostler(&["list"]));
    assert!(listed.starts_with("NAME") && listed.contains("time_now") && listed.contains("built-in"), "{listed}");
    let listed: Value = serde_json::from_str(&stdout_of(ostler(&["list", "-o", "json"]))).unwrap();
    let time_now = listed.as_array().unwrap().iter().find(|tool| tool["name"] == "time_now").unwrap();
    assert_eq!((&time_now["changes"], &time_now["parameters"]["type"]), (&false.into(), &"object".into()));
    let called = stdout_of(ostler(&["call", "time_now", "--arguments", r#"{"timezone": "Asia/Tokyo"}"#]));
    assert!(called.contains("+09:00"), "{called}");
    for (args, expected) in [
        (&["call", "no_such_tool"][..], "there is no tool"),
        (&["call", "time_now", "--arguments", "nonsense"], "not a JSON object"),
        (&["call", "time_now", "--arguments", r#"{"timezone": 7}"#], "timezone"),
    ] {
        let refused = ostler(args);
        let printed = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && printed.contains(expected), "{args:?}: {printed}");
    }
}
