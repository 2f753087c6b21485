//! Many followers replay a log from its first event, over and over, while a writer goes on: every one sees every
//! event, and the writer is not shut out.

use futures_util::future::join_all;

use super::{BOTH, Disk, Probe};
use crate::{
    load::{Follower, Mix, SETTLE_WITHIN},
    report::Fault,
    round::{Round, Setup},
};

const FOLLOWERS: usize = 40;
/// The part of the log that is replayed. Replays take turns and yield to the writer, so a long one takes long.
const REPLAY_EVENTS_MAX: i64 = 1_000;
const STORMS: usize = 3;
const PATIENCE: u32 = 2;

pub(crate) const PROBE: Probe = Probe {
    name: "replay-storm",
    about: "40 followers replay a log from its beginning, three times, beside a writer; the server is killed in between",
    engines: BOTH,
    rounds: 1,
    disk: Disk::Shared,
    fault: Some(Fault::Replay),
    setup: |_, _| Setup { mix: Mix { turns: false, ..Mix::ALL }, ..Setup::default() },
    disturb: storm,
};

fn storm(round: &mut Round) -> Result<(), String> {
    let runtime = round.resources.runtime.handle().clone();
    let run_id = round.load.as_ref().and_then(|load| load.followed.clone()).ok_or("nothing to follow")?;
    for number in 0..STORMS {
        round.let_work(100..300);
        let path = format!("/api/v1/runs/{run_id}");
        let run = runtime.block_on(round.api.insist("GET", &path, None, SETTLE_WITHIN))?;
        let last_seq = run["lastSeq"].as_i64().unwrap_or(0).min(REPLAY_EVENTS_MAX);
        let followers: Vec<Follower> = (0..FOLLOWERS).map(|_| Follower::start(&runtime, &round.api, &run_id)).collect();
        if number == 1 {
            round.let_work(10..60);
            round.kill_server(0);
            round.count(Fault::ServerKill);
            round.start_server(0)?;
        }
        // At most what was there when the storm began; the writer goes on.
        let settled = followers.into_iter().map(|follower| follower.settle(last_seq, SETTLE_WITHIN * PATIENCE));
        let seen = runtime.block_on(join_all(settled)).into_iter().collect::<Result<Vec<u64>, _>>()?;
        round.tally.count(Fault::Replay, seen.len() as u64);
        round.wait_for_progress()?;
    }
    Ok(())
}
