//! The pages people read are true: what they list is what the program has. `OSTLER_BLESS=1` writes the made ones anew.

mod served;

use std::path::PathBuf;

use ostler_server::config::keys;
use serde_json::Value;

fn page(name: &str) -> PathBuf {
    PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this test")).join("../../docs").join(name)
}

const CONFIGURATION: &str = "# Configuration

`ostler serve` needs none. What can be set stands in a TOML file (`--config FILE`), in the environment, or on the command line;
the later wins. A key that is not in this list is refused. A list in the environment is written `a,b`, or as a JSON array.

```toml
[server]
listen = \"127.0.0.1:4747\"

[policy.ceiling]
timeout_ms = 600000
```

This page is made from the program's own list; a test holds it.
";

#[test]
fn the_page_of_configuration_lists_every_key() {
    let mut text = CONFIGURATION.to_owned();
    let mut section = String::new();
    for key in keys() {
        let (of, field) = key.name.rsplit_once('.').expect("every key has a section");
        if of != section {
            text += &format!("\n## `[{of}]`\n\n| key | default | environment | meaning |\n|---|---|---|---|\n");
            section = of.to_owned();
        }
        let default = match &key.default {
            Value::Null => "–".to_owned(),
            set => format!("`{set}`"),
        };
        assert!(!key.meaning().is_empty(), "{} says nothing of what it means", key.name);
        let meaning = key.meaning().replace('\n', " ");
        text += &format!("| `{field}` | {default} | `{}` | {meaning} |\n", key.environment());
    }
    let path = page("configuration.md");
    if std::env::var_os("OSTLER_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == text, "docs/configuration.md is not the program's list; run this with OSTLER_BLESS=1");
}
