//! One session, followed at the same time as frames of the daemon, as events of the manager, as runs of AG-UI and on a terminal.
//! All of them are translations of one log, so they agree: on what happened, on the texts, on the order and on the ids.

use std::{
    collections::{BTreeMap, BTreeSet},
    num::NonZeroU16,
};

use serde_json::{Value, json};

use super::sse::Stream;
use crate::fixtures::{
    http::Http,
    process::{Server, eventually},
    pty::Terminal,
    test_home::{Engine, TestHome, both_engines},
};

/// What happened, in the words of no dialect.
#[derive(Clone, Debug, PartialEq)]
enum Fact {
    /// The turn of a prompt begins.
    Prompt(String),
    /// A prompt waits for the turn that runs.
    Queued(String),
    Text(String),
    ToolStarts {
        call: String,
    },
    ToolEnds {
        call: String,
    },
    Asks {
        request: String,
        title: String,
    },
    Answered {
        request: String,
        option: Option<String>,
    },
    Cancels,
    Ends(&'static str),
    Renamed(String),
    Closed,
}

/// A fact, and the number of its event in the session. Texts that come in pieces have the number of the last one.
type Numbered = (i64, Fact);

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Adds a piece of a message to the text before it, or begins one.
fn add_text(facts: &mut Vec<Numbered>, seq: i64, piece: &Value) {
    match facts.last_mut() {
        Some((last, Fact::Text(whole))) => (*last, *whole) = (seq, format!("{whole}{}", text(piece))),
        _ => facts.push((seq, Fact::Text(text(piece)))),
    }
}

/// The facts that frames of the daemon report.
fn of_frames(frames: &[Value]) -> Vec<Numbered> {
    let mut facts = vec![];
    for frame in frames {
        let Some(id) = frame["id"].as_i64() else { continue };
        let (seq, data) = ((id + 1) / 2, &frame["data"]);
        let update = &data["update"];
        let fact = match frame["type"].as_str().unwrap() {
            "session_update" => match update["sessionUpdate"].as_str().unwrap() {
                "user_message_chunk" => Fact::Prompt(text(&update["content"]["text"])),
                "agent_message_chunk" => {
                    add_text(&mut facts, seq, &update["content"]["text"]);
                    continue;
                }
                "tool_call" => Fact::ToolStarts { call: text(&update["toolCallId"]) },
                "tool_call_update" if update["status"] == "completed" => {
                    Fact::ToolEnds { call: text(&update["toolCallId"]) }
                }
                _ => continue,
            },
            "pending_prompt_added" => Fact::Queued(text(&data["text"])),
            "permission_request" => {
                Fact::Asks { request: text(&data["requestId"]), title: text(&data["toolCall"]["title"]) }
            }
            "permission_resolved" => Fact::Answered {
                request: text(&data["requestId"]),
                option: data["outcome"]["optionId"].as_str().map(str::to_owned),
            },
            "prompt_cancelled" => Fact::Cancels,
            "turn_complete" if data["stopReason"] == "cancelled" => Fact::Ends("cancelled"),
            "turn_complete" => Fact::Ends("completed"),
            "session_metadata_updated" => Fact::Renamed(text(&data["displayName"])),
            "session_closed" => Fact::Closed,
            _ => continue,
        };
        facts.push((seq, fact));
    }
    facts
}

/// Events that can be recorded for a command before its turn begins.
const BEFORE_TURNS: [&str; 6] = ["user_message", "state", "lease", "permission_resolved", "session", "audit"];

/// The facts that events of the manager report. The log has the message of a prompt where it was submitted: it waits if another
/// command has not ended.
fn of_events(events: &[Value]) -> Vec<Numbered> {
    let mut facts = vec![];
    // The commands that have not ended, and the prompts of those that have not begun.
    let (mut open, mut waiting) = (BTreeSet::new(), BTreeMap::new());
    for event in events {
        let (seq, payload) = (event["sessionSeq"].as_i64().unwrap(), &event["payload"]);
        let (event_type, command) = (event["type"].as_str().unwrap(), text(&event["commandId"]));
        if !BEFORE_TURNS.contains(&event_type)
            && let Some(prompt) = waiting.remove(&command)
        {
            facts.push((seq, Fact::Prompt(prompt)));
        }
        if event_type == "terminal_status" {
            open.remove(&command);
        }
        let fact = match event_type {
            "user_message" => {
                let prompt = text(&payload["content"][0]["text"]);
                let waits = !open.is_empty();
                open.insert(command.clone());
                match waits {
                    true => {
                        waiting.insert(command, prompt.clone());
                        Fact::Queued(prompt)
                    }
                    false => Fact::Prompt(prompt),
                }
            }
            "assistant_delta" => {
                add_text(&mut facts, seq, &payload["delta"]);
                continue;
            }
            // The whole message repeats its pieces.
            "assistant_message" => {
                add_text(&mut facts, seq, &Value::Null);
                continue;
            }
            "tool_call" if payload["status"] == "started" => Fact::ToolStarts { call: text(&payload["toolCallId"]) },
            "tool_call" if payload["status"] == "completed" => Fact::ToolEnds { call: text(&payload["toolCallId"]) },
            "permission_request" => {
                Fact::Asks { request: text(&payload["permissionId"]), title: text(&payload["title"]) }
            }
            "permission_resolved" => Fact::Answered {
                request: text(&payload["permissionId"]),
                option: payload["optionId"].as_str().map(str::to_owned),
            },
            "audit" if payload["action"] == "command.cancel" => Fact::Cancels,
            "terminal_status" if payload["status"] == "cancelled" => Fact::Ends("cancelled"),
            "terminal_status" if payload["status"] == "completed" => Fact::Ends("completed"),
            "session" if payload["change"] == "renamed" => Fact::Renamed(text(&payload["title"])),
            "session" if payload["note"] == "daemon.session_closed" => Fact::Closed,
            _ => continue,
        };
        facts.push((seq, fact));
    }
    facts
}

/// The facts that the AG-UI events of one run report. A run ends where the agent asks; its ids are those of the log.
fn of_run(events: &[Value]) -> Vec<Fact> {
    let mut facts = vec![];
    for event in events {
        let call = || text(&event["toolCallId"]);
        facts.push(match event["type"].as_str().unwrap() {
            "TEXT_MESSAGE_CONTENT" => {
                let mut texts = facts.pop().map(|fact| (0, fact)).into_iter().collect();
                add_text(&mut texts, 0, &event["delta"]);
                facts.extend(texts.into_iter().map(|(_, fact)| fact));
                continue;
            }
            "TOOL_CALL_START" => Fact::ToolStarts { call: call() },
            "TOOL_CALL_RESULT" => Fact::ToolEnds { call: call() },
            "RUN_FINISHED" => match event["outcome"]["interrupts"][0]["id"].as_str() {
                Some(id) => {
                    let title = text(&event["outcome"]["interrupts"][0]["message"]);
                    Fact::Asks { request: id.to_owned(), title }
                }
                None if event["outcome"]["type"] == "cancelled" => Fact::Ends("cancelled"),
                None => Fact::Ends("completed"),
            },
            "RUN_ERROR" => Fact::Ends("failed"),
            _ => continue,
        });
    }
    facts
}

/// A session that is followed in all ways.
struct Scene {
    http: Http,
    terminal: Terminal,
    session: String,
    client: String,
    frames: Stream,
    events: Stream,
}

impl Scene {
    fn open(home: &TestHome, server: &Server) -> Self {
        let terminal = Terminal::start(home, server, &["attach"], &[]);
        terminal.shows("\n>\n");
        let mut http = Http::new(server);
        let attached = http.post("/session", &json!({})).good();
        let (session, client) = (text(&attached["sessionId"]), text(&attached["clientId"]));
        assert_eq!(attached["attached"], true, "the terminal has opened it");
        let frames = Stream::read(http.stream(&format!("/session/{session}/events"), &["last-event-id: 0"]));
        let events = Stream::read(http.stream(&format!("/api/v1/sessions/{session}/trace"), &[]));
        Self { http, terminal, session, client, frames, events }
    }

