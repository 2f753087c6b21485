//! The scripted backend: deterministic, built in, without side effects. It echoes a plain prompt and plays a prompt that is
//! a script (`docs/scripted-agent.md`), so that everything around a backend can be tried and tested without a model.
//!
//! It runs no tool and makes no call: a scripted tool call is only reported, never executed.

mod play;
mod script;

use futures_util::future::BoxFuture;
use ostler_protocol::{FailureKind, kernel::context::Context};

use super::{
    interface::Backend,
    turn::{Turn, TurnEnd, TurnResult},
};
use crate::{side_queries::SideQuery, turn_sink::TurnSink};
use play::Player;
use script::{Script, ScriptStep};

pub(super) struct ScriptedBackend;

impl Backend for ScriptedBackend {
    fn turn<'a>(&'a mut self, turn: &'a Turn, sink: TurnSink) -> BoxFuture<'a, TurnResult> {
        Box::pin(async move {
            let steps = match Script::read(&turn.prompt) {
                Some(Ok(script)) => script.steps,
                Some(Err(message)) => return Ok(TurnEnd::failed(FailureKind::SchemaInvalid, message)),
                None => vec![ScriptStep::echo(&turn.prompt)],
            };
            let tools = Context::of(&turn.command.payload).tools;
            Player::new(sink, turn.is_repeat, tools).run(steps).await
        })
    }

    fn keeps_lease(&self) -> bool {
        false
    }
}

/// The answer to a side query: the number of messages, the last line of the question, and the end of the conversation. Inside
/// the first `<tag>` of the question, if it names one. `None` if the conversation is empty.
pub(super) fn answer_aside(query: &SideQuery) -> Option<String> {
    let last = query.conversation.last()?;
    let line = |text: &str| text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().to_owned();
    let tag = query.question.split_once('<').and_then(|(_, rest)| Some(rest.split_once('>')?.0));
    let (count, last) = (query.conversation.len(), line(&last.text));
    Some(match tag {
        Some(tag) => format!("<{tag}>{count} messages; the last one: {last}</{tag}>"),
        None => format!("{}: {count} messages; the last one: {last}", line(&query.question)),
    })
}

#[cfg(test)]
mod tests;
