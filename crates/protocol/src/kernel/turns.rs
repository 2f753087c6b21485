//! The turns of a session, as far as it can be rewound to them: which there were, and which belong to the conversation now.

use crate::{
    Timestamp,
    ids::{CommandId, RunId, SessionId},
    kernel::fold::ChangeFold,
};

/// A turn, or a rewind, in the order of the log. Those of a session that this one continues come first.
#[derive(Clone, Debug, PartialEq)]
pub enum TurnMark {
    Turn(Box<SessionTurn>),
    Rewound { before: CommandId },
}

/// A turn of the conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionTurn {
    /// The session in which it ran: that of the conversation, or one that it continues.
    pub session: SessionId,
    pub run_id: RunId,
    pub command_id: CommandId,
    pub submitted_at: Timestamp,
    /// Clients no longer see it.
    pub is_rolled_back: bool,
    /// What it changed in its workspace. `None` if it changed nothing.
    pub changes: Option<ChangeFold>,
}

/// A turn that the session can be rewound to.
#[derive(Clone, Debug, PartialEq)]
pub struct NumberedTurn {
    /// Counted from 1 over all turns of the log, so that it never names another turn.
    pub number: usize,
    pub turn: SessionTurn,
}

/// The turns of the conversation, in order.
pub fn current(marks: impl IntoIterator<Item = TurnMark>) -> Vec<NumberedTurn> {
    let (mut turns, mut number): (Vec<NumberedTurn>, usize) = (vec![], 0);
    for mark in marks {
        match mark {
            TurnMark::Turn(turn) => {
                number += 1;
                if !turn.is_rolled_back {
                    turns.push(NumberedTurn { number, turn: *turn });
                }
            }
            TurnMark::Rewound { before } => {
                // A target that is not among the marks is older than all of them.
                let target = turns.iter().position(|numbered| numbered.turn.command_id == before);
                turns.truncate(target.unwrap_or(0));
            }
        }
    }
    turns
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::kernel::{
        conversation::Conversation,
        events::{Event, EventType},
    };

    fn id(number: u128) -> CommandId {
        CommandId::new(Uuid::from_u128(number))
    }

    fn turn(number: u128) -> TurnMark {
        TurnMark::Turn(Box::new(SessionTurn {
            session: SessionId::new(Uuid::nil()),
            run_id: RunId::new(Uuid::nil()),
            command_id: id(number),
            submitted_at: Timestamp::UNIX_EPOCH,
            is_rolled_back: false,
            changes: None,
        }))
    }

    #[test]
    fn a_turns_number_never_names_another_turn() {
        let marks = [turn(1), turn(2), turn(3), TurnMark::Rewound { before: id(2) }, turn(4)];
        let current: Vec<_> = current(marks).iter().map(|it| (it.number, it.turn.command_id)).collect();
        assert_eq!(current, [(1, id(1)), (4, id(4))]);
    }

    fn event(command_id: Option<CommandId>, event_type: EventType, payload: &serde_json::Value) -> Event {
        Event {
            session: SessionId::new(Uuid::nil()),
            session_seq: 0,
            run: None,
            command_id,
            event_type,
            payload: Some(payload.to_string().into()),
            digest: [0; 32],
            hash: [0; 32],
            created_at: Timestamp::UNIX_EPOCH,
        }
    }

    proptest::proptest! {
        /// What clients can rewind to, and what agents get, are folded apart.
        #[test]
        fn the_turns_of_the_list_are_those_of_the_conversation(steps in proptest::collection::vec(0_u128..30, 0..40)) {
            let (mut marks, mut events, mut turns) = (vec![], vec![], 0);
            for step in steps {
                if step < 20 {
                    turns += 1;
                    marks.push(turn(turns));
                    let said = json!({"commandType": "turn", "content": [{"text": id(turns).to_string()}]});
                    events.push(event(Some(id(turns)), EventType::UserMessage, &said));
                } else {
                    let before = id(step % (turns + 2));
                    marks.push(TurnMark::Rewound { before });
                    let fact = json!({"change": "rewound", "beforeCommandId": before});
                    events.push(event(None, EventType::Session, &fact));
                }
            }
            let listed: Vec<_> = current(marks).iter().map(|it| it.turn.command_id.to_string()).collect();
            let said: Vec<_> = Conversation::of(&events).messages.into_iter().map(|message| message.text).collect();
            proptest::prop_assert_eq!(listed, said);
        }
    }

    #[test]
    fn a_rewind_to_a_turn_before_the_marks_leaves_none_of_them() {
        let rewound = |number| TurnMark::Rewound { before: id(number) };
        let current: Vec<_> = current([turn(5), turn(6), rewound(2), turn(7)]).iter().map(|it| it.number).collect();
        assert_eq!(current, [3]);
    }
}
