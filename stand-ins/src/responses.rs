//! The part of the Responses API that Codex uses: `POST …/responses` with the whole history. The reply is a stream of events.
//!
//! | marker | reply |
//! |---|---|
//! | none | a text in a few pieces, with usage (11 tokens in, 7 out; `[[tokens:N]]`: N in, N out) |
//! | `minimal` | a whole text at once, no usage |
//! | `delta-only` | pieces of a text that is never finished |
//! | `think` | a reasoning summary, then a text |
//! | `tool:COMMAND`, `escalate:COMMAND` | a shell command, the second outside the sandbox; afterwards a text |
//! | `call:SERVER NAME ARGUMENTS` | a call of a tool of this MCP server; afterwards its result |
//! | `loop:COMMAND` | a shell command, again and again |
//! | `background:COMMAND` | a shell command that is not awaited; afterwards a text |
//! | `spawn:PROMPT` | a sub-agent with this prompt, which is awaited; afterwards a text |
//! | `slow:N` | a text of N pieces, one every 50 ms |
//! | `hold` | one piece, then silence |
//! | `status:N` | HTTP status N |
//! | `later:N` | HTTP status 429, for the first N requests whose history contains this marker |
//! | `overflow` | the context window is exceeded |
//! | `storm` | the same, for every request whose history contains this marker |
//! | `cut`, `cut-once` | the stream breaks off in mid-sentence, always or at the first request |

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    Endpoint, RecordedRequest,
    endpoint::{Reply, Then},
    marker,
};

const PIECE_MS: u64 = 50;
/// A command that runs longer than this is left running in the background.
const BACKGROUND_MS: u64 = 250;
const PIECES: usize = 3;
const USAGE: (u64, u64) = (11, 7);

/// A Responses endpoint on loopback.
pub fn responses() -> Endpoint {
    Endpoint::start(reply)
}

fn reply(seen: &RecordedRequest, before: &[RecordedRequest]) -> Reply {
    if !seen.path.ends_with("/responses") {
        return Reply::Status(404, json!({"error": {"message": "no such path"}}));
    }
    let history = History::read(&seen.body);
    if history.texts.iter().any(|text| marker::find(text, "storm").is_some()) {
        return overflow();
    }
    if let Some(times) = history.find("later")
        && before.iter().filter(|seen| History::read(&seen.body).find("later").is_some()).count() < times
    {
        return Reply::Status(429, json!({"error": {"message": "later, please", "type": "rate_limit_exceeded"}}));
    }
    let Some(marker) = marker::markers(history.last).next() else { return history.text_reply(PIECES, 0) };
    match marker.name {
        "minimal" => stream(vec![done(&message("the least that works")), completed(None)]),
        "delta-only" => stream(vec![added(), delta("only a delta"), completed(Some(history.usage()))]),
        "think" => {
            let thought =
                json!({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "a thought"}]});
            let reply = message("after some thought");
            stream(vec![done(&thought), done(&reply), completed(Some(history.usage()))])
        }
        "tool" | "escalate" | "background" | "loop" if history.outputs.is_empty() || marker.name == "loop" => {
            let mut arguments = json!({"cmd": marker.argument});
            if marker.name == "escalate" {
                arguments["sandbox_permissions"] = "require_escalated".into();
                arguments["justification"] = "the prompt asks for it".into();
            }
            if marker.name == "background" {
                arguments["yield_time_ms"] = BACKGROUND_MS.into();
            }
            history.call(before.len(), json!({"name": "exec_command", "arguments": arguments.to_string()}))
        }
        "call" if history.outputs.is_empty() => {
            let mut words = marker.argument.splitn(3, ' ');
            let [server, name, arguments] = std::array::from_fn(|_| words.next().unwrap_or("{}"));
            let namespace = format!("mcp__{server}");
            history.call(before.len(), json!({"namespace": namespace, "name": name, "arguments": arguments}))
        }
        "call" => history.results_reply(),
        "spawn" if history.outputs.len() < 2 => {
            let (name, arguments) = match history.outputs[..] {
                [] => ("spawn_agent", json!({"message": marker.argument})),
                [spawned, ..] => {
                    let spawned: Value = serde_json::from_str(spawned).unwrap_or_default();
                    ("wait_agent", json!({"targets": [spawned["agent_id"]]}))
                }
            };
            let arguments = arguments.to_string();
            history.call(before.len(), json!({"namespace": "multi_agent_v1", "name": name, "arguments": arguments}))
        }
        "slow" => history.text_reply(marker.argument.parse().unwrap_or(PIECES), PIECE_MS),
        "hold" => Reply::Stream { events: at_once(vec![added(), delta("one piece, and then")]), then: Then::Hold },
        "status" => {
            let status = marker.argument.parse().unwrap_or(500);
            Reply::Status(status, json!({"error": {"message": format!("status {status}"), "type": "stand_in"}}))
        }
        "overflow" => overflow(),
        "cut" => stream(vec![added(), delta("half a sen")]),
        "cut-once" if !before.iter().any(|seen| History::read(&seen.body).last == history.last) => {
            stream(vec![added(), delta("half a sen")])
        }
        _ => history.text_reply(PIECES, 0),
    }
}

