//! Scripts: what a prompt can ask the scripted backend to do. A script is read and checked whole before the first step is
//! played.

use ostler_protocol::{
    FailureKind,
    kernel::{permissions::EditableArguments, runs::TerminalStatus},
    limits::{EVENT_BYTES_MAX, PERMISSION_WAIT_MS_MAX},
};
use serde::Deserialize;
use serde_json::{Map, Value};

const STEPS_MAX: usize = 1_000;
const PIECES_MAX: u32 = 1_000;
const PIECES_DEFAULT: u32 = 8;
const WAIT_MS_MAX: u64 = 3_600_000;
const EMIT_COUNT_MAX: u32 = 1_000_000;
const EMIT_BYTES_MAX: usize = EVENT_BYTES_MAX / 2;

#[derive(Debug)]
pub(crate) struct Script {
    pub(crate) steps: Vec<ScriptStep>,
}

#[derive(Debug)]
pub(crate) enum ScriptStep {
    Say(SayStep),
    Tool(ToolStep),
    Wait(u64),
    Fail {
        status: TerminalStatus,
        kind: FailureKind,
        message: String,
    },
    Ask(AskStep),
    AwaitSteer {
        wait_ms: u64,
        is_final: bool,
    },
    Usage(Map<String, Value>),
    /// `always`: crash also when the turn is repeated after a crash.
    Crash {
        always: bool,
    },
    Error {
        kind: FailureKind,
        message: String,
    },
    Custom(Map<String, Value>),
    Call(CallStep),
    State(Map<String, Value>),
    Emit {
        count: u32,
        bytes: usize,
    },
}

