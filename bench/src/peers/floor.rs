//! The floor: a web application in Python that answers an AG-UI message with the events of a run and remembers nothing. A
//! server that keeps runs cannot do less work than this.

use super::peer::{Call, Peer, Plan, Work, free_address, get, post, run_input};

pub(crate) const PEER: Peer = Peer {
    name: "stateless echo",
    durability: "nothing: no run exists, only its events",
    evidence: "the program is `xtask/peers/floor.py`",
    plan: |installed, directory| {
        let address = free_address()?;
        let mut python = installed.command("python", directory)?;
        python.arg(installed.file("program")?).arg(address.port().to_string());
        let ready = Call { address, request: get(address, "/health"), answer: b"ready" };
        Ok(Plan { commands: vec![python], address, ready, prepare: vec![] })
    },
    work: Work::Runs {
        request: |address, client, number| post(address, "/", &run_input(client, number)),
        end: b"RUN_FINISHED",
    },
};
