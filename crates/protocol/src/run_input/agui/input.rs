//! `RunAgentInput`: what starts an agent's run. Its rules are checked in the order of the protocol's two tables, so
//! that of two faults the one in the earlier row is reported, and in exactly the tables' words.

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, value::RawValue};
use uuid::Uuid;

pub use super::{client_time::ClientTime, refused::InputRefused};
use super::{
    client_time::RawClientTime,
    fields,
    messages::{
        Content, InputMessage, Part, ResumeEntry, ResumeStatus, SentMessage, respell, respell_message, spelled,
    },
    refused::refuse_if,
    replies::{self, ToolReply, split},
    tools::read_tools,
};
use crate::{
    Rule,
    json::{canonical_hash, text_of},
    kernel::{context::Note, front_end::FrontEndTool},
    limits::BODY_BYTES_MAX,
    text::is_blank_text,
};

pub const INPUT_BYTES_MAX: usize = 256 * 1024;
pub const RUN_ID_CHARS_MAX: usize = 128;
pub const MESSAGES_MAX: usize = 200;
pub const USER_TEXT_CHARS_MAX: usize = 10_000;
pub const ATTACHMENTS_MAX: usize = 3;
/// The state is stored as one event.
pub const STATE_BYTES_MAX: usize = 128 * 1024;

/// The form of the response that the client requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// An acceptance, and the events elsewhere.
    Queued,
    /// The events in the same response. Stock AG-UI clients ask like this, and send the whole transcript each time: what
    /// comes before the last user message is set aside, to be compared with our own history. Of that, only system and developer
    /// messages count: they are the client's instructions, which it repeats with each message.
    Streamed,
    /// As [`Form::Streamed`], for a thread that does not exist: nothing but instructions can come before the message that the run is about.
    Opening,
}

/// An input that fits.
#[derive(Clone, Debug, PartialEq)]
pub struct RunInput {
    /// In lower case, however it was written.
    pub thread_id: String,
    pub run_id: String,
    pub parent_run_id: Option<String>,
    /// What the run is about. `None` only with `resume`, and if the run only answers calls of the front end's tools.
    pub user: Option<UserMessage>,
    /// The other messages, for the agent alone.
    pub others: Vec<SentMessage>,
    /// The results of tools among the messages, which answer calls of the thread that have none.
    pub replies: Vec<ToolReply>,
    /// What a stock client has sent along of earlier turns, and with `resume` all of it. Empty when queued.
    pub transcript: Vec<InputMessage>,
    pub state: Option<Value>,
    pub tools: Vec<FrontEndTool>,
    pub context: Vec<Note>,
    /// `None` if the client sent no time. Its clock and its time are never compared with each other.
    pub client_time: Option<ClientTime>,
    pub resume: Vec<ResumeEntry>,
    /// Where the tools and the context of the run come from.
    pub mode: RuntimeMode,
    /// The same for bodies that mean the same.
    pub hash: String,
}

/// Where a run's tools and context come from. It changes nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeMode {
    /// From the server's configuration.
    Chat,
    /// From the automation that has started the thread.
    Automation,
}

