//! Commands that Codex runs and makes no item of, as it does with some to which its sandbox denied something. What its model
//! calls and is answered is told beside the items, and has them all.

use std::collections::HashMap;

use serde::Deserialize;

use super::wire::{Item, RawItem};

/// The model's tools that run a command.
const COMMANDS: [&str; 3] = ["exec_command", "shell", "shell_command"];
/// Calls at once. A model that makes more is told of as Codex does.
const CALLS_MAX: usize = 256;
const EXITED: &str = "Process exited with code ";
const OUTPUT: &str = "Output:\n";

/// Commands that were called, by the call's id, which is also their item's.
#[derive(Default)]
pub struct Untold(HashMap<String, String>);

#[derive(Default, Deserialize)]
#[serde(default)]
struct Arguments {
    cmd: Option<String>,
    command: Option<Words>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Words {
    One(String),
    Many(Vec<String>),
}

impl Untold {
    /// Takes in what the model called, or was answered. `Some`: a command that has ended, and that no item was made of.
    pub fn hear(&mut self, said: &RawItem) -> Option<Item> {
        match said.kind.as_str() {
            "function_call" if COMMANDS.contains(&said.name.as_str()) && self.0.len() < CALLS_MAX => {
                self.0.insert(said.call_id.clone(), command(&said.arguments));
                None
            }
            "function_call_output" => {
                let command = self.0.remove(&said.call_id)?;
                Some(ended(&said.call_id, command, said.output.as_str().unwrap_or_default()))
            }
            _ => None,
        }
    }

    /// Codex tells of it itself.
    pub fn is_told(&mut self, item_id: &str) {
        self.0.remove(item_id);
    }
}

fn command(arguments: &str) -> String {
    let read: Arguments = serde_json::from_str(arguments).unwrap_or_default();
    let words = read.command.map(|command| match command {
        Words::One(text) => text,
        Words::Many(words) => words.join(" "),
    });
    read.cmd.or(words).unwrap_or_default()
}

/// How it ended, as far as the model was told.
fn ended(call_id: &str, command: String, answer: &str) -> Item {
    let (head, output) = answer.split_once(OUTPUT).unwrap_or((answer, answer));
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

    fn said(value: Value) -> RawItem {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_command_is_told_when_it_was_answered_and_no_item_was_made_of_it() {
        let mut untold = Untold::default();
        let call = |id: &str| {
            said(
                json!({"type": "function_call", "name": "exec_command", "call_id": id, "arguments": r#"{"cmd":"touch x"}"#}),
            )
        };
        let answer = |id: &str| {
            let output = "Wall time: 0.1 seconds\nProcess exited with code 1\nOutput:\ntouch: cannot touch\n";
            said(json!({"type": "function_call_output", "call_id": id, "output": output}))
        };
        assert!(untold.hear(&call("told")).is_none() && untold.hear(&call("untold")).is_none());
        untold.is_told("told");
        assert!(untold.hear(&answer("told")).is_none());
        let item = untold.hear(&answer("untold")).unwrap();
        assert_eq!((item.command.as_deref(), item.exit_code), (Some("touch x"), Some(1)));
        assert_eq!(
            (item.status.as_deref(), item.aggregated_output.as_deref()),
            (Some("failed"), Some("touch: cannot touch\n"))
        );
        assert!(untold.hear(&answer("untold")).is_none(), "once");
        let plan = said(json!({"type": "function_call", "name": "update_plan", "call_id": "p", "arguments": "{}"}));
        untold.hear(&plan);
        assert!(untold.hear(&answer("p")).is_none(), "that is no command");
    }
}
