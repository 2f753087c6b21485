//! The command line as a whole: consistent, with examples, and documented.

use clap::{Command, CommandFactory};

use super::*;

/// Every visible command with its words, `tokens create` after `tokens`.
fn commands() -> Vec<(String, Command)> {
    fn walk(words: &str, command: &Command, all: &mut Vec<(String, Command)>) {
        for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help" && !sub.is_hide_set()) {
            let words = format!("{words} {}", sub.get_name());
            all.push((words.clone(), sub.clone()));
            walk(&words, sub, all);
        }
    }
    let mut all = vec![];
    // A built command has the global flags in every help.
    let mut root = Cli::command();
    root.build();
    walk("ostler", &root, &mut all);
    all
}

#[test]
fn the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn both_definitions_give_started_commands_the_same_arguments() {
    let (mut whole, mut short) = (Cli::command(), StartedCli::command());
    whole.build();
    short.build();
    let ids = |command: &Command| command.get_arguments().map(|arg| arg.get_id().to_string()).collect::<Vec<_>>();
    for name in StartedCommand::NAMES {
        let (known, started) = (whole.find_subcommand(name).unwrap(), short.find_subcommand(name).unwrap());
        assert_eq!(ids(started), ids(known), "{name}");
    }
    assert_eq!(short.get_subcommands().filter(|sub| sub.get_name() != "help").count(), StartedCommand::NAMES.len());
    assert_eq!(short.render_version(), whole.render_version());
}

#[test]
fn every_command_shows_an_example_of_itself() {
    for (words, mut command) in commands() {
        let help = command.render_long_help().to_string();
        let examples = help.split("Examples:\n").nth(1).unwrap_or_else(|| panic!("{words} has no example"));
        assert!(examples.contains(&words), "{words} has no example of itself:\n{examples}");
    }
}

#[test]
fn no_example_is_broken_at_80_columns() {
    for (words, command) in commands() {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in help.lines() {
            assert!(line.chars().count() <= 80, "{words}: {line:?} is wider than 80 columns");
        }
    }
}

#[test]
fn every_command_that_prints_data_supports_json() {
    let without_output =
        ["serve", "daemon", "runner", "completions", "man", "api", "add", "use", "remove", "export", "init", "log"];
    for (words, command) in commands() {
        let name = command.get_name();
        let is_leaf = command.get_subcommands().next().is_none();
        let has_output = command.get_arguments().any(|arg| arg.get_id() == "format" && arg.get_short() == Some('o'));
        assert!(!is_leaf || has_output || without_output.contains(&name), "{words} has no `-o`");
        let has_filter = command.get_arguments().any(|arg| arg.get_long() == Some("jq"));
        assert_eq!(has_filter, has_output, "{words} has only one of `-o` and `--jq`");
    }
}

#[test]
fn a_filter_implies_json_and_is_rejected_beside_text() {
    let parsed = |line: &str| super::parse_whole(std::iter::once("ostler").chain(line.split(' ')));
    for line in
        ["ps --jq .", "ps -o json --jq .", "ps --jq . -o jsonl", "runs list --jq .", "runs list -o jsonl --jq ."]
    {
        assert!(parsed(line).is_ok(), "{line}");
    }
    for (line, reason) in [
        ("ps --jq . -o text", "with `-o text`"),
        ("runs list --jq . -o wide", "with `-o wide`"),
        ("runs list -o name --jq .", "with `-o name`"),
        ("runs list --columns runId --jq .", "cannot be used with"),
        ("ps --jq .[", "'--jq <EXPR>'"),
    ] {
        let error = parsed(line).err().unwrap_or_else(|| panic!("{line} is accepted")).to_string();
        assert!(error.contains(reason), "{line}: {error}");
    }
}