#[derive(Clone, Debug, PartialEq)]
pub struct UserMessage {
    pub id: String,
    pub parts: Vec<UserPart>,
    /// The fields of the message that no rule reads, such as `name`: stored and replayed.
    pub fields: Map<String, Value>,
    /// The same for each of the parts. Empty if the content is text.
    pub part_fields: Vec<Map<String, Value>>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum UserPart {
    Text(String),
    Image { mime_type: Option<String>, url: String },
}

const TOO_LARGE: &str = "RunAgentInput payload exceeds size limit";
const FORWARDED_PROPS: &str = "invalid RunAgentInput.forwardedProps";

impl RunInput {
    pub fn read(body: &[u8], form: Form) -> Result<Self, InputRefused> {
        check_size(body, form)?;
        let body: Value = serde_json::from_slice(body).map_err(|error| {
            InputRefused::new(Rule::AgentRunInputInvalid, format!("RunAgentInput is not JSON: {error}"))
        })?;
        let Value::Object(body) = body else {
            return Err(InputRefused::new(Rule::AgentRunInputInvalid, "RunAgentInput must be an object"));
        };
        let mut body = spelled(body);
        let hash = hash(&body);
        let thread_id = thread_id(&body)?;
        let run_id = run_id(&body)?;
        let resume = resume(&mut body)?;
        let Messages { transcript, instructions, current, only_answers } =
            messages(&mut body, form, !resume.is_empty())?;
        let forwarded = RawForwardedProps::read(body.remove("forwardedProps"))?;
        let (user, others, replies) = match only_answers {
            true => (None, instructions, replies::of_current(&current)?),
            false => {
                let replies = replies::of_messages(transcript.iter().chain(current.iter().map(|sent| &sent.message)));
                let (user, others) = one_user(current, !resume.is_empty())?;
                (user, instructions.into_iter().chain(others).collect(), replies)
            }
        };
        let mode = forwarded.mode()?;
        let client_time = forwarded.client_time.map(ClientTime::read).transpose()?;
        let parent_run_id = match body.remove("parentRunId") {
            None => None,
            Some(Value::String(id)) if id.chars().count() <= RUN_ID_CHARS_MAX => Some(id),
            Some(Value::String(_)) => {
                return Err(InputRefused::new(Rule::AgentInvalidRunId, "parentRunId exceeds length limit"));
            }
            Some(_) => {
                return Err(InputRefused::new(
                    Rule::AgentRunInputInvalid,
                    "RunAgentInput.parentRunId must be a string",
                ));
            }
        };
        let (tools, context) = (list::<Value>(&mut body, "tools")?, list(&mut body, "context")?);
        let tools = read_tools(tools)?;
        let state = read_state(&mut body)?;
        if body.get("protocolVersion").is_some_and(|version| !version.is_string()) {
            let detail = "RunAgentInput.protocolVersion must be a string";
            return Err(InputRefused::new(Rule::AgentRunInputInvalid, detail));
        }
        Ok(Self {
            thread_id,
            run_id,
            parent_run_id,
            user,
            others,
            replies,
            transcript,
            state,
            tools,
            context,
            client_time,
            resume,
            mode,
            hash,
        })
    }
}

/// The same for a body however it is spelled. It is respelled deeper here than it is read: two spellings never mean two
/// requests.
fn hash(body: &Map<String, Value>) -> String {
    fn respell_all(value: &mut Value) {
        respell(value);
        match value {
            Value::Array(items) => items.iter_mut().for_each(respell_all),
            Value::Object(fields) => fields.values_mut().for_each(respell_all),
            _ => {}
        }
    }
    let mut body = Value::Object(body.clone());
    respell_all(&mut body);
    canonical_hash(&body)
}

/// The transcript that a stock client sends along does not count, except for its instructions. The whole of the body does, against its
/// own limit.
fn check_size(body: &[u8], form: Form) -> Result<(), InputRefused> {
    #[derive(Deserialize)]
    struct Spans<'a> {
        #[serde(borrow)]
        messages: Vec<&'a RawValue>,
        #[serde(default)]
        resume: Option<Vec<Value>>,
    }
    if body.len() <= INPUT_BYTES_MAX {
        return Ok(());
    }
    let too_large = || InputRefused::new(Rule::AgentPayloadInvalid, TOO_LARGE);
    if form != Form::Streamed || body.len() > BODY_BYTES_MAX {
        return Err(too_large());
    }
    let Spans { messages, resume } = serde_json::from_slice(body).map_err(|_| too_large())?;
    let read = |raw: &&RawValue| serde_json::from_str::<Value>(raw.get()).unwrap_or_default();
    let values: Vec<Value> = messages.iter().map(read).collect();
    let resumes = !resume.unwrap_or_default().is_empty();
    let (aside, _) = split(&values, form, resumes);
    let is_aside = |value: &Value| resumes || !is_instruction(value);
    let bytes = messages.iter().zip(&values).take(aside).filter(|(_, value)| is_aside(value));
    let aside_bytes: usize = bytes.map(|(raw, _)| raw.get().len()).sum();
    if body.len() - aside_bytes > INPUT_BYTES_MAX { Err(too_large()) } else { Ok(()) }
}

