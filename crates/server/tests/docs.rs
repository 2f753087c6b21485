//! The pages people read are true: what they list is what the program has. `OSTLER_BLESS=1` writes the generated ones again.

mod guide;
mod served;
mod settings;

use std::path::PathBuf;

use ostler_server::config::keys;

use serde_json::Value;

use crate::harness::dialects;

const LIMITS: &str = include_str!("../../protocol/src/limits.rs");

fn page(name: &str) -> PathBuf {
    PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this test")).join("../../docs").join(name)
}

const CONFIGURATION: &str = "# Configuration

`ostler serve` needs no configuration. Settings come from a TOML file (`--config FILE`), from the environment, and from
the command line; the command line overrides the environment, and the environment overrides the file.

```toml
[server]
listen = \"127.0.0.1:4747\"

[policy.ceiling]
timeout_ms = 600000
```

<!-- not run: it starts servers of its own -->
```sh
ostler serve --config ostler.toml
OSTLER_SERVER__LISTEN=127.0.0.1:4748 ostler serve      # every key is also OSTLER_SECTION__KEY
ostler config show                                     # every setting and where it comes from, secrets hidden
```

An unknown key is rejected, and so is a value of the wrong type or out of range. The error lists every problem at once, each
with its file and line or the name of its variable, and the setting that was probably meant. In the environment a list is
written as `a,b` or as a JSON array. Names that end in `_ms` are milliseconds, in `_bytes` or `_bytes_max` bytes.

The rest of this page is generated from the program's own list of settings.
";

#[test]
fn the_page_of_configuration_lists_every_key() {
    let mut text = CONFIGURATION.to_owned();
    let mut section = String::new();
    for key in keys(&dialects().sections()) {
        let (of, field) = key.name.rsplit_once('.').expect("every key has a section");
        if of != section {
            text += &format!("\n## `[{of}]`\n\n| key | default | environment | meaning |\n|---|---|---|---|\n");
            section = of.to_owned();
        }
        let default = match &key.default {
            Value::Null => "–".to_owned(),
            set => format!("`{set}`"),
        };
        assert!(!key.meaning().is_empty(), "{} has no description", key.name);
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

#[test]
fn the_page_of_the_gateways_methods_is_their_table() {
    let (path, text) = (page("generated/methods.md"), ostler_protocol::mesh::methods::page());
    if std::env::var_os("OSTLER_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == text, "docs/generated/methods.md is not the table; run this with OSTLER_BLESS=1");
}

#[test]
fn the_page_of_metrics_is_their_table() {
    let mut text = String::from(
        "# Metrics\n\nMade from the tables in `crates/server/src/metrics/page.rs` and in `metrics.rs` of each dialect. `GET /metrics` is for\n\
         the operator, unless `server.open_metrics` opens it. Counters are of one server and start at zero with it.\n\n\
         | metric | type | labels | meaning |\n|---|---|---|---|\n",
    );
    for (name, kind, labels, help) in dialects().metrics() {
        text += &format!("| `{name}` | {kind} | {labels} | {help} |\n");
    }
    let path = page("generated/metrics.md");
    if std::env::var_os("OSTLER_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == text, "docs/generated/metrics.md is not the table; run this with OSTLER_BLESS=1");
}

/// `262144` as a page writes it.
fn grouped(number: i64) -> String {
    let digits = number.to_string();
    let groups: Vec<_> = digits.as_bytes().rchunks(3).rev().map(|group| str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}

#[test]
fn the_page_of_limits_has_every_limit_with_its_number() {
    let page = std::fs::read_to_string(page("limits.md")).unwrap();
    let rows: Vec<Vec<&str>> = page.lines().map(|line| line.split('|').map(str::trim).collect()).collect();
    let constants =
        LIMITS.lines().filter_map(|line| line.strip_prefix("pub const ")?.strip_suffix(';')?.split_once(": "));
    let mut seen = 0;
    for (name, value) in constants {
        let (_, product) = value.split_once(" = ").unwrap();
        let value: i64 = product.split(" * ").map(|factor| factor.replace('_', "").parse::<i64>().unwrap()).product();
        let told = |row: &&Vec<&str>| row.get(3).is_some_and(|constant| *constant == format!("`{name}`"));
        let said = rows.iter().find(told).unwrap_or_else(|| panic!("{name} is not in docs/limits.md"))[2];
        assert_eq!(said.split(' ').next().unwrap(), grouped(value), "{name}");
        seen += 1;
    }
    assert!(seen > 30, "{seen}");
}

#[test]
fn the_page_of_limits_has_every_body_with_its_bounds() {
    let page = std::fs::read_to_string(page("limits.md")).unwrap();
    for (name, bytes_max, values_max) in ostler_protocol::bodies::BODIES {
        let row = format!("| `{name}` | {} | {} |", grouped(*bytes_max as i64), grouped(*values_max as i64));
        assert!(page.lines().any(|line| line == row), "docs/limits.md has no row {row}");
    }
}

/// The statements of a page about numbers elsewhere.
#[test]
fn other_pages_name_the_same_numbers() {
    use ostler_protocol::limits::{LEASE_MS_DEFAULT, PERMISSION_WAIT_MS_DEFAULT, WAIT_MS_MAX};
    let runner = std::fs::read_to_string(page("writing-a-runner.md")).unwrap();
    for said in [
        format!("\"leaseMs\": {LEASE_MS_DEFAULT}"),
        format!("waitMs={WAIT_MS_MAX}"),
        format!("\"waitMs\": {PERMISSION_WAIT_MS_DEFAULT}"),
    ] {
        assert!(runner.contains(&said), "docs/writing-a-runner.md does not say {said}");
    }
    let limits = ostler_server::config::LimitsSection::default();
    let page = std::fs::read_to_string(page("limits.md")).unwrap().replace('\n', " ");
    for (ms, said) in
        [(limits.heartbeat_ms, "comment every 15 s of silence"), (limits.slow_reader_ms, "nothing for 30 s")]
    {
        assert!(said.contains(&format!("{} s", ms / 1_000)) && page.contains(said), "{said}");
    }
}
