//! How an error of the argument parser is printed: in the format of every other error, with a hint about the word that was
//! probably meant.

use clap::{
    Command,
    error::{ContextKind, ContextValue, ErrorKind},
};

use crate::{
    foreign_words,
    terminal::{output::line, paint::Paint, shell_words::quoted},
};

/// An error of the argument parser, in the format of every other error. `words` are those of the command line, and `command` is the
/// one that they name. About an unknown argument the parser shows the words that were given as if they were required, so the usage
/// of `command` replaces its line.
pub(crate) fn of_parser(mut error: clap::Error, words: &[String], mut command: Command, paint: Paint) -> String {
    remove_hidden_suggestions(&mut error, &command);
    let usage = command.render_usage().to_string();
    let text = error.render();
    let text = if paint.is_on() { text.ansi().to_string() } else { text.to_string() };
    // The last line refers to `--help`, as the hint does.
    let message = text.split("\nFor more information").next().unwrap_or_default().trim_end();
    let hint = parser_hint(&error, words, &usage);
    // The parser's tip is the word with the most similar letters, which may mean something else.
    let has_tip = |line: &&str| line.contains("tip:") && hint.is_some();
    let is_usage = |line: &str| error.kind() == ErrorKind::UnknownArgument && line.contains("Usage:");
    let shown = |line| if is_usage(line) { format!("{usage}\n") } else { format!("{line}\n") };
    let mut out = String::new();
    for line in message.lines().filter(|line| !has_tip(line)) {
        // A tip that is left out was between two blank lines.
        if !line.trim().is_empty() || !out.ends_with("\n\n") {
            out.push_str(&shown(line));
        }
    }
    if let Some(hint) = &hint {
        out.push_str(&format!("{} {hint}\n", paint.bold("hint:")));
    }
    out
}

/// Removes hidden commands and former names from the commands that the parser suggests.
fn remove_hidden_suggestions(error: &mut clap::Error, command: &Command) {
    let Some(ContextValue::Strings(names)) = error.get(ContextKind::SuggestedSubcommand) else { return };
    let is_listed = |name: &str| command.get_subcommands().any(|sub| !sub.is_hide_set() && sub.get_name() == name);
    let listed: Vec<String> = names.iter().filter(|name| is_listed(name)).cloned().collect();
    match listed.is_empty() {
        true => error.remove(ContextKind::SuggestedSubcommand),
        false => error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(listed)),
    };
}

/// What to do about an error of the argument parser: about a word of another tool, or a prompt without quotes. `None` if its message
/// is enough: it names the similar word or the possible values.
fn parser_hint(error: &clap::Error, words: &[String], usage: &str) -> Option<String> {
    let has = |kind| error.get(kind).is_some();
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::InvalidSubcommand => {
            let first = words.iter().find(|word| !word.starts_with('-'));
            let foreign = text(ContextKind::InvalidSubcommand).and_then(|word| match first {
                Some(first) if first == word => {
                    let second = words.iter().skip_while(|other| *other != first).nth(1).map(String::as_str);
                    let both = second.and_then(|second| foreign_words::command_for_two(word, second));
                    both.or_else(|| foreign_words::command_for(word))
                }
                // Below a noun the word means something else.
                _ => foreign_words::command_below(noun_before(words, word)?, word),
            });
            let listed = || (!has(ContextKind::SuggestedSubcommand)).then_some("`ostler --help` lists the commands");
            foreign.or_else(listed).map(str::to_owned)
        }
        ErrorKind::UnknownArgument if has(ContextKind::SuggestedArg) => None,
        ErrorKind::UnknownArgument => {
            let extra = text(ContextKind::InvalidArg).unwrap_or_default();
            let of_command = || foreign_words::for_extra_word(&command_of(usage)).filter(|_| !extra.starts_with('-'));
            let hint = quoted_prompt(extra, words).or_else(|| of_command().map(str::to_owned));
            hint.or_else(|| Some(unknown_argument_hint(extra, usage)))
        }
        ErrorKind::InvalidValue if has(ContextKind::ValidValue) => {
            let is_state = text(ContextKind::InvalidArg).is_some_and(|arg| arg.ends_with("<STATE>"));
            let invalid = text(ContextKind::InvalidValue).filter(|_| is_state);
            invalid.and_then(foreign_words::state_for).map(str::to_owned)
        }
        ErrorKind::MissingRequiredArgument => {
            let missing = match error.get(ContextKind::InvalidArg) {
                Some(ContextValue::Strings(names)) => names.as_slice(),
                _ => &[],
            };
            let listed = missing.iter().find_map(|name| foreign_words::list_of(name));
            Some(listed.map_or_else(|| help_hint(usage), str::to_owned))
        }
        ErrorKind::ValueValidation | ErrorKind::ArgumentConflict => None,
        _ => Some(help_hint(usage)),
    }
}

/// The word before this one on the command line, without flags.
fn noun_before<'a>(words: &'a [String], word: &str) -> Option<&'a str> {
    let at = words.iter().position(|other| other == word)?;
    words[..at].iter().rev().map(String::as_str).find(|noun| !noun.starts_with('-'))
}

/// The hint for an argument that the command does not take: for a flag with the name of a positional argument, how to give that.
fn unknown_argument_hint(extra: &str, usage: &str) -> String {
    let Some(flag) = extra.strip_prefix("--") else { return help_hint(usage) };
    let name = flag.split('=').next().unwrap_or_default().to_uppercase();
    let is_positional = [format!("<{name}>"), format!("[{name}]")].iter().any(|argument| usage.contains(argument));
    match is_positional {
        true => format!("{name} is given without a flag: {}", usage.trim().trim_start_matches("Usage: ")),
        false => format!("`{} --help` lists the flags", command_of(usage)),
    }
}

fn help_hint(usage: &str) -> String {
    format!("`{} --help` ends with examples", command_of(usage))
}

/// The words of the command that a usage line describes: `ostler webhooks set`.
fn command_of(usage: &str) -> String {
    let is_word = |word: &&str| !word.starts_with('-') && word.bytes().all(|b| b.is_ascii_lowercase() || b == b'-');
    usage.trim().trim_start_matches("Usage:").split_whitespace().take_while(is_word).collect::<Vec<_>>().join(" ")
}

/// The hint for a prompt of several words. `None` if the extra word is a flag, or of another command.
fn quoted_prompt(extra: &str, words: &[String]) -> Option<String> {
    if extra.starts_with('-') {
        return None;
    }
    let rest = words.iter().skip_while(|word| *word != "run").skip(1);
    let prompt = rest.take_while(|word| *word != extra).filter(|word| !word.starts_with('-')).last()?;
    let prompt = line(&format!("{prompt} {extra}"), 60);
    Some(format!("put the prompt in quotes: ostler run {}", quoted(&format!("{prompt} …"))))
}
