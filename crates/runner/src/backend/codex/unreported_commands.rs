//! Commands that Codex runs without emitting an item for them, such as some that its sandbox denied something. The raw
//! response stream contains every call of the model with its output, including these.

use std::collections::HashMap;

use serde::Deserialize;

use super::wire::{Item, RawItem};

/// The model's tools that run a command.
const COMMANDS: [&str; 3] = ["exec_command", "shell", "shell_command"];
/// Calls that are tracked at once. Further ones are reported only if Codex emits an item for them.
const CALLS_MAX: usize = 256;
const EXITED: &str = "Process exited with code ";
const OUTPUT: &str = "Output:\n";

/// Commands that the model called and that no item has reported, by call id, which is also the id of their item.
#[derive(Default)]
pub(super) struct UnreportedCommands(HashMap<String, String>);

#[derive(Default, Deserialize)]
#[serde(default)]
struct Arguments {
    cmd: Option<String>,
    command: Option<CommandWords>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum CommandWords {
    One(String),
    Many(Vec<String>),
}

impl UnreportedCommands {
    /// Observes a call of the model or its output. `Some` if the command has ended and no item has reported it.
    pub(super) fn observe(&mut self, raw: &RawItem) -> Option<Item> {
        match raw.kind.as_str() {
            "function_call" if COMMANDS.contains(&raw.name.as_str()) && self.0.len() < CALLS_MAX => {
                self.0.insert(raw.call_id.clone(), command_line(&raw.arguments));
                None
            }
            "function_call_output" => {
                let command = self.0.remove(&raw.call_id)?;
                Some(command_item(&raw.call_id, command, raw.output.as_str().unwrap_or_default()))
            }
            _ => None,
        }
    }

    /// Codex has emitted an item for the command.
    pub(super) fn mark_reported(&mut self, item_id: &str) {
        self.0.remove(item_id);
    }
}

fn command_line(arguments: &str) -> String {
    let read: Arguments = serde_json::from_str(arguments).unwrap_or_default();
    let words = read.command.map(|command| match command {
        CommandWords::One(text) => text,
        CommandWords::Many(words) => words.join(" "),
    });
    read.cmd.or(words).unwrap_or_default()
}

/// The item of a command that has ended, from the output that the model received.
fn command_item(call_id: &str, command: String, result: &str) -> Item {
    let (head, output) = result.split_once(OUTPUT).unwrap_or((result, result));
    let exit_code = head.lines().find_map(|line| line.strip_prefix(EXITED)?.trim().parse::<i64>().ok());
    let status = match exit_code {
        Some(0) => "completed",
        Some(_) => "failed",
        None => "unknown",
    };
    Item {
        kind: "commandExecution".to_owned(),
        id: call_id.to_owned(),
        command: Some(command),
        status: Some(status.to_owned()),
        exit_code,
        aggregated_output: Some(output.to_owned()),
        ..Item::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn raw_item(value: Value) -> RawItem {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_command_without_an_item_is_reported_when_it_ends() {
        let mut unreported = UnreportedCommands::default();
        let call = |id: &str| {
            raw_item(
                json!({"type": "function_call", "name": "exec_command", "call_id": id, "arguments": r#"{"cmd":"touch x"}"#}),
            )
        };
        let output = |id: &str| {
            let output = "Wall time: 0.1 seconds\nProcess exited with code 1\nOutput:\ntouch: cannot touch\n";
            raw_item(json!({"type": "function_call_output", "call_id": id, "output": output}))
        };
        assert!(unreported.observe(&call("one")).is_none() && unreported.observe(&call("two")).is_none());
        unreported.mark_reported("one");
        assert!(unreported.observe(&output("one")).is_none());
        let item = unreported.observe(&output("two")).unwrap();
        assert_eq!((item.command.as_deref(), item.exit_code), (Some("touch x"), Some(1)));
        assert_eq!(
            (item.status.as_deref(), item.aggregated_output.as_deref()),
            (Some("failed"), Some("touch: cannot touch\n"))
        );
        assert!(unreported.observe(&output("two")).is_none(), "once");
        let plan = raw_item(json!({"type": "function_call", "name": "update_plan", "call_id": "p", "arguments": "{}"}));
        unreported.observe(&plan);
        assert!(unreported.observe(&output("p")).is_none(), "not a command");
    }
}