/// The messages of a request.
struct History<'a> {
    texts: Vec<&'a str>,
    /// The last message of the user.
    last: &'a str,
    /// The outputs of tools after it.
    outputs: Vec<&'a str>,
    /// The texts in outputs that have parts.
    parts: Vec<&'a str>,
}

impl<'a> History<'a> {
    fn read(body: &'a Value) -> Self {
        let mut history = Self { texts: vec![], last: "", outputs: vec![], parts: vec![] };
        for item in body["input"].as_array().into_iter().flatten() {
            if item["type"] == "function_call_output" {
                history.outputs.push(item["output"].as_str().unwrap_or_default());
                let parts = item["output"].as_array().into_iter().flatten();
                history.parts.extend(parts.filter_map(|part| part["text"].as_str()));
            }
            if item["role"] != "user" {
                continue;
            }
            let parts = item["content"].as_array().into_iter().flatten();
            for text in parts.filter_map(|part| part["text"].as_str()) {
                history.texts.push(text);
                history.last = text;
                history.outputs.clear();
                history.parts.clear();
            }
        }
        history
    }

    /// The number in the first marker of this name in the whole history.
    fn find(&self, name: &str) -> Option<usize> {
        self.texts.iter().find_map(|text| marker::find(text, name))?.parse().ok()
    }

    fn usage(&self) -> (u64, u64) {
        let count = marker::find(self.last, "tokens").and_then(|count| count.parse().ok());
        count.map_or(USAGE, |count| (count, count))
    }

    /// A call of a function. Each has a different id, like a real provider's.
    fn call(&self, number: usize, function: Value) -> Reply {
        let mut call = json!({"type": "function_call", "call_id": format!("call_{number}")});
        call.as_object_mut()
            .into_iter()
            .for_each(|call| call.extend(function.as_object().cloned().unwrap_or_default()));
        stream(vec![done(&call), completed(Some(self.usage()))])
    }

    /// A text that repeats the results of tools.
    fn results_reply(&self) -> Reply {
        let results = self.outputs.iter().chain(&self.parts).copied().collect::<Vec<_>>().join(" ");
        stream(vec![done(&message(&format!("The tool said: {results}"))), completed(Some(self.usage()))])
    }

    fn text_reply(&self, pieces: usize, every_ms: u64) -> Reply {
        let text = format!("You said: {}", self.last);
        let size = text.chars().count().div_ceil(pieces.max(1)).max(1);
        let chars: Vec<_> = text.chars().collect();
        let deltas = chars.chunks(size).map(|piece| delta(&piece.iter().collect::<String>()));
        let pause = Duration::from_millis(every_ms);
        let mut events = at_once(vec![added()]);
        events.extend(deltas.map(|delta| (pause, delta)));
        events.extend(at_once(vec![done(&message(&text)), completed(Some(self.usage()))]));
        Reply::Stream { events, then: Then::End }
    }
}

fn stream(events: Vec<Value>) -> Reply {
    Reply::Stream { events: at_once(events), then: Then::End }
}

fn at_once(events: Vec<Value>) -> Vec<(Duration, Value)> {
    events.into_iter().map(|event| (Duration::ZERO, event)).collect()
}

fn message(text: &str) -> Value {
    json!({"type": "message", "id": "msg_1", "role": "assistant", "content": [{"type": "output_text", "text": text}]})
}

fn added() -> Value {
    json!({"type": "response.output_item.added", "output_index": 0,
        "item": {"type": "message", "id": "msg_1", "role": "assistant", "content": []}})
}

fn delta(text: &str) -> Value {
    json!({"type": "response.output_text.delta", "item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": text})
}

fn done(item: &Value) -> Value {
    json!({"type": "response.output_item.done", "output_index": 0, "item": item})
}

fn completed(usage: Option<(u64, u64)>) -> Value {
    let usage = usage.map(|(input, output)| {
        json!({"input_tokens": input, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": output,
            "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": input + output})
    });
    json!({"type": "response.completed", "response": {"id": "resp_1", "usage": usage}})
}

fn overflow() -> Reply {
    let error =
        json!({"code": "context_length_exceeded", "message": "Your input exceeds the context window of this model."});
    stream(vec![json!({"type": "response.failed", "response": {"id": "resp_1", "error": error}})])
}
