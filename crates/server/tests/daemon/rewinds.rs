//! Rewinds: turns leave the conversation but not the log, and the files that they changed are restored.

use std::path::Path;

use ostler_server::clock::Clock;
use serde_json::{Value, json};

use super::{
    configure, refused,
    scene::{Attached, attached},
};
use crate::harness::{Engine, TestServer, both_engines, eventually};

/// The texts of the conversation that the agent gets with the last prompt.
pub(crate) async fn conversation(server: &TestServer, session: &Attached) -> Vec<String> {
    let (run_id, command_id) = session.prompted(server).await;
    let path = format!("/api/v1/runs/{run_id}/commands/{command_id}/conversation");
    let page = server.get(&path).await.with_status(200);
    page["messages"].as_array().unwrap().iter().map(|message| message["text"].as_str().unwrap().to_owned()).collect()
}

async fn snapshots(session: &Attached) -> Vec<Value> {
    session.get("rewind/snapshots").await.with_status(200)["snapshots"].as_array().unwrap().clone()
}

async fn rewind(session: &Attached, turn_index: usize) -> Value {
    let target = snapshots(session).await[turn_index]["promptId"].clone();
    session.post("rewind", &json!({"promptId": target})).await.with_status(200)
}

#[both_engines]
async fn a_prompt_after_a_rewind_does_not_see_the_turns_that_were_left(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let session = attached(&server).await;
    for text in ["one", "two", "three"] {
        session.prompt_to_end(text).await;
    }
    let before = snapshots(&session).await;
    let indexes: Vec<_> = before.iter().map(|snapshot| snapshot["turnIndex"].as_u64().unwrap()).collect();
    assert_eq!(indexes, [0, 1, 2]);
    assert_eq!(before[1]["promptId"], format!("{}########2", session.id));
    assert_eq!(before[1]["diffStats"], json!({"filesChanged": 0, "insertions": 0, "deletions": 0}));
    let rewound = rewind(&session, 1).await;
    assert_eq!(rewound, json!({"rewound": true, "targetTurnIndex": 1, "filesChanged": [], "filesFailed": []}));
    assert_eq!(snapshots(&session).await.len(), 1);
    session.prompt_to_end("four").await;
    assert_eq!(conversation(&server, &session).await, ["one", "one"]);
    // Ids of turns that were left never name another turn.
    assert_eq!(snapshots(&session).await[1]["promptId"], format!("{}########4", session.id));
    let gone = session.post("rewind", &json!({"promptId": before[2]["promptId"]})).await;
    refused(gone, 400, "invalid_rewind_target");
    let note = session.notes(&server).await.pop().unwrap();
    assert_eq!((&note["note"], &note["data"]["clientId"]), (&json!("daemon.session_rewound"), &json!(session.client)));
    let data = json!({"sessionId": session.id, "promptId": before[1]["promptId"], "targetTurnIndex": 1,
        "filesChanged": [], "filesFailed": []});
    assert_eq!(note["data"]["data"], data);
    assert_eq!(rewind(&session, 0).await["targetTurnIndex"], 0);
    session.prompt_to_end("five").await;
    assert!(conversation(&server, &session).await.is_empty());
}

#[both_engines]
async fn a_rewind_that_cannot_be_done_changes_nothing(engine: Engine) {
    let server = TestServer::with_runner(engine).await;
    let session = attached(&server).await;
    session.prompt_to_end("one").await;
    let target = snapshots(&session).await[0]["promptId"].clone();
    for (body, code) in [
        (json!({}), "missing_prompt_id"),
        (json!({"promptId": ""}), "missing_prompt_id"),
        (json!({"promptId": 7}), "missing_prompt_id"),
        (json!({"promptId": "x"}), "invalid_rewind_target"),
        (json!({"promptId": format!("{}########9", session.id)}), "invalid_rewind_target"),
        (json!({"promptId": target, "rewindFiles": "yes"}), "invalid_rewind_files_flag"),
    ] {
        refused(session.post("rewind", &body).await, 400, code);
    }
    let path = format!("/session/{}/rewind", session.id);
    let foreign = server.as_client("client_other", "POST", &path, &json!({"promptId": target})).await;
    refused(foreign, 400, "invalid_client_id");
    session.prompt(r#"{"script": [{"wait": 60000}]}"#).await;
    let busy = session.post("rewind", &json!({"promptId": target})).await;
    assert_eq!(busy.headers["retry-after"], "5");
    refused(busy, 409, "session_busy");
    session.post("cancel", &json!({})).await.with_status(204);
    assert_eq!(snapshots(&session).await.len(), 2);
}

/// An ACP agent that stores each prompt beside its script, and changes files if a prompt requests it. It dies before its first prompt if
/// the file `crash` is there.
const AGENT: &str = r#"
say() { printf '%s\n' "$1"; }
read -r l; say '{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"agentInfo":{"name":"played"},"agentCapabilities":{"loadSession":true}}}'
read -r l; say '{"jsonrpc":"2.0","id":2,"result":{"sessionId":"s'$$'"}}'
[ -e PLACE/crash ] && { rm PLACE/crash; exit 1; }
n=2
while read -r l; do
  n=$((n + 1))
  printf '%s\n' "$l" >> PLACE/prompts
  case "$l" in
    *do-nothing*) ;;
    *change-first*) printf 'one\n' > a.txt; rm gone.txt; printf 'x\n' > mine.txt ;;
    *change-many*) i=0; while [ $i -lt 120 ]; do echo $i > many-$i.txt; i=$((i + 1)); done ;;
    *change-second*) printf 'two\n' > a.txt; mkdir d; printf 'new\n' > d/b.txt ;;
  esac
  say '{"jsonrpc":"2.0","id":'$n',"result":{"stopReason":"end_turn"}}'
