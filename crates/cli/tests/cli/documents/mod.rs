//! Every command that a guide shows is run, or the guide states for this test why not ([`blocks`]). Each page has a server and a
//! directory of its own, and its blocks are run in their order by one shell.

mod blocks;

use std::{
    collections::BTreeMap,
    fs,
    io::Read,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::{
    documents::blocks::{Block, Mark, Part, parse},
    fixtures::{
        process::{Guarded, Server},
        snapshot::mask,
        test_home::{Engine, TestHome},
    },
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// The documents for users: the README, the guides and the READMEs of the examples.
fn documents() -> BTreeMap<String, String> {
    let mut files = vec![root().join("README.md")];
    let entries = |folder: &str| fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    files.extend(entries("docs").filter(|path| path.extension().is_some_and(|ending| ending == "md")));
    files.extend(entries("examples").map(|example| example.join("README.md")).filter(|path| path.is_file()));
    let name = |path: &Path| path.strip_prefix(root()).unwrap().display().to_string();
    files.into_iter().map(|path| (name(&path), fs::read_to_string(&path).unwrap())).collect()
}

#[test]
fn every_block_of_commands_is_run_or_names_the_reason_why_not() {
    // How this test itself is run.
    const SET_UP: &str = "cargo xtask up\ncargo xtask test\n";
    let mut unmarked = vec![];
    for (name, text) in documents() {
        for part in parse(&text) {
            if let Part::Block(Block { line, mark: None, .. }) = &part
                && matches!(&part, Part::Block(block) if block.has_commands() && block.text != SET_UP)
            {
                unmarked.push(format!("{name}:{line}"));
            }
        }
    }
    assert!(unmarked.is_empty(), "blocks without a mark (see documents/blocks.rs): {unmarked:#?}");
}

/// A shell would misread values that contain `&`, as addresses of databases do.
#[test]
fn no_guide_reads_the_environment_file_of_the_unit_with_a_shell() {
    for (name, text) in documents() {
        assert!(!text.contains(". /etc/ostler/environment"), "{name}");
    }
}

/// One test for each half of the pages, so that they run beside each other.
#[test]
fn commands_of_the_guides_work_first_half() {
    run_pages(0);
}

#[test]
fn commands_of_the_guides_work_second_half() {
    run_pages(1);
}

fn run_pages(half: usize) {
    let only = std::env::var("OSTLER_TEST_DOCUMENT").ok();
    let runs = |text: &str| {
        parse(text).iter().any(|part| matches!(part, Part::Block(Block { mark: Some(Mark::Run { .. }), .. })))
    };
    let pages = documents().into_iter().filter(|(_, text)| runs(text)).enumerate();
    let mut problems = vec![];
    for (_, (name, text)) in pages.filter(|(index, _)| index % 2 == half) {
        if only.as_ref().is_none_or(|only| name.contains(only.as_str())) {
            problems.extend(run_page(&name, &text));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}

/// What went wrong on the page.
fn run_page(name: &str, text: &str) -> Vec<String> {
    let parts = parse(text);
    let mut home = TestHome::on_disk(Engine::Sqlite);
    let work = home.path("work");
    fs::create_dir(&work).unwrap();
    for part in &parts {
        if let Part::Server(variables) = part {
            for (name, value) in variables {
                home.set(name, &value.replace("$PWD", &work.display().to_string()));
            }
        }
    }
    let (server, model) = (home.serve(), ostler_stand_ins::chat());
    let addresses = Addresses { server: &server, data_dir: &home.data_dir, model: model.base_url() };
    let script = script(&parts, &work, &addresses);
    let output = match run(&home, &server, &work, &script) {
        Ok(output) => output,
        Err(output) => {
            let tail: Vec<&str> = output.lines().rev().take(40).collect();
            let tail: Vec<&str> = tail.into_iter().rev().collect();
            return vec![format!("{name}: a command failed after\n{}\n{}", tail.join("\n"), home.log())];
        }
    };
    compare(name, &parts, &home, &output)
}

/// The addresses that documents use, and those of the test.
struct Addresses<'a> {
    server: &'a Server,
    data_dir: &'a Path,
    model: String,
}

impl Addresses<'_> {
    fn replace(&self, text: &str) -> String {
        text.replace("http://127.0.0.1:11434/v1", &self.model)
            .replace("http://127.0.0.1:4747", &self.server.url())
            .replace("localhost:4747", &self.server.address)
            .replace("~/.local/share/ostler", &self.data_dir.display().to_string())
    }
}

const POLL: Duration = Duration::from_millis(20);
/// A page has a minute.
const POLLS_MAX: usize = 3_000;
const MARKER: &str = "@@ command ";

/// All that runs, in the page's order, with a line before the output of each command. A run that documents call `RUN` is the one
/// that a `prepare` mark put into the variable of that name.
fn script(parts: &[Part], work: &Path, addresses: &Addresses<'_>) -> String {
    let has_run = parts.iter().any(|part| matches!(part, Part::Prepare(commands) if commands.contains("RUN=")));
    let word = regex::Regex::new(r"\bRUN\b").unwrap();
    let mut script = String::from("set -e\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n");
    let mut number = 0;
    for part in parts {
        match part {
            Part::Server(_) => {}
            Part::Prepare(commands) => script += &format!("{{ {}\n}} >/dev/null\n", addresses.replace(commands)),
            Part::Block(Block { mark: Some(Mark::File(name)), text, .. }) => {
                fs::write(work.join(name), addresses.replace(text)).unwrap();
            }
            Part::Block(block @ Block { mark: Some(Mark::Run { .. }), .. }) => {
                for (command, _) in block.commands() {
                    let command = addresses.replace(&command);
                    let command = if has_run { word.replace_all(&command, "$$RUN").into_owned() } else { command };
                    script += &format!("echo '{MARKER}{number} of line {}'\n{command}\n", block.line);
                    number += 1;
                }
            }
            Part::Block(_) => {}
        }
    }
    script
}

/// Everything printed. `Err` if a command failed or took too long.
fn run(home: &TestHome, server: &Server, work: &Path, script: &str) -> Result<String, String> {
    // A document has `ostler`, and its server is this one.
    let bin = home.path("bin");
    fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_ostler"), bin.join("ostler")).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut command = std::process::Command::new("bash");
    command
        .args(["-c", &format!("exec 2>&1\n{script}")])
        .current_dir(work)
        .env("PATH", path)
        .env("HOME", home.path("home"))
        .env("OSTLER_SERVER", server.url())
        .env("OSTLER_DATA_DIR", &home.data_dir)
        .env("TOKEN", &server.token)
        .env("EXAMPLES", root().join("examples"))
        .env_remove("OSTLER_TOKEN")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0);
    let mut child = Guarded(command.spawn().unwrap());
    let mut stdout = child.0.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut output = vec![];
        stdout.read_to_end(&mut output).map(|_| String::from_utf8_lossy(&output).into_owned())
    });
    let ended = (0..POLLS_MAX).find_map(|_| {
        std::thread::sleep(POLL);
        child.0.try_wait().unwrap()
    });
    // What the page's commands have started must end too.
    let _ = kill_process_group(Pid::from_child(&child.0), Signal::KILL);
    let output = reader.join().unwrap().unwrap();
    if ended.is_some_and(|status| status.success()) { Ok(output) } else { Err(output) }
}

