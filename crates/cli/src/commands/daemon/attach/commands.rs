//! Lines that a person types into an attached terminal: prompts, commands of the terminal, and slash commands of the agent.

use ostler_protocol::daemon::agent_status::AgentEntry;
use serde_json::Value;

use crate::terminal::output::line;

pub(crate) const HELP: &str = "  a line     a prompt; while a turn runs it waits for its end
  /cancel    cancel the running prompt, like Ctrl-C
  /detach    leave; nothing is ended, like Ctrl-D
  /help      this list
  /name      a command of the agent, if it has one of this name
  //text     a prompt that begins with a slash: /text
When a permission request waits, a key votes without Enter: an option's number, y, n, or v for the whole call.
If there are ten options or more, a number needs Enter.
If you were typing when the request came, or in the first 0.7 s after it, every vote needs Enter.
";

/// The commands of the terminal itself.
const OWN: [&str; 3] = ["cancel", "detach", "help"];
/// Commands of the agent that are listed.
const LISTED_MAX: usize = 30;

/// What a typed line means.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum TypedLine<'a> {
    Nothing,
    Cancel,
    Detach,
    Help,
    Prompt(&'a str),
    /// A command that only the agent may have, and the whole line.
    OfAgent {
        name: &'a str,
        text: &'a str,
    },
}

impl<'a> TypedLine<'a> {
    pub(crate) fn parse(typed: &'a str) -> Self {
        let text = typed.trim();
        let Some(rest) = text.strip_prefix('/') else {
            return if text.is_empty() { Self::Nothing } else { Self::Prompt(text) };
        };
        if rest.starts_with('/') {
            return Self::Prompt(rest);
        }
        let name = rest.split_whitespace().next().unwrap_or_default();
        // A path is no command.
        if name.contains('/') || rest.starts_with(char::is_whitespace) {
            return Self::Prompt(text);
        }
        match name {
            "cancel" => Self::Cancel,
            "detach" => Self::Detach,
            "help" => Self::Help,
            _ => Self::OfAgent { name, text },
        }
    }
}

/// The names of the commands that an agent lists.
pub(crate) fn names(commands: &[AgentEntry]) -> Vec<String> {
    let name = |entry: &AgentEntry| entry.get("name").and_then(Value::as_str).map(str::to_owned);
    commands.iter().filter_map(name).map(|name| name.trim_start_matches('/').to_owned()).collect()
}

/// What is printed for a command that neither the terminal nor the agent has.
pub(crate) fn unknown(name: &str, of_agent: &[String]) -> String {
    let name = line(name, 80);
    let mut text = format!("unknown command /{name}; known: {}", list(OWN.into_iter()));
    if !of_agent.is_empty() {
        text += &format!("; of the agent: {}", list(of_agent.iter().take(LISTED_MAX).map(String::as_str)));
        if of_agent.len() > LISTED_MAX {
            text += &format!(" and {} more", of_agent.len() - LISTED_MAX);
        }
    }
    format!("{text}\n  hint: //{name} sends the text /{name} as a prompt\n")
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("/{}", line(name, 80))).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_line_with_a_slash_is_a_command_unless_it_has_two_or_is_a_path() {
        let parse = TypedLine::parse;
        assert_eq!(parse(" \n"), TypedLine::Nothing);
        assert_eq!(parse("hello /there\n"), TypedLine::Prompt("hello /there"));
        assert_eq!(
            (parse("/help"), parse(" /cancel "), parse("/detach\n")),
            (TypedLine::Help, TypedLine::Cancel, TypedLine::Detach)
        );
        assert_eq!(parse("//nope now"), TypedLine::Prompt("/nope now"));
        assert_eq!(parse("///"), TypedLine::Prompt("//"));
        for path in ["/etc/hosts is wrong", "/ is full", "/"] {
            let is_prompt = matches!(parse(path), TypedLine::Prompt(_));
            assert_eq!(is_prompt, path != "/", "{path}");
        }
        assert_eq!(parse("/help me"), TypedLine::Help);
        for text in ["/nope", "/init now", "/mcp:list"] {
            let name = text[1..].split(' ').next().unwrap();
            assert_eq!(parse(text), TypedLine::OfAgent { name, text }, "{text}");
        }
    }

    #[test]
    fn the_rows_of_the_help_are_aligned() {
        let rows: Vec<_> = HELP.lines().filter(|row| row.starts_with(' ')).collect();
        assert_eq!(rows.len(), 6, "{HELP}");
        let is_aligned = |row: &&str| row.starts_with("  ") && row[..13].ends_with(' ') && !row[13..].starts_with(' ');
        assert!(rows.iter().all(is_aligned), "{HELP}");
    }

    #[test]
    fn an_unknown_command_lists_the_known_ones() {
        assert_eq!(
            unknown("nope", &[]),
            "unknown command /nope; known: /cancel, /detach, /help\n  hint: //nope sends the text /nope as a prompt\n"
        );
        let entries = [json!({"name": "init"}), json!({"name": "/review"}), json!({})];
        let entries: Vec<AgentEntry> = entries.iter().map(|entry| entry.as_object().unwrap().clone()).collect();
        let text = unknown("nope", &names(&entries));
        assert!(text.contains("; of the agent: /init, /review\n"), "{text}");
        let many: Vec<String> = (0..40).map(|n| format!("c{n}")).collect();
        assert!(
            unknown("no\u{1b}pe", &many).contains("/c29 and 10 more")
                && !unknown("no\u{1b}pe", &many).contains('\u{1b}')
        );
    }
}
