//! Asks a person at the terminal about the session's permission requests. Nothing is allowed that was not shown whole: if a
//! command was too long to be shown at once, a yes shows the rest first.

use std::collections::VecDeque;

use ostler_client::daemon::ReceivedFrame;
use ostler_protocol::kernel::permissions::PermissionOption;
use serde_json::Value;

use crate::{
    commands::{
        permissions::{Verdict, choose},
        run::answering::TypedAnswer,
    },
    terminal::{
        frame_view::PermissionQuestion,
        output::{self, line},
        permissions::{call_text, has_more_lines, time_left},
        times::now,
    },
};

/// The options that a digit can name.
const DIGITS_MAX: u8 = 9;

#[derive(Default)]
pub(crate) struct Votes {
    open: VecDeque<OpenVote>,
}

struct OpenVote {
    question: PermissionQuestion,
    is_shown_whole: bool,
    /// The vote was sent. It may need the votes of other clients, too.
    is_sent: bool,
}

/// What a typed line means for the first open request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum VoteAction {
    /// Vote on this request for this option.
    Send(String, String),
    /// Print this text, and ask again.
    Print(String),
}

impl Votes {
    /// `true` if the frame withdraws the request that a person is asked about.
    pub(crate) fn apply(&mut self, frame: &ReceivedFrame) -> bool {
        if let Some(question) = PermissionQuestion::read(frame) {
            let is_shown_whole = !question.command.as_deref().is_some_and(has_more_lines);
            self.open.push_back(OpenVote { question, is_shown_whole, is_sent: false });
            return false;
        }
        if !matches!(frame.frame_type.as_str(), "permission_resolved" | "permission_already_resolved") {
            return false;
        }
        let id = frame.data.get("requestId").and_then(Value::as_str).unwrap_or_default();
        let asked = self.unsent().map(|vote| vote.question.request_id.clone());
        self.remove(id);
        asked.is_some_and(|asked| asked == id)
    }

    /// Removes a request that was decided.
    pub(crate) fn remove(&mut self, request_id: &str) {
        self.open.retain(|vote| vote.question.request_id != request_id);
    }

    /// The vote could not be sent, and can be repeated.
    pub(crate) fn retry(&mut self, request_id: &str) {
        self.open
            .iter_mut()
            .filter(|vote| vote.question.request_id == request_id)
            .for_each(|vote| vote.is_sent = false);
    }

    fn unsent(&self) -> Option<&OpenVote> {
        self.open.iter().find(|vote| !vote.is_sent)
    }

    /// The id of the request that a person is asked about. `None` if no request waits for a vote of this client.
    pub(crate) fn asked_id(&self) -> Option<&str> {
        self.unsent().map(|vote| vote.question.request_id.as_str())
    }

    /// The line that asks for a vote. `None` if no request waits for one of this client.
    pub(crate) fn cue(&self) -> Option<String> {
        let options = &self.unsent()?.question.options;
        let numbered =
            options.iter().enumerate().map(|(index, option)| format!("{} {}", index + 1, line(&option.name, 80)));
        Some(format!("{}, or [y]es, [n]o, [v]iew the whole call: ", numbered.collect::<Vec<_>>().join(", ")))
    }

    /// How many of the options a single digit names: all of them, or none if there are too many.
    pub(crate) fn digits(&self) -> u8 {
        let count = self.unsent().map_or(0, |vote| vote.question.options.len());
        u8::try_from(count).ok().filter(|count| *count <= DIGITS_MAX).unwrap_or(0)
    }

    /// Acts on a typed line. `None` if no request waits for a vote of this client.
    pub(crate) fn answer(&mut self, typed: &str) -> Option<VoteAction> {
        let vote = self.open.iter_mut().find(|vote| !vote.is_sent)?;
        let options = &vote.question.options;
        // Agents name the options: one that is called `n` must not turn a no into a yes.
        let chosen = match TypedAnswer::parse(typed) {
            TypedAnswer::Yes => choose(options, None, Verdict::Allow),
            TypedAnswer::No => choose(options, None, Verdict::Reject),
            TypedAnswer::View => return Some(VoteAction::Print(vote.show_whole())),
            TypedAnswer::Unclear => match numbered(options, typed) {
                Some(option) => Ok(option),
                None => {
                    let message = format!("answer with a number from 1 to {}, y, n or v\n", options.len());
                    return Some(VoteAction::Print(message));
                }
            },
        };
        let option = match chosen {
            Ok(option) => option.clone(),
            Err(failure) => return Some(VoteAction::Print(format!("{}\n", failure.message))),
        };
        if option.kind.allows() && !vote.is_shown_whole {
            return Some(VoteAction::Print(vote.show_whole()));
        }
        vote.is_sent = true;
        Some(VoteAction::Send(vote.question.request_id.clone(), option.option_id))
    }
}