fn thread_id(body: &Map<String, Value>) -> Result<String, InputRefused> {
    let text = body.get("threadId").and_then(Value::as_str).unwrap_or_default();
    read_thread_id(text)
}

/// A thread's name, in lower case. Also used for names in a path or a query.
pub fn read_thread_id(text: &str) -> Result<String, InputRefused> {
    let hyphenated = text.len() == uuid::fmt::Hyphenated::LENGTH;
    match Uuid::try_parse(text) {
        Ok(uuid) if hyphenated => Ok(uuid.to_string()),
        _ => Err(InputRefused::new(Rule::AgentSessionIdInvalid, "threadId must be a valid UUID")),
    }
}

fn run_id(body: &Map<String, Value>) -> Result<String, InputRefused> {
    let text = body.get("runId").and_then(Value::as_str).unwrap_or_default();
    read_run_id(text)
}

/// A run's name within its thread. Also used for names in a query.
pub fn read_run_id(text: &str) -> Result<String, InputRefused> {
    refuse_if(text.chars().count() > RUN_ID_CHARS_MAX, Rule::AgentInvalidRunId, "runId exceeds length limit")?;
    refuse_if(text.is_empty(), Rule::AgentInvalidRunId, "runId must be a string that is not empty")?;
    Ok(text.to_owned())
}

/// The earlier transcript, and the messages that count. With `resume` there is no new message: the answers are all that
/// counts.
struct Messages {
    transcript: Vec<InputMessage>,
    /// The system and developer messages of the transcript. None with `resume`: the turn that continues has them already.
    instructions: Vec<SentMessage>,
    current: Vec<SentMessage>,
    /// The current messages are results of the front end's tools, and nothing else.
    only_answers: bool,
}

fn messages(body: &mut Map<String, Value>, form: Form, resumes: bool) -> Result<Messages, InputRefused> {
    let Some(Value::Array(mut aside)) = body.remove("messages") else {
        return Err(InputRefused::new(Rule::AgentRunMessagesInvalid, "RunAgentInput.messages must be an array"));
    };
    let (from, only_answers) = split(&aside, form, resumes);
    let current = aside.split_off(from);
    let count = current.len() + aside.iter().filter(|value| !resumes && is_instruction(value)).count();
    let limit = "RunAgentInput.messages exceeds limit";
    refuse_if(current.len() > MESSAGES_MAX, Rule::AgentRunMessagesInvalid, limit)?;
    let limit = "RunAgentInput.messages exceeds limit: the system and developer messages of the transcript count";
    refuse_if(count > MESSAGES_MAX, Rule::AgentRunMessagesInvalid, limit)?;
    let (current, sent) = read_messages(current, from)?;
    let too_long = current.iter().any(|message| match message {
        InputMessage::User { content, .. } => content.text_chars() > USER_TEXT_CHARS_MAX,
        _ => false,
    });
    refuse_if(too_long, Rule::AgentRunMessagesInvalid, "RunAgentInput user message text exceeds limit")?;
    check_fields(&sent, from)?;
    let current = current.into_iter().zip(sent).map(|(message, sent)| SentMessage { message, sent: fields_of(sent) });
    let current = current.collect();
    let (transcript, sent) = read_messages(aside, 0)?;
    check_fields(&sent, 0)?;
    let instructions = transcript.iter().zip(sent).filter(|(message, _)| !resumes && message.is_instruction());
    let instructions =
        instructions.map(|(message, sent)| SentMessage { message: message.clone(), sent: fields_of(sent) });
    let instructions = instructions.collect();
    Ok(Messages { transcript, instructions, current, only_answers })
}

