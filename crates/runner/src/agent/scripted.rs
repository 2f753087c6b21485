//! The scripted agent: deterministic, built in, without side effects. It echoes a plain prompt and plays a prompt that is
//! a script (`docs/scripted-agent.md`), so that everything around an agent can be tried and tested without a model.
//!
//! It runs no tool and calls nobody: a scripted tool call is only told, never done.

mod play;
mod script;

use futures_util::future::BoxFuture;
use ostler_protocol::FailureKind;

use super::{AfterCrash, Agent, Turn, TurnEnd, TurnResult};
use crate::link::Link;
use play::Play;
use script::{Script, Step};

pub struct Scripted;

impl Agent for Scripted {
    fn turn<'a>(&'a mut self, turn: &'a Turn, link: Link) -> BoxFuture<'a, TurnResult> {
        Box::pin(async move {
            let steps = match Script::read(&turn.prompt) {
                Some(Ok(script)) => script.steps,
                Some(Err(message)) => return Ok(TurnEnd::failed(FailureKind::SchemaInvalid, message)),
                None => vec![Step::echo(&turn.prompt)],
            };
            Play::new(link, turn.is_repeat).run(steps).await
        })
    }

    fn after_crash(&self) -> AfterCrash {
        AfterCrash::Repeat
    }

    fn keeps_lease(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
