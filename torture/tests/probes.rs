//! The document about reliability names every probe. That this test exists also makes cargo build the program itself
//! together with the tests, which `cargo xtask test` uses.

use std::path::Path;
use std::process::Command;

#[test]
fn every_probe_is_documented() {
    let output = Command::new(env!("CARGO_BIN_EXE_ostler-torture")).arg("--list").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let list = String::from_utf8(output.stdout).unwrap();
    let names: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() > 10, "{list}");
    let root = std::env::var_os("CARGO_MANIFEST_DIR").unwrap();
    let document = std::fs::read_to_string(Path::new(&root).join("../docs/reliability.md")).unwrap();
    let missing: Vec<_> = names.into_iter().filter(|name| !document.contains(&format!("| `{name}` |"))).collect();
    assert!(missing.is_empty(), "docs/reliability.md does not mention {missing:?}");
}

#[test]
fn an_unknown_probe_is_refused() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ostler-torture"));
    let output = command.args(["--ostler", "/bin/true", "--probe", "nonsense"]).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no probe \"nonsense\""), "{output:?}");
}