impl OpenVote {
    fn show_whole(&mut self) -> String {
        self.is_shown_whole = true;
        let PermissionQuestion { request_id, title, command, deadline, .. } = &self.question;
        let head = format!("{}: {}", line(request_id, 200), line(title, 400));
        call_text(&head, command.as_deref(), output::stderr_width()) + &time_left(*deadline, now())
    }
}

/// The option that a typed number names.
fn numbered<'a>(options: &'a [PermissionOption], typed: &str) -> Option<&'a PermissionOption> {
    let number = typed.trim().parse::<usize>().ok().and_then(|number| number.checked_sub(1));
    number.and_then(|index| options.get(index))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(id: &str, command: &str) -> ReceivedFrame {
        let options = json!([{"optionId": "always", "name": "Always", "kind": "allow_always"},
            {"optionId": "once", "name": "Once", "kind": "allow_once"},
            {"optionId": "no", "name": "No", "kind": "reject_once"}]);
        let call = json!({"toolCallId": "t", "title": "Go on?", "rawInput": {"command": command}});
        let data = json!({"requestId": id, "sessionId": "s", "toolCall": call, "options": options});
        serde_json::from_value(json!({"id": 1, "v": 1, "type": "permission_request", "data": data})).unwrap()
    }

    fn resolved(id: &str) -> ReceivedFrame {
        let data = json!({"requestId": id, "outcome": {"outcome": "cancelled"}});
        serde_json::from_value(json!({"id": 2, "v": 1, "type": "permission_resolved", "data": data})).unwrap()
    }

    fn vote_for(id: &str, option: &str) -> Option<VoteAction> {
        Some(VoteAction::Send(id.into(), option.into()))
    }

    #[test]
    fn a_number_or_a_letter_votes() {
        for (typed, option) in [("1\n", "always"), ("2", "once"), ("y\n", "once"), ("n", "no"), ("no", "no")] {
            let mut votes = Votes::default();
            votes.apply(&request("r", "make"));
            assert_eq!(votes.answer(typed), vote_for("r", option), "{typed:?}");
            assert_eq!((votes.cue(), votes.answer("y")), (None, None), "one vote is enough");
        }
        let mut votes = Votes::default();
        votes.apply(&request("r", "make"));
        assert_eq!(votes.cue().unwrap(), "1 Always, 2 Once, 3 No, or [y]es, [n]o, [v]iew the whole call: ");
        for typed in ["0", "4", "what", "-1", "once"] {
            assert!(matches!(votes.answer(typed), Some(VoteAction::Print(_))), "{typed}");
        }
    }

    #[test]
    fn a_long_command_is_allowed_only_after_it_was_shown_whole() {
        let long: String = (1..=30).map(|n| format!("ls {n}\n")).collect();
        for yes in ["y", "1"] {
            let mut votes = Votes::default();
            votes.apply(&request("r", &long));
            let Some(VoteAction::Print(whole)) = votes.answer(yes) else { panic!("it was allowed") };
            assert!(whole.contains("ls 30"), "{whole}");
            assert!(matches!(votes.answer(yes), Some(VoteAction::Send(..))));
        }
        let mut votes = Votes::default();
        votes.apply(&request("r", &long));
        assert_eq!(votes.answer("n"), vote_for("r", "no"), "a refusal needs no more");
    }

    #[test]
    fn a_digit_is_a_key_only_if_it_can_name_every_option() {
        let mut votes = Votes::default();
        assert_eq!(votes.digits(), 0);
        votes.apply(&request("r", "make"));
        assert_eq!(votes.digits(), 3);
        let mut many = request("many", "make");
        let option = |n: usize| json!({"optionId": format!("o{n}"), "name": "Allow", "kind": "allow_once"});
        many.data["options"] = (0..10).map(option).collect();
        let mut votes = Votes::default();
        votes.apply(&many);
        assert_eq!(votes.digits(), 0, "1 may be the beginning of 10");
    }

    #[test]
    fn a_request_that_is_decided_elsewhere_is_withdrawn() {
        let mut votes = Votes::default();
        assert!(!votes.apply(&request("first", "make")) && !votes.apply(&request("second", "make")));
        assert!(!votes.apply(&resolved("second")), "the person is asked about the first");
        assert!(votes.apply(&resolved("first")));
        assert_eq!(votes.answer("y"), None);
        votes.apply(&request("third", "make"));
        assert_eq!(votes.answer("y"), vote_for("third", "once"));
        votes.retry("third");
        assert_eq!(votes.answer("n"), vote_for("third", "no"), "a vote that was not received can be repeated");
    }

    #[test]
    fn an_option_that_is_called_n_does_not_turn_a_no_into_a_yes() {
        let mut frame = request("prm_1", "make");
        frame.data["options"] = json!([{"optionId": "n", "name": "Allow", "kind": "allow_always"},
            {"optionId": "no", "name": "No", "kind": "reject_once"}]);
        let mut votes = Votes::default();
        votes.apply(&frame);
        let Some(VoteAction::Send(_, option_id)) = votes.answer("n") else { panic!("a vote is sent") };
        assert_eq!(option_id, "no");
    }
}
