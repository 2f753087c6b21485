//! `ostler explain`: works without a server, and everything it names exists.

use serde_json::Value;

use crate::fixtures::{
    process::stdout_of,
    snapshot::{assert_snapshot, piped},
    test_home::{Engine, TestHome},
};

#[test]
fn formats_and_fields_are_explained_without_a_server() {
    let home = TestHome::new(Engine::Sqlite);
    let explain = |args: &[&str]| {
        let mut command = home.command(&[&["explain"], args].concat());
        command.env("OSTLER_SERVER", "http://127.0.0.1:1").output().unwrap()
    };
    let mut text = String::new();
    for path in [
        &[][..],
        &["manifest"],
        &["manifest.scopes"],
        &["manifest.scopes.sensitivity"],
        &["apply"],
        &["profile.ostler"],
    ] {
        text += &format!("$ ostler explain {}\n{}\n", path.concat(), stdout_of(explain(path)));
    }
    assert_snapshot("explain", &home, &text);
    let field: Value =
        serde_json::from_str(&stdout_of(explain(&["apply.agents.reader.manifest.tools.timeout_ms", "-o", "json"])))
            .unwrap();
    assert_eq!(
        (&field["path"], &field["type"]),
        (&"apply.agents.NAME.manifest.tools.timeout_ms".into(), &"integer".into())
    );
    assert_eq!((&field["required"], &field["rules"]["range"]), (&false.into(), &"1 to 600000".into()));
    assert_eq!(stdout_of(explain(&["manifest", "--jq", ".fields | map(select(.required).name) | length"])), "4\n");
    assert_snapshot("error_explain", &home, &piped(&explain(&["manifest.tols"])));
}
