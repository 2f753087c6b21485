//! History: the messages of a thread, for people to read, one day at a time. It is folded from the thread's events: the
//! messages of people and the replies of agents, placed where they were received; never tools, thoughts, context, or
//! turns that were rolled back.

mod stored_message;

pub use stored_message::{TextOrPicture, ToolResultContent, UserContent, UserContentPart, user_content};

use std::collections::{HashMap, HashSet};

use jiff::{civil::Date, tz::TimeZone};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{
    Failure, Rule, Timestamp,
    ids::CommandId,
    kernel::{
        commands::CommandType,
        conversation::HistoryAttachment,
        events::{Event, EventType, PHASE_ATTEMPT_RESTARTED, PHASE_STEER_ACCEPTED},
        front_end::TOOL_RESULT_PART,
    },
    run_input::ui::{self, schema::UiSchemaRenderer},
};

/// Messages of one day that are shown; of a day with more, the newest.
pub const HISTORY_MESSAGES_MAX: usize = 10_000;
/// Days that are looked at for one on which anything can be seen.
pub const HISTORY_DAYS_MAX: usize = 366;
/// What is put together of an answer that was cut off.
pub const PARTIAL_BYTES_MAX: usize = 256 * 1024;

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct HistoryQuery {
    /// Left out: the caller's newest thread.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// `YYYY-MM-DD`: the last day before this one that has any message; left out, the last day of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub enum HistoryScope {
    #[default]
    #[serde(rename = "history_day")]
    HistoryDay,
}

/// One day of a thread, in the user's time zone. It is empty if there is no thread or no message.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct HistorySnapshot {
    pub scope: HistoryScope,
    pub thread_id: Option<String>,
    #[schema(value_type = Option<String>, format = Date)]
    pub day: Option<Date>,
    /// Earlier days have messages.
    pub has_more: bool,
    pub messages: Vec<HistoryMessage>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "role", rename_all = "lowercase")]
pub enum HistoryMessage {
    User {
        id: String,
        /// Rises with every message of the thread, not always by one, and never changes.
        seq: i64,
        content: String,
        attachments: Vec<HistoryAttachment>,
        #[schema(value_type = String, format = DateTime)]
        timestamp: Timestamp,
    },
    Assistant {
        id: String,
        seq: i64,
        content: String,
        #[schema(required)]
        ui_schema: Option<UiSchemaRenderer>,
        #[schema(value_type = String, format = DateTime)]
        timestamp: Timestamp,
    },
}

impl HistoryMessage {
    pub fn seq(&self) -> i64 {
        match self {
            Self::User { seq, .. } | Self::Assistant { seq, .. } => *seq,
        }
    }

    pub fn content(&self) -> &str {
        match self {
            Self::User { content, .. } | Self::Assistant { content, .. } => content,
        }
    }
}

/// A picture of a message, as its event keeps it: ours by bucket and path, or another's by its URL.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Picture {
    pub mime_type: String,
    pub bucket: Option<String>,
    pub path: Option<String>,
    pub url: Option<String>,
}

/// The pictures of a message, from what an event or a command keeps of it.
pub fn pictures(payload: &str) -> Vec<Picture> {
    let view: View = serde_json::from_str(payload).unwrap_or_default();
    view.content.into_iter().filter(|part| part.part_type == "image").map(|part| part.picture).collect()
}

/// Reads `YYYY-MM-DD`, and nothing that only resembles it.
pub fn read_day(text: &str) -> Result<Date, Failure> {
    let shape = |(at, byte): (usize, u8)| if at == 4 || at == 7 { byte == b'-' } else { byte.is_ascii_digit() };
    let plain = text.len() == 10 && text.bytes().enumerate().all(shape);
    let invalid = || Failure::invalid(Rule::Before, "before must be a day, YYYY-MM-DD");
    if plain { text.parse().map_err(|_| invalid()) } else { Err(invalid()) }
}

/// The day on which something happened, by this zone's clocks.
pub fn day_of(time: Timestamp, zone: &TimeZone) -> Date {
    zone.to_datetime(time).date()
}

/// When the day begins there. It ends when the next one begins, be it 23 hours later or 25.
pub fn start_of(day: Date, zone: &TimeZone) -> Timestamp {
    let begins = day.to_zoned(zone.clone()).and_then(|zoned| zoned.start_of_day());
    begins.map_or(Timestamp::MIN, |zoned| zoned.timestamp())
}

