//! Two terminals and a client of the protocol of editors and SDKs, all attached to one session.

use serde_json::{Value, json};

use super::{
    attach::{CTRL_D, attached, script, start_on, wait_for_question},
    sse::Stream,
};
use crate::fixtures::{
    http::Http,
    process::{Server, eventually},
    test_home::{Engine, both_engines},
};

/// A client as an SDK is one: it has an id of its own, prompts, votes, and follows the session's frames.
struct SdkClient {
    http: Http,
    session: String,
    id: String,
    frames: Stream,
}

impl SdkClient {
    fn attach(server: &Server) -> Self {
        let mut http = Http::new(server);
        let opened = http.post("/session", &json!({})).good();
        assert_eq!(opened["attached"], true, "the session of the terminals: {opened}");
        let [session, id] = ["sessionId", "clientId"].map(|name| opened[name].as_str().unwrap().to_owned());
        let own = format!("x-qwen-client-id: {id}");
        let frames = Stream::read(http.stream(&format!("/session/{session}/events"), &[&own]));
        Self { http, session, id, frames }
    }

    /// How terminals name it.
    fn display_name(&self) -> String {
        format!("client_{}", &self.id[self.id.len() - 8..])
    }

    fn post(&mut self, what: &str, body: &Value) {
        let (path, own) = (format!("/session/{}/{what}", self.session), format!("x-qwen-client-id: {}", self.id));
        let response = self.http.send("POST", &path, &[&own], &body.to_string()).unwrap();
        assert!((200..300).contains(&response.status), "{response:?}");
    }

    fn prompt(&mut self, text: &str) {
        self.post("prompt", &json!({"prompt": [{"type": "text", "text": text}]}));
    }

    /// Votes for the permission request with this title.
    fn allow(&mut self, title: &str) {
        let request = self.request(title);
        self.post(&format!("permission/{request}"), &json!({"outcome": {"outcome": "selected", "optionId": "allow"}}));
    }

    /// The id of the permission request with this title, once it arrives.
    fn request(&self, title: &str) -> String {
        let request = self
            .frames
            .wait(title, |frame| frame["type"] == "permission_request" && frame["data"]["toolCall"]["title"] == title);
        request["data"]["requestId"].as_str().unwrap().to_owned()
    }

    /// The client that sent the prompt with this text, once the prompt arrives.
    fn prompted_by(&self, text: &str) -> String {
        let prompt = self.frames.wait(text, |frame| {
            let update = &frame["data"]["update"];
            update["sessionUpdate"] == "user_message_chunk" && update["content"]["text"] == text
        });
        prompt["originatorClientId"].as_str().unwrap().to_owned()
    }

    /// The client that decided the permission request with this title, once it is decided.
    fn decided_by(&self, title: &str) -> String {
        let request = self.request(title);
        let resolved = self.frames.wait("the decision", |frame| {
            frame["type"] == "permission_resolved" && frame["data"]["requestId"] == request.as_str()
        });
        assert_eq!(resolved["data"]["outcome"], json!({"outcome": "selected", "optionId": "allow"}));
        let voter = resolved["data"].get("voterClientId").or(resolved.get("originatorClientId"));
        voter.and_then(Value::as_str).unwrap().to_owned()
    }

    /// Waits for the reply with this text, which may arrive in pieces.
    fn gets_reply(&self, text: &str) {
        eventually(text, || {
            let frames = self.frames.so_far();
            let updates = frames.iter().map(|frame| &frame["data"]["update"]);
            let pieces = updates.filter(|update| update["sessionUpdate"] == "agent_message_chunk");
            let replies: String = pieces.filter_map(|update| update["content"]["text"].as_str()).collect();
            replies.contains(text).then_some(())
        });
    }
}

/// A prompt whose agent asks for a permission and then replies.
fn ask(title: &str) -> String {
    script(json!([{"ask": {"title": title, "command": "make"}}, {"say": format!("{title} Done.")}]))
        .trim_end()
        .to_owned()
}

#[both_engines]
fn two_terminals_and_an_sdk_share_prompts_and_votes_and_a_detach_ends_nothing(engine: Engine) {
    let (home, server) = start_on(engine);
    let (one, two) = (attached(&home, &server), attached(&home, &server));
    let mut sdk = SdkClient::attach(&server);

    // A prompt of the first terminal, and a vote of the SDK.
    let first = ask("First?");
    one.types(&format!("{first}\n"));
    wait_for_question(&one, 1);
    wait_for_question(&two, 1);
    let of_one = sdk.prompted_by(&first);
    assert_ne!(of_one, sdk.id);
    two.shows(&format!(": {first}\n"));
    sdk.allow("First?");
    for terminal in [&one, &two] {
        terminal.shows(&format!("permission allowed by {}\nFirst? Done.\n>\n", sdk.display_name()));
    }
    assert_eq!(sdk.decided_by("First?"), sdk.id);

    // A prompt of the SDK, and a vote of the second terminal.
    let second = ask("Second?");
    sdk.prompt(&second);
    wait_for_question(&one, 2);
    wait_for_question(&two, 2);
    for terminal in [&one, &two] {
        terminal.shows(&format!("{}: {second}\n", sdk.display_name()));
    }
    two.types("y\n");
    two.shows("permission allowed by you\nSecond? Done.\n>\n");
    let of_two = sdk.decided_by("Second?");
    assert!(of_two != sdk.id && of_two != of_one, "{of_two}");
    one.shows(&format!("permission allowed by client_{}\nSecond? Done.\n>\n", &of_two[of_two.len() - 8..]));

    // The second terminal detaches while its own prompt runs.
    let third = ask("Third?");
    two.types(&format!("{third}\n"));
    wait_for_question(&one, 3);
    wait_for_question(&two, 3);
    assert_eq!(sdk.prompted_by(&third), of_two);
    two.types(CTRL_D);
    let ended = two.ends();
    assert!(ended.code == 0 && ended.screen.contains("detached; the session goes on"), "{}", ended.screen);
    sdk.allow("Third?");
    one.shows("Third? Done.\n>\n");
    sdk.gets_reply("Third? Done.");
    one.types("still here\n");
    one.shows("\nstill here\n>\n");
    assert_eq!(sdk.prompted_by("still here"), of_one);

    let ends = ["session_closed", "session_died", "prompt_cancelled", "turn_error"];
    let frames = sdk.frames.so_far();
    assert!(!frames.iter().any(|frame| ends.iter().any(|end| frame["type"] == *end)), "{frames:#?}");
    one.types(CTRL_D);
    assert_eq!(one.ends().code, 0);
}