/// Whether a message, which may have any shape, has the role of an instruction.
pub(super) fn is_instruction(value: &Value) -> bool {
    value["role"] == "system" || value["role"] == "developer"
}

/// Messages, and each as it was sent, under camelCase names and without nulls.
fn read_messages(mut values: Vec<Value>, from: usize) -> Result<(Vec<InputMessage>, Vec<Value>), InputRefused> {
    values.iter_mut().for_each(respell_message);
    let read = |(index, value): (usize, &Value)| {
        InputMessage::deserialize(value).map_err(|_| {
            let detail = format!("RunAgentInput.messages[{}]{}", from + index, fields::shape_fault(value));
            InputRefused::new(Rule::AgentRunMessagesInvalid, detail)
        })
    };
    let read: Result<Vec<_>, _> = values.iter().enumerate().map(read).collect();
    Ok((read?, values))
}

fn check_fields(sent: &[Value], from: usize) -> Result<(), InputRefused> {
    sent.iter().enumerate().try_for_each(|(index, message)| fields::check_message(message, from + index))
}

fn fields_of(sent: Value) -> Map<String, Value> {
    match sent {
        Value::Object(fields) => fields,
        _ => Map::new(),
    }
}

fn one_user(current: Vec<SentMessage>, resumes: bool) -> Result<(Option<UserMessage>, Vec<SentMessage>), InputRefused> {
    if resumes {
        refuse_if(
            !current.is_empty(),
            Rule::AgentRunMessagesInvalid,
            "RunAgentInput.messages must be empty with resume",
        )?;
        return Ok((None, vec![]));
    }
    let users = current.iter().filter(|sent| matches!(sent.message, InputMessage::User { .. })).count();
    let detail = "RunAgentInput.messages must contain exactly one user message";
    refuse_if(users != 1, Rule::AgentRunMessagesInvalid, detail)?;
    let mut current = current.into_iter();
    match current.next() {
        Some(SentMessage { message: InputMessage::User { id, content }, sent }) => {
            let user = UserMessage::read(id, content)?;
            let (fields, part_fields) = (fields::of_user(&sent), fields::of_parts(&sent));
            Ok((Some(UserMessage { fields, part_fields, ..user }), current.collect()))
        }
        _ => Err(InputRefused::new(Rule::AgentRunMessagesInvalid, "RunAgentInput.messages[0].role must be user")),
    }
}

impl UserMessage {
    /// Each row of the table is checked for all parts before the next row.
    fn read(id: String, content: Content) -> Result<Self, InputRefused> {
        let all_images = content.media().all(|media| media.is_image);
        refuse_if(!all_images, Rule::AgentRunMessagesInvalid, "binary content requires image mimeType")?;
        let all_by_url = content.media().all(|media| media.url.is_some_and(|url| !url.is_empty()));
        refuse_if(!all_by_url, Rule::AgentRunMessagesInvalid, "binary content requires url")?;
        let has_data = content.media().any(|media| media.has_data);
        refuse_if(has_data, Rule::AgentRunMessagesInvalid, "binary content data is not allowed")?;
        refuse_if(content.media().count() > ATTACHMENTS_MAX, Rule::AgentRunMessagesInvalid, "Too many attachments")?;
        let is_empty = is_blank_text(&content.text()) && content.media().next().is_none();
        refuse_if(is_empty, Rule::AgentRunMessagesInvalid, "RunAgentInput user message has neither text nor an image")?;
        let parts = match content {
            Content::Text(text) => vec![UserPart::Text(text)],
            Content::Parts(parts) => parts.into_iter().map(UserPart::of).collect(),
        };
        Ok(Self { id, parts, fields: Map::new(), part_fields: vec![] })
    }

    /// The text parts, joined by line ends.
    pub fn text(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            UserPart::Text(text) => Some(text.as_str()),
            UserPart::Image { .. } => None,
        });
        texts.collect::<Vec<_>>().join("\n")
    }
}