done
"#;

/// A server whose prompts are handled by the agent, in a workspace with two files.
async fn acp_server(engine: Engine) -> (TestServer, std::path::PathBuf) {
    let mut workspace = None;
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 4;
        workspace = Some(setup.bind_workspace());
        configure(setup, |section| section.profile = "played".into());
    })
    .await;
    let workspace = workspace.unwrap();
    let place = workspace.with_file_name("agent");
    std::fs::create_dir(&place).unwrap();
    let script = place.join("agent.sh");
    std::fs::write(&script, AGENT.replace("PLACE", place.to_str().unwrap())).unwrap();
    let config = format!("[ostler]\nagent = \"acp\"\ncommand = [\"/bin/sh\", \"{}\"]\n", script.display());
    let files = json!({"files": {"auth.json": "{\"OPENAI_API_KEY\": \"x-not-used\"}", "config.toml": config}});
    let path = "/api/v1/provider-profiles/played/credential";
    let put = server.with_body(server.request("PUT", path), path, &files);
    assert!((200..300).contains(&server.send(put).await.status));
    std::fs::write(workspace.join("a.txt"), "zero\n").unwrap();
    std::fs::write(workspace.join("gone.txt"), "here\n").unwrap();
    (server, workspace)
}

fn read(workspace: &Path, name: &str) -> Option<String> {
    std::fs::read_to_string(workspace.join(name)).ok()
}

#[both_engines]
async fn files_are_restored_unless_they_have_changed_since(engine: Engine) {
    let (server, workspace) = acp_server(engine).await;
    let session = attached(&server).await;
    for text in ["do-nothing", "change-first", "change-second"] {
        session.prompt_to_end(text).await;
    }
    let stats: Vec<_> = snapshots(&session).await.iter().map(|snapshot| snapshot["diffStats"].clone()).collect();
    assert_eq!(stats[2], json!({"filesChanged": 2, "insertions": 2, "deletions": 1}));
    assert_eq!(stats[1], json!({"filesChanged": 4, "insertions": 4, "deletions": 3}));
    assert_eq!(stats[0], stats[1]);
    std::fs::write(workspace.join("mine.txt"), "edited by hand\n").unwrap();
    let rewound = rewind(&session, 1).await;
    assert_eq!((&rewound["rewound"], &rewound["targetTurnIndex"]), (&json!(false), &json!(1)));
    assert_eq!(rewound["filesChanged"], json!(["a.txt", "d/b.txt", "gone.txt"]));
    assert_eq!(rewound["filesFailed"], json!(["mine.txt"]));
    assert_eq!(read(&workspace, "a.txt").as_deref(), Some("zero\n"));
    assert_eq!(read(&workspace, "gone.txt").as_deref(), Some("here\n"));
    assert_eq!(read(&workspace, "d/b.txt"), None);
    assert_eq!(read(&workspace, "mine.txt").as_deref(), Some("edited by hand\n"));
    // The agent starts a new thread, and gets what is left of the conversation.
    session.prompt_to_end("do-nothing again").await;
    let prompts = std::fs::read_to_string(workspace.with_file_name("agent").join("prompts")).unwrap();
    let last = prompts.lines().last().unwrap();
    assert!(last.contains("<user>\\ndo-nothing\\n</user>") && last.contains("do-nothing again"), "{last}");
    assert!(!last.contains("change-first") && !last.contains("change-second"), "{last}");
}

#[both_engines]
async fn a_rewind_without_files_leaves_them(engine: Engine) {
    let (server, workspace) = acp_server(engine).await;
    let session = attached(&server).await;
    session.prompt_to_end("change-first").await;
    let target = snapshots(&session).await[0]["promptId"].clone();
    let body = json!({"promptId": target, "rewindFiles": false});
    let rewound = session.post("rewind", &body).await.with_status(200);
    assert_eq!(rewound, json!({"rewound": true, "targetTurnIndex": 0, "filesChanged": [], "filesFailed": []}));
    assert_eq!(read(&workspace, "a.txt").as_deref(), Some("one\n"));
}