    fn send(&mut self, method: &str, what: &str, body: &Value) -> Value {
        let (path, client) = (format!("/session/{}{what}", self.session), format!("x-qwen-client-id: {}", self.client));
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let response = self.http.send(method, &path, &[&client], &body).unwrap();
        assert!(response.status < 300, "{response:?}");
        if response.body.is_empty() { Value::Null } else { response.json() }
    }

    /// Sends a prompt, and follows it as a run of AG-UI.
    fn prompt(&mut self, steps: &Value) -> (String, Stream) {
        let id = self.submit(&json!({"script": steps}).to_string());
        (id.clone(), self.follow_run(&id))
    }

    /// Sends a prompt. Returns its id.
    fn submit(&mut self, prompt: &str) -> String {
        let prompt = json!([{"type": "text", "text": prompt}]);
        text(&self.send("POST", "/prompt", &json!({"prompt": prompt}))["promptId"])
    }

    /// The thread of AG-UI is named by the UUID of the session's id.
    fn thread_id(&self) -> String {
        let body = self.session.strip_prefix("ses_").unwrap();
        let parts = [&body[..8], &body[8..12], &body[12..16], &body[16..20], &body[20..]];
        parts.join("-")
    }

    fn follow_run(&self, prompt_id: &str) -> Stream {
        let path = format!("/api/v1/agent/runs/{}/events?runId={prompt_id}", self.thread_id());
        Stream::read(self.http.stream(&path, &[]))
    }

