//! The rules of the house that no compiler checks: which crate may use which, how long a file may be, what nothing
//! may be called, and that the documents stay short. Each failure names all offenders at once.

#![expect(clippy::expect_used, clippy::unwrap_used, reason = "a test program: a failed unwrap is a failed test")]

mod clusters;
mod english;
mod imports;
mod lints;
mod names;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

const SOURCE_LINES_MAX: usize = 500;
const ARCHITECTURE_LINES_MAX: usize = 200;
const ADR_LINES_MAX: usize = 25;
const SET_UP: [&str; 2] = ["cargo xtask up", "cargo xtask test"];
/// Names that say nothing, and so attract everything.
const EMPTY_NAMES: [&str; 5] = ["utils", "common", "helpers", "types", "misc"];
/// The kernel, the store's lane with what it writes through, and the server's engine. They import no dialect, and their SQL names
/// no table of one.
const NEUTRAL: [&str; 10] = [
    "crates/protocol/src/kernel",
    "crates/store/src/kernel",
    "crates/store/src/lane.rs",
    "crates/store/src/lane",
    "crates/store/src/sqlite.rs",
    "crates/store/src/sqlite",
    "crates/store/src/postgres.rs",
    "crates/store/src/postgres",
    "crates/store/src/db.rs",
    "crates/server/src",
];

/// What a dialect depends on. None uses another.
const USED_BY_DIALECTS: &[&str] =
    &["ostler-server", "ostler-store", "ostler-crypto", "ostler-client", "ostler-protocol", "ostler-testkit"];

/// The one-way rule: a crate may use those named after it, and no other of ours. Crates of dialects need no row.
const MAY_USE: [(&str, &[&str]); 14] = [
    ("ostler-protocol", &[]),
    ("ostler-crypto", &[]),
    ("ostler-store", &["ostler-protocol", "ostler-testkit"]),
    ("ostler-client", &["ostler-crypto", "ostler-protocol"]),
    ("ostler-runner", &["ostler-client", "ostler-protocol", "ostler-stand-ins"]),
    (
        "ostler-server",
        &[
            "ostler-store",
            "ostler-runner",
            "ostler-client",
            "ostler-crypto",
            "ostler-protocol",
            "ostler-stand-ins",
            "ostler-testkit",
        ],
    ),
    (
        "ostler-cli",
        &["ostler-server", "ostler-runner", "ostler-client", "ostler-protocol", "ostler-stand-ins", "ostler-testkit"],
    ),
    ("ostler-stand-ins", &[]),
    ("ostler-testkit", &["ostler-store", "ostler-testkit-macros"]),
    ("ostler-testkit-macros", &[]),
    ("ostler-bench", &["ostler-testkit"]),
    ("ostler-fuzz", &["ostler-crypto", "ostler-protocol"]),
    ("ostler-torture", &["ostler-client", "ostler-protocol", "ostler-testkit"]),
    ("xtask", &["ostler-testkit"]),
];

#[test]
fn crates_depend_in_one_direction() {
    let allowed: BTreeMap<_, _> = MAY_USE.into_iter().collect();
    let metadata = metadata();
    let packages = metadata["packages"].as_array().unwrap();
    let name = |value: &Value| value["name"].as_str().unwrap().to_owned();
    let ours: BTreeSet<String> = packages.iter().map(name).collect();
    let is_dialect = |package: &&Value| package["manifest_path"].as_str().unwrap().contains("/crates/dialects/");
    let dialects: BTreeSet<String> = packages.iter().filter(is_dialect).map(name).collect();
    assert!(dialects.len() >= 4, "{dialects:?}");

    let mut offenders = Vec::new();
    for package in packages {
        let user = name(package);
        let of_dialects = dialects.contains(&user).then_some(&USED_BY_DIALECTS);
        let Some(may_use) = of_dialects.or_else(|| allowed.get(user.as_str())) else {
            offenders.push(format!("{user} has no place in the one-way rule: give it one in MAY_USE"));
            continue;
        };
        // Dependencies of every kind: a test that reaches around the rule proves less than it seems to. The program composes
        // the dialects, and the engine's tests speak all of them.
        let used = package["dependencies"].as_array().unwrap().iter();
        let used = used.filter(|used| {
            let composes = user == "ostler-cli" || (user == "ostler-server" && used["kind"] == "dev");
            !(composes && dialects.contains(used["name"].as_str().unwrap()))
        });
        let used = used.map(name).filter(|used| ours.contains(used));
        offenders.extend(used.filter(|used| !may_use.contains(&used.as_str())).map(|used| format!("{user} → {used}")));
    }
    assert_none(offenders, "dependencies against the one-way rule");
}

