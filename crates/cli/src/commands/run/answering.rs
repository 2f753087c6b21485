//! Asks a person about the permission requests of the turn that `ostler run` follows, in the terminal in which it waits.
//! Nothing is allowed that was not shown whole: if a command was too long to be shown at once, a yes shows the rest first.

use std::{collections::VecDeque, io::IsTerminal};

use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind,
    ids::RunId,
    kernel::permissions::{AnswerPermission, AskPermission},
};

use crate::{
    commands::permissions::{Verdict, choose},
    terminal::{
        output,
        paint::Paint,
        permissions::{self, answer_commands, has_more_lines},
        times::now,
        typed_lines::{Typed, TypedLines},
    },
};

pub(crate) struct Questions {
    /// Whether there is a person to ask.
    is_possible: bool,
    run_id: RunId,
    invocation: String,
    open: VecDeque<OpenQuestion>,
    typed: Option<TypedLines>,
    /// The prompt is the last text on the terminal, and its line has not ended.
    is_prompting: bool,
}

struct OpenQuestion {
    ask: Box<AskPermission>,
    is_shown_whole: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum TypedAnswer {
    Yes,
    No,
    View,
    Unclear,
}

impl TypedAnswer {
    pub(crate) fn parse(text: &str) -> Self {
        match text.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => Self::Yes,
            "n" | "no" => Self::No,
            "v" | "view" => Self::View,
            _ => Self::Unclear,
        }
    }
}

impl Questions {
    pub(crate) fn new(run_id: RunId, invocation: String, is_text: bool) -> Self {
        let is_possible = is_text && std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        Self { is_possible, run_id, invocation, open: VecDeque::new(), typed: None, is_prompting: false }
    }

    /// Whether requests are answered here.
    pub(crate) fn is_possible(&self) -> bool {
        self.is_possible
    }

    pub(crate) fn is_open(&self) -> bool {
        !self.open.is_empty()
    }

    pub(crate) fn add(&mut self, ask: Box<AskPermission>) {
        let is_shown_whole = !ask.command.as_deref().is_some_and(has_more_lines);
        self.open.push_back(OpenQuestion { ask, is_shown_whole });
    }

    /// The request was answered, here or elsewhere, or its time has passed.
    pub(crate) fn remove(&mut self, permission_id: &str) {
        self.open.retain(|question| question.ask.permission_id.to_string() != permission_id);
    }

    /// Ends the line of the prompt before something else is printed.
    pub(crate) fn interrupt(&mut self) {
        if std::mem::take(&mut self.is_prompting) {
            output::message("\n");
        }
    }

    /// Prints the prompt for the first open request, unless it is already there.
    pub(crate) fn prompt(&mut self) {
        if self.is_prompting || self.open.is_empty() {
            return;
        }
        self.typed.get_or_insert_with(TypedLines::stdin).discard();
        output::message(&format!("{} [y]es, [n]o, [v]iew the whole call: ", Paint::stderr().bold("allow this?")));
        self.is_prompting = true;
    }

    /// The next typed line. Never completes while no request is open.
    pub(crate) async fn line(&mut self) -> Option<String> {
        match &mut self.typed {
            Some(typed) if !self.open.is_empty() => typed.next().await.map(|typed| match typed {
                Typed::Line(line) => line,
                Typed::Key(key) => key.into(),
                // No answer, so the person is asked again.
                Typed::InvalidLine => String::new(),
            }),
            _ => std::future::pending().await,
        }
    }

    /// Acts on a typed line. `None`: the input has ended, so requests are answered elsewhere.
    pub(crate) async fn answer(&mut self, client: &Client, typed: Option<String>) {
        self.is_prompting = false;
        let Some(typed) = typed else { return self.give_up() };
        let Some(question) = self.open.front_mut() else { return };
        let verdict = match TypedAnswer::parse(&typed) {
            TypedAnswer::Yes if question.is_shown_whole => Verdict::Allow,
            TypedAnswer::No => Verdict::Reject,
            TypedAnswer::Yes | TypedAnswer::View => {
                question.is_shown_whole = true;
                return output::message(&permissions::whole_call(&question.ask, now(), output::stderr_width()));
            }
            TypedAnswer::Unclear => return output::message("answer y, n or v\n"),
        };
        match send(client, self.run_id, &question.ask, verdict).await {
            Ok(()) => drop(self.open.pop_front()),
            Err(failure) => {
                output::message(&format!("not answered: {}\n", output::line(&failure.message, 300)));
                // It was answered elsewhere, others must answer it, or the turn has ended.
                use FailureKind::{Cancelled, Forbidden, NotFound, StateConflict};
                if matches!(failure.kind, NotFound | StateConflict | Forbidden | Cancelled) {
                    self.open.pop_front();
                }
            }
        }
    }

    fn give_up(&mut self) {
        self.is_possible = false;
        for question in self.open.drain(..) {
            let commands = answer_commands(&self.invocation, self.run_id, question.ask.permission_id);
            output::message(&format!("\nthe request waits for an answer:\n{commands}"));
        }
    }
}

async fn send(client: &Client, run_id: RunId, ask: &AskPermission, verdict: Verdict) -> Result<(), Failure> {
    let option = choose(&ask.options, None, verdict)?;
    let answer = AnswerPermission { option_id: option.option_id.clone(), digest: ask.digest.clone() };
    client.answer_permission(&run_id.to_string(), &ask.permission_id.to_string(), &answer).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clear_answer_counts() {
        for (text, answer) in [
            ("y\n", TypedAnswer::Yes),
            (" YES ", TypedAnswer::Yes),
            ("n\n", TypedAnswer::No),
            ("v", TypedAnswer::View),
            ("\n", TypedAnswer::Unclear),
            ("yess", TypedAnswer::Unclear),
        ] {
            assert_eq!(TypedAnswer::parse(text), answer, "{text:?}");
        }
    }
}
