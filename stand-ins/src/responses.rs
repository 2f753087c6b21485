//! The Responses API, as far as Codex uses it: `POST …/responses` with the whole history, answered by a stream of events.
//!
//! | marker | what happens |
//! |---|---|
//! | none | a text in a few pieces, with usage (11 tokens in, 7 out; `[[tokens:N]]`: N in, N out) |
//! | `minimal` | a whole text at once, no usage |
//! | `delta-only` | pieces of a text that is never finished |
//! | `think` | a reasoning summary, then a text |
//! | `tool:COMMAND`, `escalate:COMMAND` | a shell command, the second outside the sandbox; afterwards a text |
//! | `loop:COMMAND` | a shell command, again and again |
//! | `background:COMMAND` | a shell command that is not waited for; afterwards a text |
//! | `spawn:PROMPT` | an agent of its own that is asked this, and waited for; afterwards a text |
//! | `slow:N` | a text of N pieces, one every 50 ms |
//! | `hold` | one piece, then silence |
//! | `status:N` | HTTP status N |
//! | `later:N` | HTTP status 429, for the first N requests whose history holds this marker |
//! | `overflow` | the context window is exceeded |
//! | `storm` | the same, for every request whose history holds this marker |
//! | `cut`, `cut-once` | the stream breaks off in mid-sentence, always or at the first request |

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    Endpoint, Seen,
    endpoint::{Answer, Then},
    marker,
};

const PIECE_MS: u64 = 50;
/// After this long a command that goes on is left to itself.
const BACKGROUND_MS: u64 = 250;
const PIECES: usize = 3;
const USAGE: (u64, u64) = (11, 7);

/// A Responses endpoint on loopback.
pub fn responses() -> Endpoint {
    Endpoint::start(answer)
}

fn answer(seen: &Seen, before: &[Seen]) -> Answer {
    if !seen.path.ends_with("/responses") {
        return Answer::Status(404, json!({"error": {"message": "no such path"}}));
    }
    let asked = Asked::read(&seen.body);
    if asked.texts.iter().any(|text| marker::find(text, "storm").is_some()) {
        return overflow();
    }
    if let Some(times) = asked.find("later")
        && before.iter().filter(|seen| Asked::read(&seen.body).find("later").is_some()).count() < times
    {
        return Answer::Status(429, json!({"error": {"message": "later, please", "type": "rate_limit_exceeded"}}));
    }
    let Some(marker) = marker::markers(asked.last).next() else { return asked.say(PIECES, 0) };
    match marker.name {
        "minimal" => stream(vec![done(&message("the least that works")), completed(None)]),
        "delta-only" => stream(vec![added(), delta("only a delta"), completed(Some(asked.usage()))]),
        "think" => {
            let thought =
                json!({"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "a thought"}]});
            let said = message("after some thought");
            stream(vec![done(&thought), done(&said), completed(Some(asked.usage()))])
        }
        "tool" | "escalate" | "background" | "loop" if asked.outputs.is_empty() || marker.name == "loop" => {
            let mut arguments = json!({"cmd": marker.argument});
            if marker.name == "escalate" {
                arguments["sandbox_permissions"] = "require_escalated".into();
                arguments["justification"] = "the prompt asks for it".into();
            }
            if marker.name == "background" {
                arguments["yield_time_ms"] = BACKGROUND_MS.into();
            }
            asked.call(before.len(), json!({"name": "exec_command", "arguments": arguments.to_string()}))
        }
        "spawn" if asked.outputs.len() < 2 => {
            let (name, arguments) = match asked.outputs[..] {
                [] => ("spawn_agent", json!({"message": marker.argument})),
                [spawned, ..] => {
                    let spawned: Value = serde_json::from_str(spawned).unwrap_or_default();
                    ("wait_agent", json!({"targets": [spawned["agent_id"]]}))
                }
            };
            let arguments = arguments.to_string();
            asked.call(before.len(), json!({"namespace": "multi_agent_v1", "name": name, "arguments": arguments}))
        }
        "slow" => asked.say(marker.argument.parse().unwrap_or(PIECES), PIECE_MS),
        "hold" => Answer::Stream { events: at_once(vec![added(), delta("one piece, and then")]), then: Then::Hold },
        "status" => {
            let status = marker.argument.parse().unwrap_or(500);
            Answer::Status(status, json!({"error": {"message": format!("said {status}"), "type": "stand_in"}}))
        }
        "overflow" => overflow(),
        "cut" => stream(vec![added(), delta("half a sen")]),
        "cut-once" if !before.iter().any(|seen| Asked::read(&seen.body).last == asked.last) => {
            stream(vec![added(), delta("half a sen")])
        }
        _ => asked.say(PIECES, 0),
    }
}

/// What a request's history comes to.
struct Asked<'a> {
    texts: Vec<&'a str>,
    /// The last thing a person said.
    last: &'a str,
    /// What tools said after it.
    outputs: Vec<&'a str>,
}

impl<'a> Asked<'a> {
    fn read(body: &'a Value) -> Self {
        let mut asked = Self { texts: vec![], last: "", outputs: vec![] };
        for item in body["input"].as_array().into_iter().flatten() {
            if item["type"] == "function_call_output" {
                asked.outputs.push(item["output"].as_str().unwrap_or_default());
            }
            if item["role"] != "user" {
                continue;
            }
            let parts = item["content"].as_array().into_iter().flatten();
            for text in parts.filter_map(|part| part["text"].as_str()) {
                asked.texts.push(text);
                asked.last = text;
                asked.outputs.clear();
            }
        }
        asked
    }

    /// The number in the first marker of this name in the whole history.
    fn find(&self, name: &str) -> Option<usize> {
        self.texts.iter().find_map(|text| marker::find(text, name))?.parse().ok()
    }

    fn usage(&self) -> (u64, u64) {
        let count = marker::find(self.last, "tokens").and_then(|count| count.parse().ok());
        count.map_or(USAGE, |count| (count, count))
    }

    /// A call of a function, with an id of its own, as a provider's has.
    fn call(&self, number: usize, function: Value) -> Answer {
        let mut call = json!({"type": "function_call", "call_id": format!("call_{number}")});
        call.as_object_mut()
            .into_iter()
            .for_each(|call| call.extend(function.as_object().cloned().unwrap_or_default()));
        stream(vec![done(&call), completed(Some(self.usage()))])
    }

    fn say(&self, pieces: usize, every_ms: u64) -> Answer {
        let text = format!("You said: {}", self.last);
        let size = text.chars().count().div_ceil(pieces.max(1)).max(1);
        let chars: Vec<_> = text.chars().collect();
        let deltas = chars.chunks(size).map(|piece| delta(&piece.iter().collect::<String>()));
        let pause = Duration::from_millis(every_ms);
        let mut events = at_once(vec![added()]);
        events.extend(deltas.map(|delta| (pause, delta)));
        events.extend(at_once(vec![done(&message(&text)), completed(Some(self.usage()))]));
        Answer::Stream { events, then: Then::End }
    }
}

fn stream(events: Vec<Value>) -> Answer {
    Answer::Stream { events: at_once(events), then: Then::End }
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

fn overflow() -> Answer {
    let error =
        json!({"code": "context_length_exceeded", "message": "Your input exceeds the context window of this model."});
    stream(vec![json!({"type": "response.failed", "response": {"id": "resp_1", "error": error}})])
}
