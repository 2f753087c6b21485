//! OpenAI-compatible chat completions: `POST …/chat/completions` with the whole history. The reply is a stream of chunks, if the
//! client asks for one.
//! After the result of a tool, the reply repeats the result.
//!
//! | marker | reply |
//! |---|---|
//! | (a tool `respond_in_schema`) | a call of it, with the word `stand-in` for each property |
//! | none | the user's text, word by word, with usage (10 tokens in, 5 out) |
//! | `run:COMMAND` | a call of `run_shell_command` |
//! | `once:COMMAND` | the same for the first request; afterwards the user's text |
//! | `loop` | a call of an unknown tool, again and again |
//! | `call:NAME ARGUMENTS` | a call of this tool; several at once between `\|\|` |
//! | `rounds:N` | N calls of `time_now`, one after the other |
//! | `think` | a thought, then a text |
//! | `recall` | all earlier messages |
//! | `slow:N` | N words, one every 50 ms; 600 by default |
//! | `hold` | one word, then silence |
//! | `status:N` | HTTP status N |
//! | `busy:N` | HTTP status 429 the first N times |
//! | `cut`, `unfinished` | the connection breaks, or the stream ends, in the middle |
//! | `garbage`, `flood` | an event that is not JSON, or that is too long |
//! | `error` | an error in the middle of the stream |
//! | `plan:JSON` | to a router, a call of `make_plan` with these arguments; the marker before it decides what the worker gets. Results of tools are not planned |
//! | `plan-text:TEXT` | to a router, this text |
//! | `plan-call:NAME JSON` | to a router, a call of this tool |
//! | `plan-mixed:JSON` | to a router, a word and then such a call |
//! | `plan-hold`, `plan-cut`, `plan-long` | to a router, silence, a connection that breaks, or a text that is too long |
//! | `nothing`, `length` | an empty reply, or one that reached the limit of its length |

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    Endpoint, RecordedRequest,
    endpoint::{Reply, Then},
    marker,
};

const WORDS_MAX: usize = 600;
const WORD_MS: u64 = 50;
const FLOOD_BYTES: usize = 4 * 1024 * 1024;
/// The function that a router calls.
const PLAN_FUNCTION: &str = "make_plan";
const PLAN_MARKER: &str = "plan";
const LONG_PLAN_BYTES: usize = 64 * 1024;

/// A chat endpoint on loopback.
pub fn chat() -> Endpoint {
    Endpoint::start(reply)
}

/// A chat endpoint that requires a key, and repeats a wrong one in its error.
pub fn chat_with_key(key: &str) -> Endpoint {
    let expected = Some(format!("Bearer {key}"));
    Endpoint::start(move |seen, before| match seen.authorization == expected {
        true => reply(seen, before),
        false => refusal(401, &format!("not with {:?}", seen.authorization)),
    })
}

/// A client that asks for no stream gets the text of the stream in one piece.
fn reply(seen: &RecordedRequest, before: &[RecordedRequest]) -> Reply {
    match streamed_reply(seen, before) {
        Reply::Stream { events, .. } if seen.body["stream"] != true => Reply::Status(200, completion(&events)),
        reply => reply,
    }
}

fn completion(events: &[(Duration, Value)]) -> Value {
    let pieces = events.iter().filter_map(|(_, event)| event["choices"][0]["delta"]["content"].as_str());
    let message = json!({"role": "assistant", "content": pieces.collect::<String>()});
    json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "stand-in",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}})
}

