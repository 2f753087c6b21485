//! LangGraph's development server: a graph of one node, run without a thread and followed in the same request. It looks for
//! new runs every half second when it had none, so a client that is alone waits for that.

use super::peer::{Call, Peer, Plan, Work, free_address, get, post};

/// As many runs at once as the load has clients.
const JOBS: &str = "16";

pub(crate) const PEER: Peer = Peer {
    name: "langgraph dev",
    durability: "nothing: runs are in the memory of the process, written to files at intervals without a sync",
    evidence: "strace: no sync in 10 runs",
    plan: |installed, directory| {
        let address = free_address()?;
        // It finds the graph beside its working directory, and leaves files there.
        for (role, name) in [("configuration", "langgraph.json"), ("graph", "graph.py")] {
            std::fs::copy(installed.file(role)?, directory.join(name))?;
        }
        let mut server = installed.command("python", directory)?;
        server.args(["-m", "langgraph_cli", "dev", "--no-browser", "--no-reload", "--host", "127.0.0.1", "--port"]);
        server.arg(address.port().to_string()).args(["--n-jobs-per-worker", JOBS, "--server-log-level", "WARNING"]);
        // Without its search for blocking calls, which would slow each run down.
        server.arg("--allow-blocking");
        // It would send usage figures, and check for a newer version.
        server.envs([("LANGGRAPH_CLI_NO_ANALYTICS", "1"), ("LANGGRAPH_NO_VERSION_CHECK", "true")]);
        server.envs([("LANGSMITH_TRACING", "false"), ("LOG_LEVEL", "WARNING")]);
        let ready = Call { address, request: get(address, "/ok"), answer: b"ok" };
        Ok(Plan { commands: vec![server], address, ready, prepare: vec![] })
    },
    work: Work::Runs {
        request: |address, client, number| {
            let body = format!(
                r#"{{"assistant_id":"echo","input":{{"question":"hi {client} {number}"}},"stream_mode":["updates"]}}"#
            );
            post(address, "/runs/stream", &body)
        },
        end: br#""answer":"hello"#,
    },
};