/// Like [`mask`], also for the ids of agents, relations and messages, and for counts of time that documents shorten.
fn masked(home: &TestHome, text: &str) -> String {
    let masks = [
        (r"\b(agt|rel)_[0-9a-f]{32}\b", "${1}_ID"),
        (r"\b[0-9a-f]{32}\b", "ID"),
        (r#""timestamp":\d+"#, "TIMESTAMP"),
        (r"_ID_\d+_\d+", "_ID"),
    ];
    let text = mask(home, text);
    masks
        .iter()
        .fold(text, |text, (pattern, to)| regex::Regex::new(pattern).unwrap().replace_all(&text, *to).into_owned())
}

/// Lines that a transcript shows and that were not printed, in order. `…` matches any number of lines, or for the rest of one.
fn compare(name: &str, parts: &[Part], home: &TestHome, output: &str) -> Vec<String> {
    let printed: Vec<&str> = output.split(MARKER).skip(1).collect();
    let mut problems = vec![];
    let mut number = 0;
    for part in parts {
        let Part::Block(block @ Block { mark: Some(Mark::Run { is_compared }), .. }) = part else { continue };
        for (command, shown) in block.commands() {
            let output = masked(home, printed[number]);
            number += 1;
            if !is_compared {
                continue;
            }
            let mut lines = output.lines().skip(1).map(str::trim_end);
            let missing = shown.iter().filter(|line| line.trim() != "…").find(|line| {
                let line = masked(home, line);
                let line = line.trim_end();
                !lines.any(|printed| match line.strip_suffix('…') {
                    Some(start) => printed.starts_with(start),
                    None => printed == line,
                })
            });
            if let Some(missing) = missing {
                problems.push(format!("{name}:{}: `{command}` did not print\n{missing}\nbut\n{output}", block.line));
            }
        }
    }
    problems
}