#[both_engines]
async fn prompts_are_refused_while_files_are_restored(engine: Engine) {
    let (server, workspace) = acp_server(engine).await;
    let session = attached(&server).await;
    session.prompt_to_end("change-many").await;
    let target = json!({"promptId": snapshots(&session).await[0]["promptId"]});
    let refusals = async {
        eventually("the conversation is rewound", async || {
            let mut events = server.logged(&session.id).await.into_iter();
            events.any(|event| event["payload"]["change"] == "rewound").then_some(())
        })
        .await;
        let prompt = session.post("prompt", &json!({"prompt": [{"type": "text", "text": "too early"}]})).await;
        let second = session.post("rewind", &target).await;
        (prompt, second)
    };
    let (rewound, (prompt, second)) = tokio::join!(session.post("rewind", &target), refusals);
    refused(prompt, 409, "session_busy");
    refused(second, 409, "session_busy");
    let rewound = rewound.with_status(200);
    assert_eq!((&rewound["rewound"], rewound["filesChanged"].as_array().unwrap().len()), (&json!(true), 120));
    assert_eq!(read(&workspace, "many-0.txt"), None);
    session.prompt_to_end("do-nothing").await;
    assert!(server.store("SELECT restore_id FROM daemon_restores").await.is_empty());
}

#[both_engines]
async fn a_server_that_stopped_while_it_restored_files_locks_the_session_for_a_while_only(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 4;
        setup.bind_workspace();
        configure(setup, |section| section.session_shell = true);
    })
    .await;
    let session = attached(&server).await;
    session.prompt_to_end("one").await;
    let target = json!({"promptId": snapshots(&session).await[0]["promptId"]});
    // What such a server leaves behind.
    let expires_at = (server.clock.now() + jiff::SignedDuration::from_secs(30)).as_microsecond();
    let session_id = server.store("SELECT session_id FROM daemon_sessions").await.pop().unwrap();
    server.store(&format!("INSERT INTO daemon_restores VALUES ('{session_id}', 'stopped', {expires_at})")).await;
    let prompt = json!({"prompt": [{"type": "text", "text": "two"}]});
    let requests =
        [("prompt", &prompt), ("rewind", &target), ("branch", &json!({})), ("shell", &json!({"command": "true"}))];
    for (what, body) in requests {
        let busy = session.post(what, body).await;
        assert_eq!(busy.headers["retry-after"], "5", "{what}");
        refused(busy, 409, "session_busy");
    }
    server.clock.advance_ms(30_000);
    session.prompt_to_end("two").await;
    for (what, body) in &requests[1..] {
        let status = session.post(what, body).await.status;
        assert!((200..300).contains(&status), "{what}: {status}");
    }
}

#[both_engines]
async fn followers_learn_of_a_rewind_also_if_the_store_fails_while_files_are_restored(engine: Engine) {
    let (server, workspace) = acp_server(engine).await;
    let session = attached(&server).await;
    session.prompt_to_end("change-first").await;
    let target = json!({"promptId": format!("{}########1", session.id)});
    // The row of what the turn has changed cannot be read.
    server.store("UPDATE events SET type = 'nonsense' WHERE CAST(payload AS TEXT) LIKE '%\"trees\"%'").await;
    assert!(session.post("rewind", &target).await.status >= 500);
    assert_eq!(read(&workspace, "a.txt").as_deref(), Some("one\n"), "nothing is restored");
    let noted = "SELECT CAST(payload AS TEXT) FROM events WHERE CAST(payload AS TEXT) LIKE '%daemon.session_rewound%'";
    let noted: Value = serde_json::from_str(&server.store(noted).await[0]).unwrap();
    assert_eq!(noted["data"]["data"]["targetTurnIndex"], 0);
    assert!(server.store("SELECT restore_id FROM daemon_restores").await.is_empty(), "the session can be used");
}

#[both_engines]
async fn an_agent_that_died_before_its_first_prompt_still_gets_the_conversation(engine: Engine) {
    let (server, workspace) = acp_server(engine).await;
    let session = attached(&server).await;
    for text in ["do-nothing first", "do-nothing second"] {
        session.prompt_to_end(text).await;
    }
    rewind(&session, 1).await;
    let place = workspace.with_file_name("agent");
    std::fs::write(place.join("crash"), "").unwrap();
    for text in ["do-nothing third", "do-nothing fourth"] {
        session.prompt_to_end(text).await;
    }
    assert!(!place.join("crash").exists(), "it has died");
    let prompts = std::fs::read_to_string(place.join("prompts")).unwrap();
    let next = prompts.lines().nth(2).unwrap();
    assert!(next.contains("<user>\\ndo-nothing first\\n</user>") && !next.contains("second"), "{next}");
}
