//! Shell commands that a client runs in the workspace of a session.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::{Failure, Rule};

/// Size of a command.
pub const SHELL_COMMAND_BYTES_MAX: usize = 16 * 1024;
/// Characters of the output that the agent gets with the next prompt.
const HISTORY_CHARS_MAX: usize = 10_000;

/// The body of `POST /session/{sessionId}/shell`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct RunShell {
    /// For `/bin/sh -c`, in the workspace.
    #[schema(value_type = String, required)]
    pub command: Value,
}

impl RunShell {
    pub fn command(&self) -> Result<&str, Failure> {
        let invalid = |message: &str| Failure::invalid(Rule::InvalidShellCommand, message);
        let command = self.command.as_str().map(str::trim).filter(|command| !command.is_empty());
        let command = command.ok_or_else(|| invalid("command must be a text that is not empty"))?;
        if command.len() > SHELL_COMMAND_BYTES_MAX || command.contains('\0') {
            return Err(invalid("command is too long, or has a null character"));
        }
        Ok(command)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ShellResult {
    /// Null if the command was killed.
    #[schema(required)]
    pub exit_code: Option<i32>,
    /// What the command printed, or the beginning of it, without secrets. A line at the end states if there was more.
    pub output: String,
    /// The command was killed, because its time was over or the client has gone.
    pub aborted: bool,
    /// Whether the command printed more than `output` has. Left out if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub output_truncated: bool,
}

/// The line that ends an output which was cut. Published clients show the output and do not know the flag.
const CUT_LINE: &str = "[The rest of the output is left out.]";

/// The output with a line of its own that states that there was more.
pub fn mark_cut(mut output: String) -> String {
    if !output.is_empty() && !output.ends_with('\n') {
        output.push('\n');
    }
    output.push_str(CUT_LINE);
    output.push('\n');
    output
}

/// The first characters of the output, and whether there were more. Marked if so.
pub fn cut_output(output: &str, chars_max: usize) -> (String, bool) {
    match output.char_indices().nth(chars_max) {
        Some((end, _)) => (mark_cut(output[..end].to_owned()), true),
        None => (output.to_owned(), false),
    }
}

/// What the agent learns of a command.
pub fn shell_message(command: &str, result: &ShellResult) -> String {
    let mut output: String = result.output.chars().take(HISTORY_CHARS_MAX).collect();
    if output.len() < result.output.len() {
        output.push_str("\n... (truncated)");
    }
    let end = match result.exit_code {
        Some(code) => format!("exit code {code}"),
        None => "it was killed".to_owned(),
    };
    format!(
        "I ran this shell command in the workspace:\n\n```sh\n{command}\n```\n\nIts output ({end}):\n\n```\n{output}\n```"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_a_text_that_a_shell_can_take() {
        let command = |value: Value| RunShell { command: value }.command().map(str::to_owned);
        assert_eq!(command(" ls ".into()).unwrap(), "ls");
        for wrong in [Value::Null, 7.into(), "  ".into(), "a\0b".into(), "x".repeat(SHELL_COMMAND_BYTES_MAX + 1).into()]
        {
            assert_eq!(command(wrong).unwrap_err().rule_name(), Some("invalid-shell-command"));
        }
    }

    #[test]
    fn the_agent_gets_the_beginning_of_a_long_output() {
        let result =
            ShellResult { exit_code: Some(0), output: "é".repeat(20_000), aborted: false, output_truncated: false };
        let message = shell_message("cat long", &result);
        assert!(message.contains("... (truncated)") && message.chars().count() < 10_200);
        let killed = ShellResult { exit_code: None, output: "a".into(), aborted: true, output_truncated: false };
        assert!(shell_message("sleep 9", &killed).contains("it was killed"));
    }

    #[test]
    fn an_output_that_is_cut_ends_with_a_line_that_states_it() {
        assert_eq!(cut_output("ééé", 3), ("ééé".to_owned(), false));
        assert_eq!(cut_output("éééé", 3), (format!("ééé\n{CUT_LINE}\n"), true));
        assert_eq!(cut_output("éé\n.", 3), (format!("éé\n{CUT_LINE}\n"), true));
        assert_eq!(mark_cut(String::new()), format!("{CUT_LINE}\n"));
    }
}