fn streamed_reply(seen: &RecordedRequest, before: &[RecordedRequest]) -> Reply {
    if !seen.path.ends_with("/chat/completions") {
        return refusal(404, "no such path");
    }
    if let Some(completion) = schema_reply(&seen.body) {
        return completion;
    }
    let history = History::read(&seen.body);
    let prompt = history.last_prompt();
    if let Some(planned) = plan_reply(&seen.body, &prompt).filter(|_| history.tool_result().is_none()) {
        return planned;
    }
    let marker = marker::markers(&prompt).filter(|marker| !marker.name.starts_with(PLAN_MARKER)).last();
    let (name, argument) = marker.map_or(("", ""), |marker| (marker.name, marker.argument));
    let again = || before.iter().filter(|earlier| earlier.body == seen.body).count();
    match (name, history.tool_result()) {
        ("status", _) => refusal(argument.parse().unwrap_or(500), "as you wish"),
        ("busy", _) if again() < argument.parse().unwrap_or(1) => refusal(429, "not now"),
        ("loop", _) => stream(call("call_loop", "no_such_tool", &json!({})), Then::End),
        ("run" | "once", None) if name == "run" || is_first(argument, before) => {
            let arguments = json!({"command": argument, "description": "as requested", "is_background": false});
            // Each call has a different id, like a real provider's.
            stream(call(&format!("call_{}", before.len()), "run_shell_command", &arguments), Then::End)
        }
        ("call", None) => stream(calls(argument), Then::End),
        ("rounds", _) if history.tool_results() < argument.parse().unwrap_or(1) => {
            stream(call(&format!("call_{}", before.len()), "time_now", &json!({})), Then::End)
        }
        (_, Some(result)) => text_reply(&format!("The tool said: {result}")),
        ("think", _) => {
            stream([vec![thought("let me "), thought("see"), text("thought")], end("stop")].concat(), Then::End)
        }
        ("recall", _) => text_reply(&history.earlier()),
        ("slow", _) => {
            let count = argument.parse().unwrap_or(WORDS_MAX);
            let words = (0..count).map(|number| (Duration::from_millis(WORD_MS), text(&format!("word{number} "))));
            Reply::Stream { events: words.chain(at_once(end("stop"))).collect(), then: Then::End }
        }
        ("hold", _) => stream(vec![text("one word ")], Then::Hold),
        ("cut", _) => stream(vec![text("half of it")], Then::Break),
        ("unfinished", _) => stream(vec![text("half of it")], Then::End),
        ("garbage", _) => stream(vec!["this is no JSON".into()], Then::End),
        ("flood", _) => stream(vec!["x".repeat(FLOOD_BYTES).into()], Then::End),
        ("error", _) => {
            stream(vec![text("half"), json!({"error": {"message": "the model fell over", "code": 500}})], Then::End)
        }
        ("nothing", _) => stream(end("stop"), Then::End),
        ("length", _) => stream([vec![text("as far as")], end("length")].concat(), Then::End),
        _ => text_reply(&format!("You said: {prompt}")),
    }
}

/// The reply to a request for an object of a given shape, which some agents make with a tool of this name: each property is the word
/// `stand-in`. `None` if the request is no such one.
fn schema_reply(body: &Value) -> Option<Reply> {
    let mut tools = body["tools"].as_array()?.iter().map(|tool| &tool["function"]);
    let tool = tools.find(|tool| tool["name"] == "respond_in_schema")?;
    let names = tool["parameters"]["properties"].as_object()?.keys();
    let arguments: Value = names.map(|name| (name.clone(), json!("stand-in"))).collect();
    if body["stream"] == true {
        return Some(stream(call("call_schema", "respond_in_schema", &arguments), Then::End));
    }
    let call = json!({"id": "call_schema", "type": "function",
        "function": {"name": "respond_in_schema", "arguments": arguments.to_string()}});
    let message = json!({"role": "assistant", "content": null, "tool_calls": [call]});
    let completion = json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "stand-in",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}});
    Some(Reply::Status(200, completion))
}

/// The reply to a router. `None` if the request is not a router's, or has no marker for it.
fn plan_reply(body: &Value, prompt: &str) -> Option<Reply> {
    let mut tools = body["tools"].as_array().into_iter().flatten().map(|tool| &tool["function"]["name"]);
    if !tools.any(|name| name == PLAN_FUNCTION) && !prompt.contains("<router>") {
        return None;
    }
    let marker = marker::markers(prompt).filter(|marker| marker.name.starts_with(PLAN_MARKER)).last()?;
    let planned = || calls(&format!("{PLAN_FUNCTION} {}", marker.argument));
    Some(match marker.name {
        "plan-text" => text_reply(marker.argument),
        "plan-call" => stream(calls(marker.argument), Then::End),
        "plan-mixed" => stream([vec![text("Planning. ")], planned()].concat(), Then::End),
        "plan-hold" => stream(vec![thought("let me see")], Then::Hold),
        "plan-cut" => stream(vec![text("{")], Then::Break),
        "plan-long" => text_reply(&"x".repeat(LONG_PLAN_BYTES)),
        _ => stream(planned(), Then::End),
    })
}

/// Whether no earlier request had this command.
fn is_first(command: &str, before: &[RecordedRequest]) -> bool {
    !before.iter().any(|earlier| marker::find(&History::read(&earlier.body).last_prompt(), "once") == Some(command))
}

/// The messages of a request.
struct History<'a> {
    messages: &'a [Value],
}