/// `OSTLER_BLESS=1` rewrites the page.
#[test]
fn the_generated_page_shows_every_command() {
    let mut page = String::from(
        "# Commands of `ostler`\n\nGenerated from the command line itself. How the commands fit together is in [cli.md](../cli.md), the\nmeaning of \
         exit codes in [exit-codes.md](../exit-codes.md). Every command also takes `--server`, `--context`,\n`--data-dir` and `--verbose`.\n",
    );
    for (words, mut command) in commands() {
        // A fixed line length, independent of the terminal; global flags are listed once, above.
        command = command.term_width(100).mut_args(|arg| if arg.is_global_set() { arg.hide(true) } else { arg });
        let help = command.render_long_help().to_string();
        let plain: Vec<_> = help.lines().map(str::trim_end).collect();
        page += &format!("\n## `{words}`\n\n```text\n{}\n```\n", plain.join("\n").trim_end());
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/generated/cli.md");
    if std::env::var_os("OSTLER_BLESS").is_some() {
        std::fs::write(path, &page).unwrap();
    }
    assert!(std::fs::read_to_string(path).unwrap_or_default() == page, "run the test with OSTLER_BLESS=1");
}

#[test]
fn the_scheme_names_every_command() {
    let scheme = include_str!("../../../docs/cli.md");
    for (words, command) in commands() {
        let is_leaf = command.get_subcommands().next().is_none();
        assert!(!is_leaf || scheme.contains(&format!("`{words}`")), "docs/cli.md does not name `{words}`");
    }
}

#[test]
fn a_command_line_that_is_not_understood_is_answered_with_the_right_one() {
    for (line, hint) in [
        ("logs", "ostler output"),
        ("stop 01a1", "ostler cancel"),
        ("login", "OSTLER_TOKEN"),
        ("run say hello", "put the prompt in quotes: ostler run 'say hello …'"),
        ("run --frob", "hint: `ostler run --help` lists the flags"),
        ("webhooks set reader --url https://a.example", "hint: URL is given without a flag: ostler webhooks set "),
        ("jobs show w2", "hint: `ostler jobs list RUN` lists the jobs of a run"),
        ("automations create", "hint: `ostler automations create --help` ends with examples"),
        ("auth can-i create runs", "hint: `ostler can-i ACTION`"),
        ("auth status", "hint: `ostler whoami`"),
        ("can-i create runs", "hint: an action is one word"),
        ("edit reader", "hint: `ostler apply -f FILE`"),
        ("agents apply", "hint: `ostler apply -f FILE`"),
        ("apply", "hint: `ostler apply --help` ends with examples"),
        ("frobnicate", "`ostler --help` lists the commands"),
        ("update", "hint: replace the program with the new release"),
        ("abort 01a1", "hint: `ostler cancel RUN`"),
        ("cat 01a1", "hint: `ostler output RUN`"),
        ("runs cancel 01a1", "hint: `ostler cancel RUN`"),
        ("runs show 01a1", "hint: `ostler result RUN`"),
        ("runs trace 01a1", "hint: `ostler trace RUN`"),
        ("sessions read review", "hint: `ostler read SESSION`"),
        ("agents grant reader", "hint: `ostler consent grant AGENT`"),
        ("tokens delete ci", "hint: `ostler tokens revoke TOKEN`"),
        ("retention list", "hint: `ostler retention show`"),
    ] {
        let text = parser_error(line);
        assert!(text.contains(hint), "{line}: {text}");
        assert!(!text.contains("\n\n\n"), "{line} has one blank line at most: {text}");
    }
}

fn parser_error(line: &str) -> String {
    let words: Vec<_> = line.split(' ').map(str::to_owned).collect();
    let Err(error) = Cli::try_parse_from(std::iter::once("ostler".to_owned()).chain(words.clone())) else {
        panic!("{line} is understood")
    };
    parser_errors::of_parser(error, &words, named_command(&words), Paint::PLAIN)
}

#[test]
fn the_usage_after_an_unknown_flag_is_that_of_the_help() {
    let text = parser_error("retry nightly --yes");
    assert!(text.contains("\nUsage: ostler retry [OPTIONS] [RUN]\n"), "{text}");
    let text = parser_error("runs list --frob");
    assert!(text.contains("\nUsage: ostler runs list [OPTIONS]\n"), "{text}");
}

#[test]
fn hidden_commands_and_former_names_are_not_suggested() {
    let text = parser_error("guar");
    assert!(!text.contains("guard") && text.contains("hint: `ostler --help` lists the commands"), "{text}");
    let text = parser_error("contex");
    assert!(text.contains("'contexts'") && !text.contains("'context'"), "{text}");
}

#[test]
fn a_word_below_a_noun_is_not_one_of_another_tool() {
    let text = parser_error("users create x");
    assert!(!text.contains("starts a run"), "{text}");
}

#[test]
fn former_names_of_commands_still_work() {
    for words in ["token list", "context list", "pki list", "pki invite", "pki revoke alice.probe.test"] {
        let line = std::iter::once("ostler").chain(words.split(' '));
        assert!(Cli::try_parse_from(line).is_ok(), "{words}");
    }
}
