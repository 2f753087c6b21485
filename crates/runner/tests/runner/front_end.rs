//! The front end's tools and state with the model backend, against the pure kernel and a scripted endpoint.

use ostler_protocol::kernel::{commands::CommandType, events::EventType, runs::TerminalStatus};
use ostler_stand_ins::chat;
use serde_json::{Value, json};

use crate::{
    kernel::{Kernel, of_type},
    model::{environment, start},
};

fn tools() -> Value {
    json!([{"name": "get_weather", "description": "Weather", "parameters": {"type": "object",
        "properties": {"city": {"type": "string"}}, "required": ["city"]}}])
}

#[tokio::test]
async fn a_model_is_offered_the_tools_and_its_call_ends_the_turn() {
    let (endpoint, kernel) = (chat(), Kernel::new(json!({})));
    let payload = json!({"prompt": r#"[[call:get_weather {"city":"Oslo"}]]"#, "context": {"tools": tools()}});
    let command = kernel.submit(CommandType::Turn, payload);
    start(&kernel, environment(endpoint.base_url())).await.unwrap();
    let offered = endpoint.seen()[0].body["tools"].clone();
    assert_eq!(offered[0]["function"]["parameters"], tools()[0]["parameters"]);
    let calls = of_type(&kernel, EventType::ToolCall);
    assert_eq!((calls.len(), &calls[0]["method"], &calls[0]["status"]), (1, &json!("front-end"), &json!("started")));
    assert_eq!(calls[0]["arguments"], r#"{"city":"Oslo"}"#);
    assert_eq!(kernel.command(command).terminal.unwrap().status, TerminalStatus::Completed);
    // The result follows the call, and the model continues.
    let answer = json!({"toolCallId": calls[0]["toolCallId"], "name": "get_weather", "arguments": r#"{"city":"Oslo"}"#,
        "content": "12 °C"});
    let payload = json!({"prompt": "[Result of the tool get_weather] 12 °C", "content": [],
        "context": {"tools": tools(), "toolAnswers": [answer]}});
    kernel.submit(CommandType::Turn, payload);
    start(&kernel, environment(endpoint.base_url())).await.unwrap();
    let messages = endpoint.seen()[1].body["messages"].as_array().unwrap().clone();
    let roles: Vec<_> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["user", "assistant", "tool"]);
    assert_eq!(messages[1]["tool_calls"][0]["id"], messages[2]["tool_call_id"]);
    assert_eq!(messages[2]["content"], "12 °C");
    let last = of_type(&kernel, EventType::AssistantMessage).pop().unwrap();
    assert_eq!(last["text"], "The tool said: 12 °C");
}

#[tokio::test]
async fn a_call_that_does_not_fit_is_returned_to_the_model() {
    for (call, why) in [
        (r#"[[call:get_weather {"city":7}]]"#, "do not fit the tool"),
        ("[[call:format_disk]]", "there is no tool"),
        (r#"[[call:update_shared_state {"patch":[{"op":"remove","path":"/x"}]}]]"#, "does not apply"),
    ] {
        let (endpoint, kernel) = (chat(), Kernel::new(json!({})));
        let context = json!({"tools": tools(), "state": {"count": 1}});
        kernel.submit(CommandType::Turn, json!({"prompt": call, "context": context}));
        start(&kernel, environment(endpoint.base_url())).await.unwrap();
        let calls = of_type(&kernel, EventType::ToolCall);
        assert_eq!(calls.last().unwrap()["status"], "failed", "{call}");
        let last = of_type(&kernel, EventType::AssistantMessage).pop().unwrap();
        assert!(last["text"].as_str().unwrap().contains(why), "{call}: {last}");
    }
}

#[tokio::test]
async fn a_model_reads_the_shared_state_and_changes_it() {
    let (endpoint, kernel) = (chat(), Kernel::new(json!({})));
    let patch = json!([{"op": "replace", "path": "/count", "value": 2}]);
    let prompt = format!("[[call:update_shared_state {}]]", json!({"patch": patch}));
    kernel.submit(CommandType::Turn, json!({"prompt": prompt, "context": {"state": {"count": 1}}}));
    start(&kernel, environment(endpoint.base_url())).await.unwrap();
    let first = &endpoint.seen()[0].body;
    assert!(first["messages"][0]["content"].as_str().unwrap().contains(r#"{"count":1}"#), "{first}");
    assert_eq!(of_type(&kernel, EventType::State), [json!({"patch": patch})]);
    let last = of_type(&kernel, EventType::AssistantMessage).pop().unwrap();
    assert_eq!(last["text"], r#"The tool said: The state is now: {"count":2}"#);
}

#[tokio::test]
async fn results_keep_the_message_that_led_to_their_calls_whatever_the_window() {
    let (endpoint, kernel) = (chat(), Kernel::new(json!({})));
    let config = json!({"router": "off", "messagesMax": 0});
    kernel.submit(CommandType::Turn, json!({"prompt": "hello", "runtimeConfig": config}));
    let prompt = r#"[[call:get_weather {"city":"Oslo"}]]"#;
    let context = json!({"tools": tools()});
    kernel.submit(CommandType::Turn, json!({"prompt": prompt, "context": context, "runtimeConfig": config}));
    start(&kernel, environment(endpoint.base_url())).await.unwrap();
    assert_eq!(endpoint.seen()[1].body["messages"], json!([{"role": "user", "content": prompt}]));
    let call = of_type(&kernel, EventType::ToolCall).remove(0);
    let answer = json!({"toolCallId": call["toolCallId"], "name": "get_weather", "arguments": call["arguments"],
        "content": "12 °C"});
    let context = json!({"tools": tools(), "toolAnswers": [answer]});
    let payload = json!({"prompt": "12 °C", "content": [], "context": context, "runtimeConfig": config});
    kernel.submit(CommandType::Turn, payload);
    start(&kernel, environment(endpoint.base_url())).await.unwrap();
    let messages = endpoint.seen()[2].body["messages"].as_array().unwrap().clone();
    let roles: Vec<_> = messages.iter().map(|message| message["role"].as_str().unwrap()).collect();
    assert_eq!((roles, &messages[0]["content"]), (vec!["user", "assistant", "tool"], &json!(prompt)));
    let steps: Vec<_> = of_type(&kernel, EventType::Step).iter().map(|step| step["status"].clone()).collect();
    assert_eq!(steps, ["started", "finished"].repeat(3));
}
