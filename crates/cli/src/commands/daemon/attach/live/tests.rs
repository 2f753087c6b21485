//! Typed lines, against a server that records what it receives.

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{Request, Response as HttpResponse};
use http_body_util::{BodyExt, Full};
use ostler_client::{Client, ReplyBody};
use serde_json::{Value, json};

use super::*;
use crate::terminal::{output::Format, output_flags::FilterFlag};

type Received = Arc<Mutex<Vec<String>>>;

/// What a request asks for: a prompt by its text, anything else by the last part of its path.
fn name_of(request: &Request<Bytes>) -> String {
    let body: Value = serde_json::from_slice(request.body()).unwrap_or_default();
    let last = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
    body["prompt"][0]["text"].as_str().map_or(last, str::to_owned)
}

/// A terminal whose agent has the command `/review`. The server lists the agent's commands later than it accepts prompts.
fn live() -> (Live, Received) {
    let received = Received::default();
    let recorded = received.clone();
    let call = move |request: Request<Bytes>| -> BoxFuture<'static, HttpResponse<ReplyBody>> {
        let recorded = recorded.clone();
        async move {
            let name = name_of(&request);
            let is_look_up = name == "supported-commands";
            if is_look_up {
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            recorded.lock().unwrap().push(name);
            let body = match is_look_up {
                true => {
                    json!({"v": 1, "sessionId": "s", "availableCommands": [{"name": "review"}], "availableSkills": []})
                }
                false => json!({"promptId": "p", "lastEventId": 0}),
            };
            let body: ReplyBody =
                Full::new(Bytes::from(body.to_string())).map_err(|never| match never {}).boxed_unsync();
            HttpResponse::builder().status(200).body(body).unwrap()
        }
        .boxed()
    };
    let session = SessionClient::new(Client::in_process(Arc::new(call), None), "s".into(), None);
    let output = Output::new(Format::Jsonl, FilterFlag::default());
    let live = Live::new(session, output, InputMode::None, Earlier::All, String::new(), String::new(), false);
    (live, received)
}

#[tokio::test(start_paused = true)]
async fn typed_lines_are_sent_in_their_order_and_commands_are_listed_once() {
    let (mut live, received) = live();
    for typed in ["/review this", "then this", "/nope", "/review again"] {
        live.line(Some(typed.to_owned()));
    }
    while let Some(response) = live.requests.next().await {
        live.response(response).unwrap();
    }
    assert_eq!(*received.lock().unwrap(), ["supported-commands", "/review this", "then this", "/review again"]);
    assert_eq!((live.submitting, live.unsent.len()), (0, 0));
}

#[tokio::test]
async fn a_question_that_is_shown_again_keeps_what_was_typed() {
    let (mut live, _) = live();
    (live.input, live.replayed) = (InputMode::Terminal, None);
    let (_sender, typed) = TypedLines::of_channel();
    live.typed = Some(typed);
    let discards = |live: &Live| live.typed.as_ref().unwrap().discards();
    let request = |id: &str| -> ReceivedFrame {
        let options = json!([{"optionId": "once", "name": "Once", "kind": "allow_once"}]);
        let call = json!({"toolCallId": "t", "title": "Go on?", "rawInput": {"command": "make"}});
        let data = json!({"requestId": id, "sessionId": "s", "toolCall": call, "options": options});
        serde_json::from_value(json!({"id": 1, "v": 1, "type": "permission_request", "data": data})).unwrap()
    };
    live.frame(request("first"));
    live.ask();
    assert_eq!(discards(&live), 1, "what was typed before the question is no answer");
    live.frame(request("second"));
    live.note("something else is printed\n");
    live.ask();
    assert_eq!(discards(&live), 1, "the same question");
    live.typed(Some(Typed::Key('y')));
    live.ask();
    assert_eq!(discards(&live), 2, "the next question");
}

#[tokio::test]
async fn a_piped_line_that_is_not_utf8_ends_the_input_with_a_failure() {
    for (input, end) in [(InputMode::Piped, Some(2)), (InputMode::Terminal, None)] {
        let (mut live, _) = live();
        live.input = input;
        live.typed(Some(Typed::InvalidLine));
        assert_eq!(live.end, end, "{input:?}");
    }
}

#[test]
fn a_long_session_is_received_from_the_oldest_frame_that_can_be_held() {
    for (last_event_id, start) in [(0, 0), (20_000, 0), (20_002, 2), (3_000_000, 2_980_000)] {
        assert_eq!(start_of_replay(last_event_id), start, "{last_event_id}");
    }
}