impl UserPart {
    #[expect(clippy::expect_used, reason = "called only for parts that are not text")]
    fn of(part: Part) -> Self {
        match part {
            Part::Text { text } => Self::Text(text),
            media => {
                let media = media.media().expect("not text");
                let mime_type = media.mime_type.map(str::to_ascii_lowercase);
                Self::Image { mime_type, url: media.url.unwrap_or_default().to_owned() }
            }
        }
    }
}

/// Closed: an unknown field is refused. Its own names are in snake_case, and in nothing else.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawForwardedProps {
    runtime_mode: Option<String>,
    client_time: Option<RawClientTime>,
}

impl RawForwardedProps {
    fn read(value: Option<Value>) -> Result<Self, InputRefused> {
        let given = value.filter(Value::is_object).unwrap_or(Value::Object(Map::new()));
        let props: Self = serde_json::from_value(given)
            .map_err(|_| InputRefused::new(Rule::AgentRunInputInvalid, FORWARDED_PROPS))?;
        props.mode().map(|_| props)
    }

    /// Whether the thread is an automation's is checked where threads are known.
    fn mode(&self) -> Result<RuntimeMode, InputRefused> {
        match self.runtime_mode.as_deref() {
            Some("chat") => Ok(RuntimeMode::Chat),
            Some("automation") => Ok(RuntimeMode::Automation),
            _ => Err(InputRefused::new(Rule::AgentRuntimeModeInvalid, FORWARDED_PROPS)),
        }
    }
}

/// The answers to interrupts; absent is none.
fn resume(body: &mut Map<String, Value>) -> Result<Vec<ResumeEntry>, InputRefused> {
    let entries = match body.remove("resume") {
        None => vec![],
        Some(Value::Array(entries)) => entries,
        Some(_) => return Err(InputRefused::resume("RunAgentInput.resume must be an array")),
    };
    let read = |(index, mut entry): (usize, Value)| {
        respell(&mut entry);
        let is_known = matches!(entry["status"].as_str(), Some("resolved" | "cancelled"));
        if entry.is_object() && !is_known {
            let detail = format!("RunAgentInput.resume[{index}].status must be \"resolved\" or \"cancelled\"");
            return Err(InputRefused::resume(detail));
        }
        let shape =
            |_| InputRefused::resume(format!("RunAgentInput.resume[{index}] must have an interruptId and a status"));
        let entry: ResumeEntry = serde_json::from_value(entry).map_err(shape)?;
        if entry.metadata.is_some() {
            return Err(InputRefused::resume(format!("RunAgentInput.resume[{index}].metadata is not supported")));
        }
        let edits = entry.edited_args().filter(|_| entry.status == ResumeStatus::Cancelled);
        if edits.is_some() {
            let detail = format!("RunAgentInput.resume[{index}].payload.editedArgs needs the status \"resolved\"");
            return Err(InputRefused::resume(detail));
        }
        Ok(entry)
    };
    entries.into_iter().enumerate().map(read).collect()
}

fn read_state(body: &mut Map<String, Value>) -> Result<Option<Value>, InputRefused> {
    let state = body.remove("state");
    if state.as_ref().is_some_and(|state| text_of(state).len() > STATE_BYTES_MAX) {
        let detail = format!("RunAgentInput.state exceeds {STATE_BYTES_MAX} bytes");
        return Err(InputRefused::new(Rule::AgentRunInputInvalid, detail));
    }
    Ok(state)
}

/// A list of plain objects; absent is empty.
fn list<T: DeserializeOwned>(body: &mut Map<String, Value>, name: &str) -> Result<Vec<T>, InputRefused> {
    let Some(mut value) = body.remove(name) else { return Ok(vec![]) };
    let Value::Array(items) = &mut value else {
        let detail = format!("RunAgentInput.{name} must be an array");
        return Err(InputRefused::new(Rule::AgentRunInputInvalid, detail));
    };
    items.iter_mut().for_each(respell);
    serde_json::from_value(value).map_err(|_| {
        InputRefused::new(Rule::AgentRunInputInvalid, format!("RunAgentInput.{name} does not have its shape"))
    })
}