/// From the day's beginning to the next one's.
pub fn span_of(day: Date, zone: &TimeZone) -> (Timestamp, Timestamp) {
    let end = day.tomorrow().map_or(Timestamp::MAX, |next| start_of(next, zone));
    (start_of(day, zone), end)
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct View {
    message_id: Option<String>,
    command_type: Option<CommandType>,
    content: Vec<HistoryPart>,
    text: Option<String>,
    delta: Option<String>,
    phase: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct HistoryPart {
    #[serde(rename = "type")]
    part_type: String,
    text: Option<String>,
    #[serde(flatten)]
    picture: Picture,
}

impl View {
    fn of(event: &Event) -> Option<Self> {
        serde_json::from_str(event.payload.as_deref()?).ok()
    }
}

/// The history of a day, from its messages and the phases of their turns, ordered by sequence number. `signed` makes a
/// picture's URL; a picture that is no longer available is left out.
pub fn fold(events: &[Event], signed: impl Fn(&Picture) -> Option<String>) -> Vec<HistoryMessage> {
    let restarted = last_phases(events, PHASE_ATTEMPT_RESTARTED);
    let accepted = last_phases(events, PHASE_STEER_ACCEPTED);
    let mut messages: Vec<_> = events
        .iter()
        .filter_map(|event| {
            let (command_id, view) = event.command_id.zip(View::of(event))?;
            match event.event_type {
                // A steer is placed where the agent accepted it, and left out where it did not.
                EventType::UserMessage if view.command_type == Some(CommandType::Steer) => {
                    user_message(event, view, *accepted.get(&command_id)?, &signed)
                }
                EventType::UserMessage => user_message(event, view, event.session_seq, &signed),
                // A later attempt repeated the messages of a dead one.
                EventType::AssistantMessage if restarted.get(&command_id) > Some(&event.session_seq) => None,
                EventType::AssistantMessage => assistant_message(event, view),
                _ => None,
            }
        })
        .collect();
    messages.sort_by_key(HistoryMessage::seq);
    messages
}

/// Where each command was last in this phase.
fn last_phases(events: &[Event], phase: &str) -> HashMap<CommandId, i64> {
    let phases = events.iter().filter(|event| event.event_type == EventType::BackendStatus);
    let so = phases.filter(|event| View::of(event).is_some_and(|view| view.phase.as_deref() == Some(phase)));
    so.filter_map(|event| Some((event.command_id?, event.session_seq))).collect()
}

/// `None` if the message is results of tools and nothing else: history has no tools.
fn user_message(
    event: &Event,
    view: View,
    seq: i64,
    signed: impl Fn(&Picture) -> Option<String>,
) -> Option<HistoryMessage> {
    let (results, content): (Vec<_>, Vec<_>) =
        view.content.into_iter().partition(|part| part.part_type == TOOL_RESULT_PART);
    if content.is_empty() && !results.is_empty() {
        return None;
    }
    let (pictures, words): (Vec<_>, Vec<_>) = content.into_iter().partition(|part| part.part_type == "image");
    let attachments = pictures.into_iter().filter_map(|part| {
        let url = signed(&part.picture)?;
        Some(HistoryAttachment { mime_type: part.picture.mime_type, url })
    });
    Some(HistoryMessage::User {
        id: view.message_id.unwrap_or_default(),
        seq,
        content: words.into_iter().filter_map(|part| part.text).collect::<Vec<_>>().join("\n"),
        attachments: attachments.collect(),
        timestamp: event.created_at,
    })
}

fn assistant_message(event: &Event, view: View) -> Option<HistoryMessage> {
    let (content, ui_schema) = (view.text.unwrap_or_default(), ui::of_message(event.payload.as_deref()?));
    if content.is_empty() && ui_schema.is_none() {
        return None;
    }
    let id = view.message_id.unwrap_or_default();
    Some(HistoryMessage::Assistant { id, seq: event.session_seq, content, ui_schema, timestamp: event.created_at })
}

/// The incomplete messages of a turn that did not complete: clients that followed it have seen them. From the deltas,
/// the whole messages and the phases of that one turn. They are shown on the day of the user's message, and so have its
/// time.
pub fn partial(prompt: &Event, events: &[Event]) -> Vec<HistoryMessage> {
    let restarted = last_phases(events, PHASE_ATTEMPT_RESTARTED).into_values().max().unwrap_or(0);
    let of_type = |wanted: EventType| {
        let last_attempt = events.iter().filter(move |event| event.session_seq > restarted);
        last_attempt.filter(move |event| event.event_type == wanted).filter_map(|event| Some((event, View::of(event)?)))
    };
    let whole: HashSet<_> = of_type(EventType::AssistantMessage).filter_map(|(_, view)| view.message_id).collect();
    let mut begun: Vec<(String, HistoryMessage)> = vec![];
    let mut bytes = 0;
    for (event, view) in of_type(EventType::AssistantDelta) {
        let Some((id, delta)) = view.message_id.zip(view.delta).filter(|(id, _)| !whole.contains(id)) else { continue };
        bytes += delta.len();
        if bytes > PARTIAL_BYTES_MAX {
            break;
        }
        let at = begun.iter().position(|(known, _)| *known == id);
        let earlier = at.map(|at| begun.remove(at).1);
        let content = match earlier {
            Some(HistoryMessage::Assistant { content, .. }) => content + &delta,
            _ => delta,
        };
        let (seq, timestamp) = (event.session_seq, prompt.created_at);
        begun.push((id.clone(), HistoryMessage::Assistant { id, seq, content, ui_schema: None, timestamp }));
    }
    begun.into_iter().map(|(_, message)| message).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use uuid::Uuid;

    use super::*;
    use crate::ids::SessionId;

    fn zone(name: &str) -> TimeZone {
        TimeZone::get(name).unwrap()
    }

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn a_day_is_as_long_as_the_clocks_make_it() {
        let hours = |name: &str, day: &str| {
            let (start, end) = span_of(read_day(day).unwrap(), &zone(name));
            end.duration_since(start).as_hours()
        };
        assert_eq!(hours("Europe/Berlin", "2026-03-28"), 24);
        assert_eq!(hours("Europe/Berlin", "2026-03-29"), 23);
        assert_eq!(hours("Europe/Berlin", "2026-10-25"), 25);
        // Where the clocks go forward at midnight, the day begins at one.
        assert_eq!(hours("America/Santiago", "2026-09-06"), 23);
        assert_eq!(start_of(read_day("2026-09-06").unwrap(), &zone("America/Santiago")), time("2026-09-06T04:00:00Z"));
        // Half hours, and a zone that has left a day out altogether.
        assert_eq!(start_of(read_day("2026-01-02").unwrap(), &zone("Asia/Kolkata")), time("2026-01-01T18:30:00Z"));
        for (name, day) in
            [("Europe/Berlin", "2026-03-29"), ("Europe/Berlin", "2026-10-25"), ("Pacific/Apia", "2011-12-31")]
        {
            let day = read_day(day).unwrap();
            let (start, end) = span_of(day, &zone(name));
            let just_before = |time: Timestamp| Timestamp::from_microsecond(time.as_microsecond() - 1).unwrap();
            assert_eq!((day_of(start, &zone(name)), day_of(just_before(end), &zone(name))), (day, day));
            assert_ne!(day_of(end, &zone(name)), day);
            assert_ne!(day_of(just_before(start), &zone(name)), day);
        }
    }

    #[test]
    fn a_day_is_written_one_way() {
        assert!(read_day("2026-02-28").is_ok() && read_day("0001-01-01").is_ok() && read_day("9999-12-31").is_ok());
        for bad in [
            "",
            "2026-02-29",
            "2026-2-3",
            "20260203",
            "2026-02-03T00:00",
            "26-02-03",
            "+02026-02-3",
            "today",
            "2026-13-01",
            "２０２６",
        ] {
            assert_eq!(read_day(bad).unwrap_err().rule_name(), Some("before"), "{bad}");
        }
    }

    fn command(number: u128) -> CommandId {
        CommandId::new(Uuid::from_u128(number))
    }

    /// Numbered by their places, from 1.
    fn numbered(events: Vec<(u128, EventType, Value)>) -> Vec<Event> {
        let numbered = events.into_iter().enumerate();
        numbered
            .map(|(index, (of, event_type, payload))| Event {
                session: SessionId::new(Uuid::nil()),
                session_seq: index as i64 + 1,
                run: None,
                command_id: Some(command(of)),
                event_type,
                payload: Some(payload.to_string().into()),
                digest: [0; 32],
                hash: [0; 32],
                created_at: Timestamp::UNIX_EPOCH,
            })
            .collect()
    }

    fn displayed_texts(events: Vec<(u128, EventType, Value)>) -> Vec<(i64, String)> {
        let messages = fold(&numbered(events), |_| None);
        messages
            .into_iter()
            .map(|message| match message {
                HistoryMessage::User { seq, content, .. } | HistoryMessage::Assistant { seq, content, .. } => {
                    (seq, content)
                }
            })
            .collect()
    }

    fn sent(of: u128, text: &str, kind: &str) -> (u128, EventType, Value) {
        let content = json!([{"type": "text", "text": text}]);
        (of, EventType::UserMessage, json!({"messageId": "m", "commandType": kind, "content": content}))
    }

    fn answer(of: u128, text: &str) -> (u128, EventType, Value) {
        (of, EventType::AssistantMessage, json!({"messageId": "a", "text": text}))
    }

    fn phase(of: u128, phase: &str) -> (u128, EventType, Value) {
        (of, EventType::BackendStatus, json!({"phase": phase}))
    }

    #[test]
    fn a_steer_is_placed_where_it_was_accepted_or_left_out() {
        let events = vec![
            sent(1, "one", "turn"),
            sent(2, "left", "steer"),
            sent(3, "never accepted", "steer"),
            answer(1, "half"),
            phase(2, PHASE_STEER_ACCEPTED),
            answer(1, "whole"),
            answer(1, ""),
        ];
        let expected = [(1, "one"), (4, "half"), (5, "left"), (6, "whole")];
        assert_eq!(displayed_texts(events), expected.map(|(seq, text)| (seq, text.to_owned())));
    }

    #[test]
    fn messages_of_a_dead_attempt_are_not_shown_twice() {
        let events = vec![
            sent(1, "one", "turn"),
            answer(1, "half"),
            answer(2, "another turn's"),
            phase(1, PHASE_ATTEMPT_RESTARTED),
            answer(1, "whole"),
        ];
        assert_eq!(
            displayed_texts(events),
            [(1, "one".to_owned()), (3, "another turn's".to_owned()), (5, "whole".to_owned())]
        );
    }

    #[test]
    fn pictures_are_attachments_and_those_without_a_url_are_left_out() {
        let content = json!([{"type": "text", "text": "what"}, {"type": "image", "mimeType": "image/png", "bucket": "b", "path": "p"},
            {"type": "text", "text": "is this?"}, {"type": "image", "mimeType": "image/gif", "url": "https://x/y.gif"},
            {"type": "image", "mimeType": "image/png"}]);
        let events = numbered(vec![(
            1,
            EventType::UserMessage,
            json!({"messageId": "m", "commandType": "turn", "content": content}),
        )]);
        let signed =
            |picture: &Picture| picture.path.as_ref().map(|path| format!("signed:{path}")).or(picture.url.clone());
        let wire = serde_json::to_value(fold(&events, signed)).unwrap();
        assert_eq!(
            wire,
            json!([{"role": "user", "id": "m", "seq": 1, "content": "what\nis this?", "timestamp": "1970-01-01T00:00:00Z",
            "attachments": [{"mimeType": "image/png", "url": "signed:p"}, {"mimeType": "image/gif", "url": "https://x/y.gif"}]}])
        );
    }

    #[test]
    fn an_answer_that_was_cut_off_is_shown_as_far_as_it_came() {
        let delta = |id: &str, text: &str| (1, EventType::AssistantDelta, json!({"messageId": id, "delta": text}));
        let prompt =
            Event { created_at: time("2026-01-01T23:59:00Z"), ..numbered(vec![sent(1, "go", "turn")]).remove(0) };
        let begun = partial(
            &prompt,
            &numbered(vec![
                delta("x", "of an attempt that died"),
                phase(1, PHASE_ATTEMPT_RESTARTED),
                delta("a", "fin"),
                delta("b", "be"),
                delta("a", "ished"),
                answer(1, "finished"),
                delta("b", "gun"),
            ]),
        );
        let wire = serde_json::to_value(begun).unwrap();
        assert_eq!(
            wire,
            json!([{"role": "assistant", "id": "b", "seq": 7, "content": "begun", "ui_schema": null,
            "timestamp": "2026-01-01T23:59:00Z"}])
        );
    }
}
