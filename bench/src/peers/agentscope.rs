//! AgentScope's runtime: an agent that answers with one text, over its AG-UI route.

use super::peer::{Call, Peer, Plan, Work, free_address, get, post, run_input};

pub(crate) const PEER: Peer = Peer {
    name: "agentscope-runtime",
    durability: "nothing: a run exists in the memory of the process",
    evidence: "strace: no sync and no file opened for writing in 200 runs",
    plan: |installed, directory| {
        let address = free_address()?;
        let mut python = installed.command("python", directory)?;
        python.arg(installed.file("program")?).arg(address.port().to_string());
        let ready = Call { address, request: get(address, "/health"), answer: b"healthy" };
        Ok(Plan { commands: vec![python], address, ready, prepare: vec![] })
    },
    work: Work::Runs {
        request: |address, client, number| post(address, "/ag-ui", &run_input(client, number)),
        end: b"RUN_FINISHED",
    },
};