/// Faults on demand are compiled in where a feature is switched on, and no release switches it on.
#[test]
fn a_release_has_no_faults_on_demand() {
    const SEAMS: &str = "fault-injection";
    let metadata = metadata();
    let mut offenders = vec![];
    let mut with_seams = 0;
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        let features = package["features"].as_object().unwrap();
        with_seams += usize::from(features.contains_key(SEAMS));
        let switches_on = |enabled: &Value| enabled.as_str().is_some_and(|enabled| enabled.contains(SEAMS));
        for (feature, enables) in features.iter().filter(|(feature, _)| *feature != SEAMS) {
            if enables.as_array().unwrap().iter().any(switches_on) {
                offenders.push(format!("{name}: the feature {feature} switches it on"));
            }
        }
        for dependency in package["dependencies"].as_array().unwrap() {
            let kind = dependency["kind"].as_str().unwrap_or("normal");
            if kind != "dev" && dependency["features"].as_array().unwrap().iter().any(switches_on) {
                offenders.push(format!("{name} switches it on in {}", dependency["name"]));
            }
        }
    }
    assert!(with_seams >= 3, "the store, the server and the program have the feature");
    let releases = [
        "deploy/Dockerfile",
        "xtask/src/up.rs",
        "xtask/src/bench/equipment.rs",
        "xtask/src/bench/peers.rs",
        "xtask/src/dist/build.rs",
    ];
    for path in releases {
        let text = fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"));
        if text.contains(SEAMS) || text.contains("--all-features") {
            offenders.push(format!("{path} builds with it"));
        }
    }
    assert_none(offenders, "releases with faults on demand");
}

#[test]
fn no_source_file_is_too_long() {
    let offenders = source_files().into_iter().filter_map(|path| {
        let text = fs::read_to_string(root().join(&path)).unwrap();
        let lines = text.lines().count();
        // A migration that was released cannot change.
        let is_fixed = is_generated(&path, &text) || path.extension().is_some_and(|extension| extension == "sql");
        (lines > SOURCE_LINES_MAX && !is_fixed).then(|| format!("{}: {lines} lines", path.display()))
    });
    assert_none(offenders.collect(), &format!("files of more than {SOURCE_LINES_MAX} lines"));
}

