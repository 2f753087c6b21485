//! What a person types into an attached terminal, or a program writes to its stdin: votes, prompts and commands.

use futures_util::FutureExt;
use ostler_protocol::{Failure, FailureKind};

use super::{InputMode, Live, Response};
use crate::{
    commands::daemon::attach::{
        commands::{HELP, TypedLine, names, unknown},
        votes::VoteAction,
    },
    terminal::typed_lines::Typed,
};

impl Live {
    /// Acts on a line or a key. `None`: the input has ended.
    pub(super) fn typed(&mut self, typed: Option<Typed>) {
        match typed {
            Some(Typed::Key(key)) => self.key(key),
            Some(Typed::Line(line)) => self.line(Some(line)),
            Some(Typed::InvalidLine) => self.invalid_line(),
            None => self.line(None),
        }
    }

    /// Votes with a key. The key has not ended the line of the question.
    fn key(&mut self, key: char) {
        self.interrupt_cue();
        if self.vote(&key.to_string()) {
            self.last_key = Some(key);
        }
    }

    /// Votes on the request that is shown. `false` if none is.
    fn vote(&mut self, typed: &str) -> bool {
        let asks = self.input == InputMode::Terminal;
        let Some(action) = asks.then(|| self.votes.answer(typed)).flatten() else { return false };
        match action {
            VoteAction::Print(text) => {
                self.note(&text);
                // A key that is held down must not allow what it has just shown.
                if let Some(typed) = &self.typed {
                    typed.settle();
                }
            }
            VoteAction::Send(request_id, option_id) => {
                let session = self.session.clone();
                let vote = async move {
                    let result = session.vote(&request_id, Some(&option_id)).await;
                    Response::Vote(request_id, result)
                };
                self.requests.push(vote.boxed());
            }
        }
        true
    }

    /// Reports a line that cannot be sent. The input of a program ends with it; the lines before it have been worked off.
    fn invalid_line(&mut self) {
        self.cue = None;
        self.report(&Failure::new(FailureKind::SchemaInvalid, "a line of the input is not valid UTF-8"));
        if self.input == InputMode::Piped {
            self.end = Some(FailureKind::SchemaInvalid.row().exit_code);
        }
    }

    /// Acts on a typed line. `None`: the input has ended.
    pub(super) fn line(&mut self, typed: Option<String>) {
        self.cue = None;
        let Some(typed) = typed else {
            self.typed = None;
            if self.input != InputMode::Piped {
                self.detach();
            }
            return;
        };
        let last_key = self.last_key.take();
        if last_key.is_some_and(|key| is_rest_of(key, &typed)) || self.vote(&typed) {
            return;
        }
        // Piped input cannot be corrected, so all of it is sent.
        let is_piped = self.input == InputMode::Piped;
        match TypedLine::parse(&typed) {
            TypedLine::Nothing => {}
            TypedLine::Detach if !is_piped => self.detach(),
            TypedLine::Cancel if !is_piped => self.cancel(),
            TypedLine::Help if !is_piped => self.note(HELP),
            _ => {
                self.unsent.push_back(typed);
                self.send_lines();
            }
        }
    }

    /// Sends the typed lines in their order: each one once the one before it was accepted or rejected.
    pub(super) fn send_lines(&mut self) {
        while self.submitting == 0
            && let Some(typed) = self.unsent.pop_front()
        {
            match TypedLine::parse(&typed) {
                TypedLine::Prompt(text) => self.submit(text),
                TypedLine::OfAgent { name, text } if self.input != InputMode::Piped => self.send_command(name, text),
                _ => self.submit(typed.trim()),
            }
        }
    }

    /// Sends a command that the agent has, and rejects others. Which ones it has is requested once.
    fn send_command(&mut self, name: &str, text: &str) {
        let Some(commands) = &self.commands else { return self.look_up(text) };
        match commands.iter().any(|command| command == name) {
            true => self.submit(text),
            false => {
                let message = unknown(name, commands);
                self.note(&message);
            }
        }
    }

    /// Requests the commands of the agent for a line that may be one of them.
    fn look_up(&mut self, text: &str) {
        let (session, text) = (self.session.clone(), text.to_owned());
        self.submitting += 1;
        let look_up = async move {
            let commands = session.supported_commands().await;
            Response::Commands(text, commands.map(|commands| names(&commands.available_commands)))
        };
        self.requests.push(look_up.boxed());
    }

    /// Stores the commands of the agent. The line that needed them is the next one to send.
    pub(super) fn looked_up(&mut self, text: String, commands: Result<Vec<String>, Failure>) {
        self.submitting -= 1;
        self.commands = match commands {
            Ok(commands) => Some(commands),
            // The backend has no commands.
            Err(failure) if failure.kind == FailureKind::NotImplemented => Some(vec![]),
            Err(failure) => return self.report(&failure),
        };
        self.unsent.push_front(text);
    }
}

/// Whether a line is what a person types after a key out of habit: the rest of the word, or only Enter.
fn is_rest_of(key: char, line: &str) -> bool {
    let rest = line.trim().to_ascii_lowercase();
    matches!((key.to_ascii_lowercase(), rest.as_str()), (_, "") | ('y', "es") | ('n', "o") | ('v', "iew"))
}

#[cfg(test)]
mod tests {
    use super::is_rest_of;

    #[test]
    fn the_rest_of_a_word_whose_first_key_has_voted_is_no_prompt() {
        for (key, line) in [('y', "es\n"), ('n', "o"), ('N', "O\n"), ('v', "iew\n"), ('1', "\n"), ('y', " \n")] {
            assert!(is_rest_of(key, line), "{key} {line:?}");
        }
        for (key, line) in [('y', "o\n"), ('n', "es\n"), ('1', "0\n"), ('y', "esterday it worked\n")] {
            assert!(!is_rest_of(key, line), "{key} {line:?}");
        }
    }
}