#[derive(Debug)]
pub(crate) struct SayStep {
    pub(crate) text: String,
    pub(crate) is_final: bool,
    pub(crate) pieces: u32,
    pub(crate) every_ms: u64,
    pub(crate) ui_hints: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct ToolStep {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) command: Option<String>,
    #[serde(default)]
    pub(crate) exit_code: i64,
    #[serde(default)]
    pub(crate) output: Option<String>,
    /// How long it takes.
    #[serde(default)]
    pub(crate) wait_ms: u64,
    /// The tool call starts and never ends.
    #[serde(default)]
    pub(crate) leave_open: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct AskStep {
    pub(crate) title: String,
    /// What would run: a string, or any other JSON value.
    pub(crate) command: Value,
    /// Arguments that the answer may replace.
    #[serde(default)]
    pub(crate) editable: Option<EditableArguments>,
    #[serde(default)]
    pub(crate) wait_ms: Option<i64>,
}

/// A call of a front end's tool.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CallStep {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) arguments: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct AwaitSteer {
    #[serde(default)]
    wait_ms: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fault {
    kind: FailureKind,
    message: String,
    #[serde(default)]
    status: Option<TerminalStatus>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Emit {
    count: u32,
    #[serde(default)]
    bytes: usize,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Crash {
    Always(bool),
    Word(String),
}

/// A step as written in the script: one verb, with the options of `say` beside it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WrittenStep {
    say: Option<String>,
    #[serde(rename = "final")]
    is_final: Option<bool>,
    pieces: Option<u32>,
    every_ms: Option<u64>,
    ui_hints: Option<Value>,
    tool: Option<ToolStep>,
    wait: Option<u64>,
    fail: Option<Fault>,
    ask: Option<AskStep>,
    await_steer: Option<AwaitSteer>,
    usage: Option<Map<String, Value>>,
    crash: Option<Crash>,
    error: Option<Fault>,
    custom: Option<Map<String, Value>>,
    call: Option<CallStep>,
    state: Option<Map<String, Value>>,
    emit: Option<Emit>,
}

impl ScriptStep {
    pub(crate) fn echo(text: &str) -> Self {
        Self::Say(SayStep {
            text: text.to_owned(),
            is_final: true,
            pieces: PIECES_DEFAULT,
            every_ms: 0,
            ui_hints: None,
        })
    }

    fn is_message(&self) -> bool {
        matches!(self, Self::Say(_) | Self::AwaitSteer { .. })
    }
}

/// Whether the prompt begins like a script, so that an echo of it would hide a typing error.
fn is_meant_as_script(prompt: &str) -> bool {
    let inner = prompt.trim_start().strip_prefix('{').map(str::trim_start);
    inner.is_some_and(|inner| inner.starts_with("\"script\""))
}

impl Script {
    /// Reads a script. `None` if the prompt is no script. An error names the step that is wrong.
    pub(crate) fn read(prompt: &str) -> Option<Result<Self, String>> {
        if !prompt.trim_start().starts_with('{') {
            return None;
        }
        match serde_json::from_str(prompt) {
            Ok(Value::Object(mut object)) => Some(Self::from_steps(object.remove("script")?)),
            Ok(_) => None,
            Err(error) => is_meant_as_script(prompt).then(|| Err(format!("the script is not valid JSON: {error}"))),
        }
    }

    fn from_steps(steps: Value) -> Result<Self, String> {
        let Value::Array(written) = steps else { return Err("script must be an array of steps".into()) };
        if written.len() > STEPS_MAX {
            return Err(format!("a script has at most {STEPS_MAX} steps"));
        }
        let mut steps = vec![];
        let mut given_final = vec![];
        for (index, step) in written.into_iter().enumerate() {
            let number = index + 1;
            let written: WrittenStep =
                serde_json::from_value(step).map_err(|e| format!("script step {number}: {e}"))?;
            given_final.push(written.is_final);
            steps.push(written.into_step().map_err(|e| format!("script step {number}: {e}"))?);
        }
        mark_final(&mut steps, &given_final);
        Ok(Self { steps })
    }
}

/// The last message is the reply, unless the script marks another one.
fn mark_final(steps: &mut [ScriptStep], given: &[Option<bool>]) {
    let last = steps.iter().rposition(ScriptStep::is_message);
    for (index, step) in steps.iter_mut().enumerate() {
        if let ScriptStep::Say(SayStep { is_final, .. }) | ScriptStep::AwaitSteer { is_final, .. } = step {
            *is_final = given[index].unwrap_or(last == Some(index));
        }
    }
}

impl WrittenStep {
    fn into_step(self) -> Result<ScriptStep, String> {
        let paced = self.pieces.is_some() || self.every_ms.is_some() || self.ui_hints.is_some();
        if self.say.is_none() && paced || self.is_final.is_some() && self.say.is_none() && self.await_steer.is_none() {
            return Err("final, pieces, everyMs and uiHints belong to say".into());
        }
        let pieces = check_max("pieces", self.pieces.unwrap_or(PIECES_DEFAULT), PIECES_MAX)?.max(1);
        let every_ms = check_max("everyMs", self.every_ms.unwrap_or(0), WAIT_MS_MAX)?;
        let verbs = [
            self.say.map(|text| {
                Ok(ScriptStep::Say(SayStep { text, is_final: false, pieces, every_ms, ui_hints: self.ui_hints }))
            }),
            self.tool.map(|tool| check_max("waitMs", tool.wait_ms, WAIT_MS_MAX).map(|_| ScriptStep::Tool(tool))),
            self.wait.map(|ms| check_max("wait", ms, WAIT_MS_MAX).map(ScriptStep::Wait)),
            self.fail.map(fail_step),
            self.ask.map(|ask| {
                check_max("waitMs", ask.wait_ms.unwrap_or(0), PERMISSION_WAIT_MS_MAX).map(|_| ScriptStep::Ask(ask))
            }),
            self.await_steer.map(|step| {
                let wait_ms = check_max("waitMs", step.wait_ms.unwrap_or(WAIT_MS_MAX), WAIT_MS_MAX)?;
                Ok(ScriptStep::AwaitSteer { wait_ms, is_final: false })
            }),
            self.usage.map(|usage| Ok(ScriptStep::Usage(usage))),
            self.crash.map(crash_step),
            self.error.map(|fault| Ok(ScriptStep::Error { kind: fault.kind, message: fault.message })),
            self.custom.map(|custom| Ok(ScriptStep::Custom(custom))),
            self.call.map(|call| Ok(ScriptStep::Call(call))),
            self.state.map(state_step),
            self.emit.map(emit_step),
        ];
        let mut given = verbs.into_iter().flatten();
        match (given.next(), given.next()) {
            (Some(step), None) => step,
            (None, _) => Err("a step needs a verb, such as say, tool, wait or ask".into()),
            (Some(_), Some(_)) => Err("a step has only one verb".into()),
        }
    }
}

fn check_max<T: PartialOrd + std::fmt::Display>(field: &str, value: T, max: T) -> Result<T, String> {
    if value > max { Err(format!("{field} is at most {max}")) } else { Ok(value) }
}

fn fail_step(fault: Fault) -> Result<ScriptStep, String> {
    let status = fault.status.unwrap_or(TerminalStatus::Failed);
    if !matches!(status, TerminalStatus::Failed | TerminalStatus::Blocked) {
        return Err("fail has the status failed or blocked".into());
    }
    Ok(ScriptStep::Fail { status, kind: fault.kind, message: fault.message })
}

fn crash_step(crash: Crash) -> Result<ScriptStep, String> {
    match crash {
        Crash::Always(true) => Ok(ScriptStep::Crash { always: true }),
        Crash::Word(word) if word == "once" => Ok(ScriptStep::Crash { always: false }),
        _ => Err(r#"crash is true or "once""#.into()),
    }
}

fn state_step(state: Map<String, Value>) -> Result<ScriptStep, String> {
    match (state.contains_key("snapshot"), state.get("patch").is_some_and(Value::is_array), state.len()) {
        (true, false, 1) | (false, true, 1) => Ok(ScriptStep::State(state)),
        _ => Err("state has either a snapshot or a patch, which is an array".into()),
    }
}

fn emit_step(emit: Emit) -> Result<ScriptStep, String> {
    let count = check_max("count", emit.count, EMIT_COUNT_MAX)?;
    Ok(ScriptStep::Emit { count, bytes: check_max("bytes", emit.bytes, EMIT_BYTES_MAX)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn script_error(script: &str) -> String {
        Script::read(script).expect("a script").expect_err("rejected")
    }

    #[test]
    fn a_script_that_is_not_json_is_rejected_and_other_text_is_echoed() {
        for prompt in [r#"{"script": [}"#, "  {\n \"script\" : [", r#"{"script":[]} and more"#] {
            let error = Script::read(prompt).unwrap().err().unwrap();
            assert!(error.starts_with("the script is not valid JSON: "), "{error}");
        }
        for prompt in ["{script}", "{", r#"{"scripts": [}"#, r#"{"other": [}"#] {
            assert!(Script::read(prompt).is_none(), "{prompt}");
        }
    }

    #[test]
    fn only_an_object_with_a_script_is_a_script() {
        for prompt in ["hello", "{not json", r#"{"prompt":"x"}"#, "[1]", ""] {
            assert!(Script::read(prompt).is_none(), "{prompt}");
        }
        assert!(Script::read(r#" {"script":[]}"#).unwrap().unwrap().steps.is_empty());
    }

    #[test]
    fn the_last_message_is_the_reply_unless_the_script_names_another() {
        let finals = |script: &str| -> Vec<bool> {
            let steps = Script::read(script).unwrap().unwrap().steps;
            let is_final = |step: &ScriptStep| match step {
                ScriptStep::Say(say) => Some(say.is_final),
                ScriptStep::AwaitSteer { is_final, .. } => Some(*is_final),
                _ => None,
            };
            steps.iter().filter_map(is_final).collect()
        };
        assert_eq!(finals(r#"{"script":[{"say":"a"},{"wait":1},{"say":"b"},{"wait":1}]}"#), [false, true]);
        assert_eq!(finals(r#"{"script":[{"say":"a"},{"awaitSteer":{}}]}"#), [false, true]);
        assert_eq!(finals(r#"{"script":[{"say":"a","final":true},{"say":"b","final":false}]}"#), [true, false]);
    }

    #[test]
    fn a_malformed_script_names_its_step() {
        for (script, hint) in [
            (r#"{"script":{}}"#, "array"),
            (r#"{"script":[{"say":"a"},{"sing":"b"}]}"#, "step 2"),
            (r#"{"script":[{}]}"#, "step 1"),
            (r#"{"script":[{"say":"a","wait":1}]}"#, "only one verb"),
            (r#"{"script":[{"wait":-1}]}"#, "step 1"),
            (r#"{"script":[{"wait":3600001}]}"#, "at most"),
            (r#"{"script":[{"wait":1,"pieces":2}]}"#, "belong to say"),
            (r#"{"script":[{"fail":{"kind":"no-such-kind","message":"x"}}]}"#, "step 1"),
            (
                r#"{"script":[{"fail":{"kind":"backend-failed","message":"x","status":"completed"}}]}"#,
                "failed or blocked",
            ),
            (r#"{"script":[{"crash":false}]}"#, "once"),
            (r#"{"script":[1]}"#, "step 1"),
        ] {
            assert!(script_error(script).contains(hint), "{script}: {}", script_error(script));
        }
    }
}