#[test]
fn nothing_has_an_empty_name() {
    let mut offenders = BTreeSet::new();
    for path in source_files() {
        let stems = path.components().map(|part| Path::new(part.as_os_str()).file_stem().unwrap_or_default());
        if stems.into_iter().any(|stem| EMPTY_NAMES.iter().any(|name| stem == *name)) {
            offenders.insert(path.display().to_string());
        }
        for (number, line) in fs::read_to_string(root().join(&path)).unwrap().lines().enumerate() {
            if declared_module(line).is_some_and(|module| EMPTY_NAMES.contains(&module)) {
                offenders.insert(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    assert_none(offenders.into_iter().collect(), "names that say nothing");
}

#[test]
fn kernel_lane_and_engine_know_no_dialect() {
    let mut offenders = Vec::new();
    let (files, dialects) = (source_files(), dialects());
    let tables = tables_of(&dialects, &files);
    for neutral in NEUTRAL {
        let here: Vec<&PathBuf> = files.iter().filter(|path| path.starts_with(neutral)).collect();
        assert!(!here.is_empty(), "{neutral} has no file: it was moved");
        for path in here {
            let text = fs::read_to_string(root().join(path)).unwrap();
            for (number, line) in text.lines().enumerate() {
                let code = line.split("//").next().unwrap_or_default();
                let is_sql = path.starts_with("crates/store");
                if dialects.iter().any(|dialect| code.contains(&format!("{dialect}::")))
                    || is_sql && names_table(code, &dialects, &tables)
                {
                    offenders.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
                }
            }
            // An import of the module alone has no `::` after its name.
            let modules = imports::imported_paths(&text).into_iter();
            let modules = modules.filter(|path| path.last().is_some_and(|module| dialects.contains(module)));
            offenders.extend(modules.map(|module| format!("{}: {}", path.display(), module.join("::"))));
        }
    }
    assert_none(offenders, "imports of a dialect in the kernel, the store's lane or the engine");
}

/// The names of the dialects: the folders of their crates.
fn dialects() -> BTreeSet<String> {
    let crates = fs::read_dir(root().join("crates/dialects")).unwrap();
    crates.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// The tables that the dialects' folders of the store declare.
fn tables_of(dialects: &BTreeSet<String>, files: &[PathBuf]) -> BTreeSet<String> {
    let is_theirs =
        |path: &&PathBuf| dialects.iter().any(|dialect| path.starts_with(format!("crates/store/src/{dialect}")));
    let texts = files.iter().filter(is_theirs).map(|path| fs::read_to_string(root().join(path)).unwrap());
    let tables: BTreeSet<String> =
        texts.flat_map(|text| text.lines().filter_map(declared_table).collect::<Vec<_>>()).collect();
    assert!(tables.len() > 20, "{tables:?}");
    tables
}

/// The table of the first line of a `record!`: `Delivery, delivery in "webhook_deliveries";`.
fn declared_table(line: &str) -> Option<String> {
    line.strip_suffix("\";")?.split_once(" in \"").map(|(_, table)| table.to_owned())
}

/// Whether a line of SQL, or a list of tables, names a table of a dialect.
fn names_table(code: &str, dialects: &BTreeSet<String>, tables: &BTreeSet<String>) -> bool {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let words: Vec<&str> = code.split(|c| !is_word(c)).filter(|word| !word.is_empty()).collect();
    let is_read = |pair: &[&str]| ["FROM", "JOIN", "INTO", "UPDATE"].contains(&pair[0]) && tables.contains(pair[1]);
    let has_prefix = |word: &&str| {
        dialects.iter().any(|dialect| word.strip_prefix(dialect.as_str()).is_some_and(|rest| rest.starts_with('_')))
    };
    words.windows(2).any(is_read)
        || words.iter().any(has_prefix)
        || tables.iter().any(|table| code.contains(&format!("\"{table}\"")))
}

/// The table of rules is closed: product code decides by `Failure::broken_rule`, which is an enum. The name of a rule as text
/// is for logs, metrics and responses only, and nothing else puts it into a failure or takes it out.
#[test]
fn rules_are_not_compared_as_text() {
    const MAY_USE_TEXT: [&str; 5] = [
        "crates/protocol/src/failures.rs",
        "crates/protocol/src/trust/failures.rs",
        "crates/server/src/metrics.rs",
        "crates/server/src/net/problem.rs",
        "crates/server/src/net/refusals.rs",
    ];
    let is_test = |path: &Path| path.components().any(|part| part.as_os_str() == "tests") || path.ends_with("tests.rs");
    let mut offenders = Vec::new();
    for path in source_files().into_iter().filter(|path| path.starts_with("crates") && !is_test(path)) {
        if MAY_USE_TEXT.iter().any(|allowed| path == Path::new(allowed)) {
            continue;
        }
        for (number, line) in product_lines(&fs::read_to_string(root().join(&path)).unwrap()) {
            if names_rule_as_text(line) {
                offenders.push(format!("{}:{number}: {}", path.display(), line.trim()));
            }
        }
    }
    assert_none(offenders, "rules as text");
}

/// The lines before the tests of a file, by their numbers.
fn product_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    product_text(text).lines().enumerate().map(|(index, line)| (index + 1, line))
}

/// The text of a file before its tests.
fn product_text(text: &str) -> &str {
    text.find("\n#[cfg(test)]\n").map_or(text, |end| &text[..=end])
}

fn names_rule_as_text(line: &str) -> bool {
    let code = line.split("//").next().unwrap_or_default();
    ["rule_name()", "\"rule\"", "get(RULE)"].iter().any(|text| code.contains(text))
}

#[test]
fn no_file_knows_the_machine_it_was_written_on() {
    // Put together here, or this file would be the first offender.
    let mut places: Vec<String> = ["work", "root"].iter().map(|name| format!("/{name}/")).collect();
    let here = [Some(root()), std::env::var_os("HOME").map(PathBuf::from)];
    // A place such as `/tmp` is not a developer's own, so it takes two names to be one.
    let own = here.into_iter().flatten().filter(|path| path.is_absolute() && path.components().count() > 2);
    places.extend(own.map(|path| format!("{}/", path.display())));

    let mut offenders = Vec::new();
    for path in files_below(&root()) {
        // Files that are not text have nothing to read.
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        for (number, line) in text.lines().enumerate() {
            if places.iter().any(|place| names_place(line, place)) {
                offenders.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    assert_none(offenders, "paths of a developer's machine");
}

#[test]
fn readme_sets_up_with_two_commands() {
    let readme = fs::read_to_string(root().join("README.md")).expect("there is a README.md");
    let lines: Vec<&str> = readme.lines().map(str::trim_end).collect();
    let heading =
        lines.iter().position(|line| line.starts_with('#') && line.trim_start_matches('#').trim() == "Set up");
    let after = &lines[heading.expect("README.md has a heading `Set up`") + 1..];
    let block: Vec<&str> = after.iter().copied().skip_while(|line| line.is_empty()).collect();
    assert_eq!(block.first(), Some(&"```sh"), "a ```sh block is directly under `Set up`");
    let commands: Vec<&str> = block[1..].iter().copied().take_while(|line| *line != "```").collect();
    assert_eq!(commands, SET_UP, "the set-up commands");
    // A transcript (```text) may show first what one gets; what is to be typed comes after.
    let first_block = lines.iter().position(|line| *line == "```sh").unwrap();
    assert!(first_block > heading.unwrap(), "README.md shows nothing to type before `Set up`");
}

#[test]
fn documents_stay_short() {
    let mut limits = vec![(PathBuf::from("ARCHITECTURE.md"), ARCHITECTURE_LINES_MAX)];
    let records = files_below(&root().join("docs/adr"));
    limits.extend(records.into_iter().map(|name| (Path::new("docs/adr").join(name), ADR_LINES_MAX)));
    let offenders = limits.into_iter().filter_map(|(path, lines_max)| {
        let text = fs::read_to_string(root().join(&path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let lines = text.lines().count();
        (lines > lines_max).then(|| format!("{}: {lines} lines, at most {lines_max}", path.display()))
    });
    assert_none(offenders.collect(), "documents that are too long");
}

#[test]
fn the_checks_find_what_they_look_for() {
    assert_eq!(declared_module("    pub(crate) mod names {"), Some("names"));
    assert_eq!(declared_module("// mod names;"), None);
    assert_eq!(declared_module("model names;"), None);
    assert!(names_place("see /place/x", "/place/"));
    assert!(names_place("\"/place/", "/place/"));
    assert!(!names_place("a/place/x", "/place/") && !names_place("{dir}/place/x", "/place/"));
    assert!(is_generated(Path::new("docs/generated/x.rs"), "") && is_generated(Path::new("x.rs"), "// @generated\n"));
    assert!(!is_generated(Path::new("x.rs"), "fn generated() {}"));
    assert!(names_rule_as_text("if failure.rule_name() == None {") && names_rule_as_text(".detail(\"rule\", text)"));
    assert!(names_rule_as_text("details.get(RULE).and_then(Value::as_str) == Some(Rule::Config.as_str())"));
    assert!(!names_rule_as_text("let rule = failure.broken_rule(); // not rule_name()"));
    assert_eq!(declared_table("    Agent, agent in \"agents\";").as_deref(), Some("agents"));
    let (dialects, tables) = (BTreeSet::from(["mesh".into()]), BTreeSet::from(["agents".into()]));
    let names_table = |code| names_table(code, &dialects, &tables);
    assert!(
        names_table("    \"mesh_queue\",") && names_table("DELETE FROM agents WHERE") && names_table("[\"agents\"]")
    );
    assert!(!names_table("let agents = meshed_rows;") && !names_table("what mesh agents have written"));
    assert_eq!(product_lines("a\n#[cfg(test)]\nb").collect::<Vec<_>>(), [(1, "a")]);
}

fn assert_none(offenders: Vec<String>, what: &str) {
    assert!(offenders.is_empty(), "{what}:\n  {}", offenders.join("\n  "));
}

/// At run time: a cached test binary may have been built from another checkout.
fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo runs this test");
    Path::new(&manifest).parent().unwrap().to_owned()
}

fn metadata() -> Value {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["metadata", "--no-deps", "--offline", "--format-version", "1"]).current_dir(root());
    let output = command.output().unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The documents that people read.
fn documents() -> Vec<PathBuf> {
    let ours =
        |path: &Path| path.starts_with("docs") || path.starts_with("examples") || path.parent() == Some(Path::new(""));
    let is_document = |path: &Path| path.extension().is_some_and(|extension| extension == "md");
    files_below(&root()).into_iter().filter(|path| ours(path) && is_document(path)).collect()
}

fn source_files() -> Vec<PathBuf> {
    let is_source = |path: &Path| path.extension().is_some_and(|extension| extension == "rs" || extension == "sql");
    let ours = |path: &Path| {
        ["bench", "crates", "fuzz", "stand-ins", "torture", "xtask"].iter().any(|folder| path.starts_with(folder))
    };
    files_below(&root()).into_iter().filter(|path| ours(path) && is_source(path)).collect()
}

/// Every file below a directory, by its path from there, without what was built or fetched.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    const NOT_OURS: [&str; 3] = [".git", "target", "node_modules"];
    let mut found = Vec::new();
    let mut waiting = vec![directory.to_owned()];
    while let Some(next) = waiting.pop() {
        for entry in fs::read_dir(&next).unwrap_or_else(|e| panic!("{}: {e}", next.display())) {
            let entry = entry.unwrap();
            let kind = entry.file_type().unwrap();
            // In a linked worktree `.git` is a file.
            if NOT_OURS.iter().any(|name| entry.file_name() == *name) {
                continue;
            }
            if kind.is_dir() {
                waiting.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path().strip_prefix(directory).unwrap().to_owned());
            }
        }
    }
    found.sort();
    found
}

fn is_generated(path: &Path, text: &str) -> bool {
    path.components().any(|part| part.as_os_str() == "generated")
        || text.lines().take(5).any(|line| line.contains("@generated"))
}

fn declared_module(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let visible = line.strip_prefix("pub").map_or(line, |rest| match rest.strip_prefix('(') {
        Some(scope) => scope.split_once(')').map_or(rest, |(_, rest)| rest),
        None => rest,
    });
    let name = visible.trim_start().strip_prefix("mod ")?;
    Some(name.trim_end_matches(['{', '}', ';', ' ']))
}

/// Whether the line names the place itself, not a folder of that name inside another.
fn names_place(line: &str, place: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || "_-.~*})".contains(c);
    line.match_indices(place).any(|(at, _)| !line[..at].ends_with(inside))
}
