//! The SDK of A2A: an agent that answers each message with a task, over JSON-RPC with a stream of events.

use super::peer::{Call, Peer, Plan, Work, free_address, get, post};

pub(crate) const PEER: Peer = Peer {
    name: "a2a-sdk",
    durability: "nothing: tasks are in its `InMemoryTaskStore`",
    evidence: "strace: no sync and no file opened for writing in 200 runs",
    plan: |installed, directory| {
        let address = free_address()?;
        let mut python = installed.command("python", directory)?;
        python.arg(installed.file("program")?).arg(address.port().to_string());
        let ready = Call { address, request: get(address, "/.well-known/agent-card.json"), answer: b"skills" };
        Ok(Plan { commands: vec![python], address, ready, prepare: vec![] })
    },
    work: Work::Runs {
        request: |address, client, number| {
            let body = format!(
                r#"{{"jsonrpc":"2.0","id":{number},"method":"message/stream","params":{{"message":{{"kind":"message","role":"user","messageId":"m-{client}-{number}","parts":[{{"kind":"text","text":"hi"}}]}}}}}}"#
            );
            post(address, "/", &body)
        },
        end: br#""state":"completed""#,
    },
};