    fn ends(&self, prompt_id: &str) {
        self.frames.wait("the end of a turn", |frame| {
            frame["type"] == "turn_complete" && frame["data"]["promptId"] == prompt_id
        });
    }
}

/// The facts of one prompt, as AG-UI reports them: without prompts, votes and the requests to cancel.
fn of_prompt(facts: &[Numbered], number: usize) -> Vec<Fact> {
    let is_prompt = |fact: &Fact| matches!(fact, Fact::Prompt(_));
    let starts: Vec<usize> =
        facts.iter().enumerate().filter(|(_, (_, fact))| is_prompt(fact)).map(|(at, _)| at).collect();
    let rest = facts[starts[number] + 1..].iter().map(|(_, fact)| fact.clone());
    let mut own = vec![];
    for fact in rest.filter(|fact| !matches!(fact, Fact::Cancels | Fact::Queued(_) | Fact::Answered { .. })) {
        let is_end = matches!(fact, Fact::Ends(_) | Fact::Asks { .. });
        own.push(fact);
        if is_end {
            break;
        }
    }
    own
}

/// What happens in the session: turns that reply, ask, are cancelled and wait, prompts and votes of both clients. Returns the
/// runs in the order of their turns, and the ids of the two permission requests.
fn play(scene: &mut Scene) -> ([Stream; 6], [String; 2]) {
    let tool = json!({"tool": {"name": "shell", "command": "ls", "output": "a\nb\n"}});
    let (first, run_1) = scene.prompt(&json!([{"say": "Let me look.", "final": false}, tool, {"say": "Two files."}]));
    scene.ends(&first);
    let (second, run_2) =
        scene.prompt(&json!([{"ask": {"title": "Delete a?", "command": "rm a"}}, {"say": "Deleted."}]));
    let asked = scene.frames.wait("the question", |frame| frame["type"] == "permission_request");
    scene.terminal.shows("allow this?");
    let vote = json!({"outcome": {"outcome": "selected", "optionId": "allow"}});
    scene.send("POST", &format!("/permission/{}", text(&asked["data"]["requestId"])), &vote);
    scene.ends(&second);
    let (third, run_3) = scene.prompt(&json!([{"say": "Working on it."}, {"wait": 60_000}]));
    scene.terminal.shows("Working on it.");
    scene.send("POST", "/cancel", &Value::Null);
    scene.ends(&third);
    // A prompt that waits while the agent asks, and a vote of the terminal.
    let (fourth, run_4) = scene.prompt(&json!([{"ask": {"title": "Go on?", "command": "make"}}]));
    let asked_again = scene.frames.wait("the second question", |frame| {
        frame["type"] == "permission_request" && frame["data"]["toolCall"]["title"] == "Go on?"
    });
    let fifth = scene.submit("next in line");
    // Once for each question, and once more below the line about the prompt that waits.
    eventually("the terminal asks again", || {
        let screen = scene.terminal.screen();
        (screen.contains("waits for this turn") && screen.matches("allow this?").count() == 3).then_some(())
    });
    scene.terminal.types("y\n");
    scene.ends(&fifth);
    let run_5 = scene.follow_run(&fifth);
    scene.send("PATCH", "/metadata", &json!({"displayName": "Clean up"}));
    scene.terminal.shows("renamed the session to Clean up\n>\n");
    scene.terminal.types(&format!("{TYPED}\n"));
    let others = [first, second, third, fourth, fifth];
    let end = scene.frames.wait("the end of the last turn", |frame| {
        frame["type"] == "turn_complete" && !others.iter().any(|id| frame["promptId"] == id.as_str())
    });
    let run_6 = scene.follow_run(end["promptId"].as_str().unwrap());
    scene.terminal.shows(&format!("\n{TYPED}\n>\n"));
    let requests = [asked, asked_again].map(|frame| text(&frame["data"]["requestId"]));
    ([run_1, run_2, run_3, run_4, run_5, run_6], requests)
}

#[both_engines]
fn a_session_is_the_same_in_all_dialects(engine: Engine) {
    let mut home = TestHome::on_disk(engine);
    let workspace = home.path("workspace");
    std::fs::create_dir(&workspace).unwrap();
    home.flags = vec!["--workspace".into(), workspace.display().to_string()];
    let server = home.serve();
    let mut scene = Scene::open(&home, &server);
    let (runs, [request, own_vote]) = play(&mut scene);
    let runs = runs.map(|run| of_run(&run.whole()));
    let history = scene.http.get(&format!("/api/v1/agent/history?threadId={}", scene.thread_id())).good();
    scene.send("DELETE", "", &Value::Null);
    scene.events.wait("the close", |event| event["payload"]["note"] == "daemon.session_closed");
    let ended = scene.terminal.ends();
    let (frames, events) = (of_frames(&scene.frames.whole()), of_events(&scene.events.so_far()));

    assert_eq!(frames, events, "the daemon and the manager");
    let kinds = frames.iter().map(|(_, fact)| fact.clone()).collect::<Vec<_>>();
    let allowed = |request: &String| Fact::Answered { request: request.clone(), option: Some("allow".into()) };
    let queued = "next in line".to_owned();
    for expected in [
        Fact::Text("Let me look.".into()),
        allowed(&request),
        Fact::Cancels,
        Fact::Queued(queued.clone()),
        allowed(&own_vote),
        Fact::Prompt(queued),
        Fact::Renamed("Clean up".into()),
    ] {
        assert_eq!(kinds.iter().filter(|fact| **fact == expected).count(), 1, "{expected:?} in {kinds:#?}");
    }
    assert_eq!(
        (kinds.iter().filter(|fact| matches!(fact, Fact::Ends(_))).count(), kinds.last()),
        (6, Some(&Fact::Closed))
    );
    for (number, run) in runs.iter().enumerate() {
        assert_eq!(*run, of_prompt(&frames, number), "AG-UI and the daemon, prompt {number}");
    }
    let said = kinds.iter().filter_map(|fact| match fact {
        Fact::Prompt(text) | Fact::Text(text) => Some(json!(text).to_string()),
        _ => None,
    });
    assert_in_order(&history.to_string(), said, "the history of AG-UI");
    // The terminal shows the end of an id, which differs between clients.
    let client = format!("client_{}", &scene.client[scene.client.len() - 8..]);
    let expected: Vec<String> = kinds.iter().flat_map(|fact| expected_lines(fact, &client, &own_vote)).collect();
    assert_eq!(lines_of(&ended.raw), expected, "the terminal, line by line");
    server.stop();
}

/// What the terminal's person types as a prompt.
const TYPED: &str = "and from the terminal";

/// The lines of a terminal without its greeting, the cues that wait for input, and how long a request still waits.
fn lines_of(raw: &str) -> Vec<String> {
    const LINES: NonZeroU16 = NonZeroU16::new(500).unwrap();
    const COLUMNS: NonZeroU16 = NonZeroU16::new(200).unwrap();
    let mut parser = vt100::Parser::new(LINES, COLUMNS, 0);
    parser.process(raw.as_bytes());
    let screen = parser.screen().contents();
    let lines = screen.lines().map(str::trim_end).skip_while(|line| *line != ">");
    // A line is empty if Enter follows the key that has voted.
    let is_fact = |line: &&str| {
        let is_asked = line.starts_with("allow this?") || line.starts_with("  answer:  within ");
        !line.is_empty() && *line != ">" && !is_asked
    };
    lines.filter(is_fact).map(str::to_owned).collect()
}

/// The lines in which the terminal shows a fact: its own prompt where it was typed, and everything else as the frame of
/// `client`, except the vote on the request `own_vote`.
fn expected_lines(fact: &Fact, client: &str, own_vote: &str) -> Vec<String> {
    let line = match fact {
        Fact::Prompt(text) if text == TYPED => format!("> {text}"),
        Fact::Prompt(text) => format!("{client}: {text}"),
        Fact::Queued(text) => format!("{client} waits for this turn with: {text}"),
        Fact::Text(text) => text.clone(),
        Fact::ToolStarts { .. } => "tool shell started: ls".into(),
        Fact::ToolEnds { .. } => "tool shell completed: ls".into(),
        Fact::Asks { title, .. } => {
            let command = if title == "Go on?" { "make" } else { "rm a" };
            return vec![format!("permission needed: {title}"), format!("  command: {command}")];
        }
        Fact::Answered { request, .. } if request == own_vote => "permission allowed by you".into(),
        Fact::Answered { .. } => format!("permission allowed by {client}"),
        Fact::Cancels => format!("cancelled by {client}"),
        Fact::Ends("cancelled") => "turn ended: cancelled".into(),
        Fact::Ends(_) => return vec![],
        Fact::Renamed(name) => format!("{client} renamed the session to {name}"),
        Fact::Closed => format!("the session was closed by {client}"),
    };
    vec![line]
}

/// Checks that a text has these parts, in this order.
#[track_caller]
fn assert_in_order(whole: &str, parts: impl Iterator<Item = String>, what: &str) {
    let mut rest = whole;
    for part in parts {
        let at = rest.find(&part).unwrap_or_else(|| panic!("{what} has no {part:?} in its place: {whole}"));
        rest = &rest[at + part.len()..];
    }
}
