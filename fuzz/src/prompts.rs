//! Prompts that clients of the daemon send.

use ostler_protocol::{
    bodies::{JsonScan, RequestBody},
    daemon::prompts::{BLOCKS_MAX, PromptBlock, SubmitPrompt, prompt_text},
};
use serde_json::{Value, json};

use crate::Target;

pub(crate) static PROMPT: Target = Target {
    name: "prompt",
    seeds: prompts,
    words: &[
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "\"",
        "\\",
        "\\u0000",
        "\\ud800",
        "null",
        "true",
        "-1",
        "1e999",
        "18446744073709551616",
        "\"prompt\":",
        "\"type\":\"text\"",
        "\"type\":\"image\"",
        "\"type\":\"resource\"",
        "\"type\":\"resource_link\"",
        "\"text\":\"x\"",
        "\"mimeType\":\"image/png\"",
        "\"data\":\"AAAA\"",
        "\"uri\":\"file:///a\"",
        "\"deadlineMs\":",
        "\"_meta\":{}",
        "{\"type\":\"text\",\"text\":\"x\"},",
        "\u{feff}",
        "\u{202e}",
    ],
    attempt: prompt,
};

fn prompts() -> Vec<Vec<u8>> {
    let text = json!({"type": "text", "text": "fix the test"});
    let bodies = [
        json!({"prompt": [text]}),
        json!({"prompt": [text, {"type": "image", "mimeType": "image/png", "data": "AAAA"}]}),
        json!({"prompt": [{"type": "resource_link", "uri": "file:///a", "name": "a"}], "deadlineMs": 60_000}),
        json!({"prompt": [{"type": "resource", "resource": {"uri": "file:///b", "text": "B"}}], "retry": true}),
        json!({"prompt": [{"type": "text", "text": " "}], "_meta": {"source": "editor"}}),
        json!({"prompt": vec![text.clone(); BLOCKS_MAX]}),
        json!({"prompt": [{"type": "audio", "data": "AAAA"}]}),
        json!({"prompt": "hi"}),
    ];
    bodies.map(|body| body.to_string().into_bytes()).into()
}

/// A refused prompt has a rule; an accepted one has blocks within bounds whose text is that of the request.
fn prompt(case: &[u8]) {
    if let Err(failure) = JsonScan::new(SubmitPrompt::VALUES_MAX).feed(case) {
        assert!(failure.broken_rule().is_some(), "{failure:?}");
        return;
    }
    let Ok(request) = serde_json::from_slice::<SubmitPrompt>(case) else { return };
    for server_ms in [None, Some(1), Some(60_000)] {
        match request.deadline_ms(server_ms) {
            Ok(deadline_ms) => assert!(deadline_ms <= server_ms && deadline_ms != Some(0)),
            Err(failure) => assert_eq!(failure.rule_name(), Some("invalid-deadline-ms")),
        }
    }
    match request.blocks() {
        Ok(blocks) => accepted(&request.prompt, &blocks),
        Err(failure) => assert_eq!(failure.rule_name(), Some("prompt-invalid")),
    }
}

fn accepted(sent: &Value, blocks: &[PromptBlock]) {
    let sent = sent.as_array().expect("an accepted prompt is a list");
    assert_eq!(sent.len(), blocks.len());
    assert!((1..=BLOCKS_MAX).contains(&blocks.len()));
    assert!(!prompt_text(blocks).trim().is_empty(), "the agent always reads something");
    for (sent, block) in sent.iter().zip(blocks) {
        let (stored, noted) = (block.stored(), block.event_value(str::to_owned));
        assert_eq!((&stored["type"], &noted["type"]), (&sent["type"], &sent["type"]));
        match block {
            PromptBlock::Text(text) => {
                assert_eq!((sent["text"].as_str(), stored["text"].as_str()), (Some(&**text), Some(&**text)))
            }
            PromptBlock::Image { mime_type, data } => {
                assert!(mime_type.starts_with("image/") && !data.contains(['"', '<', ' ']));
                assert!(!noted.to_string().contains("base64"), "an image is in the command only");
            }
            PromptBlock::ResourceLink { uri, name } => {
                assert_eq!((sent["uri"].as_str(), sent["name"].as_str()), (Some(&**uri), Some(&**name)));
            }
            PromptBlock::Resource { uri, text } => {
                assert_eq!((stored["uri"].as_str(), stored["text"].as_str()), (Some(&**uri), Some(&**text)));
            }
        }
        let redacted = block.event_value(|_| "gone".to_owned());
        assert!(redacted.get("text").is_none_or(|text| text == "gone"), "every text is redacted");
    }
    // What is stored can be sent again, except images, which are stored as URLs.
    if !blocks.iter().any(|block| matches!(block, PromptBlock::Image { .. } | PromptBlock::Resource { .. })) {
        let again = Value::Array(blocks.iter().map(PromptBlock::stored).collect());
        let again = SubmitPrompt { prompt: again, ..SubmitPrompt::default() };
        assert_eq!(again.blocks().ok().as_deref(), Some(blocks));
    }
}