impl<'a> History<'a> {
    fn read(body: &'a Value) -> Self {
        Self { messages: body["messages"].as_array().map_or(&[], Vec::as_slice) }
    }

    /// The last message of the user, together with a plan that follows it in a message of its own.
    fn last_prompt(&self) -> String {
        let mut prompts = self.messages.iter().rev().filter(|message| message["role"] == "user").map(text_of);
        let last = prompts.next().unwrap_or_default();
        match last.starts_with("<plan>") {
            true => prompts.next().unwrap_or_default() + "\n\n" + &last,
            false => last,
        }
    }

    /// The results of tools, if those are the last messages.
    fn tool_result(&self) -> Option<String> {
        let last = self.messages.iter().rev().take_while(|message| message["role"] == "tool");
        let mut results: Vec<_> = last.map(text_of).collect();
        results.reverse();
        Some(results.join(" | ")).filter(|_| !results.is_empty())
    }

    /// How many results of tools follow the last prompt.
    fn tool_results(&self) -> usize {
        let turn = self.messages.iter().rev().take_while(|message| message["role"] != "user");
        turn.filter(|message| message["role"] == "tool").count()
    }

    fn earlier(&self) -> String {
        let (_, earlier) = self.messages.split_last().unwrap_or((&Value::Null, &[]));
        let line = |message: &Value| format!("{}={}", message["role"].as_str().unwrap_or("?"), text_of(message));
        earlier.iter().map(line).collect::<Vec<_>>().join(" | ")
    }
}

/// The text of a message, as a string or in parts.
fn text_of(message: &Value) -> String {
    match &message["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect::<Vec<_>>().join("\n"),
        _ => String::new(),
    }
}

fn chunk(delta: Value, finish_reason: Value) -> Value {
    json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "stand-in",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}]})
}

fn text(text: &str) -> Value {
    chunk(json!({"role": "assistant", "content": text}), Value::Null)
}

fn thought(text: &str) -> Value {
    chunk(json!({"role": "assistant", "content": null, "reasoning_content": text}), Value::Null)
}

/// A tool call in two pieces, as providers send it.
fn call(id: &str, name: &str, arguments: &Value) -> Vec<Value> {
    let arguments = arguments.to_string();
    let (first, second) = arguments.split_at(arguments.floor_char_boundary(arguments.len() / 2));
    let begin = json!({"role": "assistant", "content": null, "tool_calls": [{"index": 0, "id": id, "type": "function",
        "function": {"name": name, "arguments": first}}]});
    let rest = json!({"tool_calls": [{"index": 0, "function": {"arguments": second}}]});
    [vec![chunk(begin, Value::Null), chunk(rest, Value::Null)], end("tool_calls")].concat()
}

/// Several tool calls of one reply, each with its name and then its arguments in pieces, which alternate.
fn calls(wanted: &str) -> Vec<Value> {
    let wanted = wanted.split("||").map(|call| call.trim().split_once(' ').unwrap_or((call.trim(), "{}")));
    let (mut begins, mut rests) = (vec![], vec![]);
    for (index, (name, arguments)) in wanted.enumerate() {
        let (first, second) = arguments.split_at(arguments.floor_char_boundary(arguments.len() / 2));
        let begin = json!([{"index": index, "id": format!("call_{index}"), "type": "function",
            "function": {"name": name, "arguments": first}}]);
        begins.push(chunk(json!({"role": "assistant", "content": null, "tool_calls": begin}), Value::Null));
        let rest = json!([{"index": index, "function": {"arguments": second}}]);
        rests.push(chunk(json!({"tool_calls": rest}), Value::Null));
    }
    [begins, rests, end("tool_calls")].concat()
}

fn end(reason: &str) -> Vec<Value> {
    let usage = json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "stand-in",
        "choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}});
    vec![chunk(json!({}), reason.into()), usage, "[DONE]".into()]
}

fn text_reply(reply: &str) -> Reply {
    stream(reply.split_inclusive(' ').map(text).chain(end("stop")).collect(), Then::End)
}

fn stream(events: Vec<Value>, then: Then) -> Reply {
    Reply::Stream { events: at_once(events).collect(), then }
}

fn at_once(events: Vec<Value>) -> impl Iterator<Item = (Duration, Value)> {
    events.into_iter().map(|event| (Duration::ZERO, event))
}

fn refusal(status: u16, message: &str) -> Reply {
    Reply::Status(status, json!({"error": {"message": message, "type": "stand_in"}}))
}
