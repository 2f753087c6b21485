//! Many followers lose their server at once and come back at once: each goes on behind its last number, and none
//! misses or repeats an event.

use futures_util::future::join_all;

use super::{BOTH, Disk, Probe};
use crate::{
    load::{Follower, Mix, SETTLE_WITHIN, Writer},
    report::Fault,
    round::{Round, Setup},
};

const FOLLOWERS_LIMIT: &str = "4096";
/// A few hundred connections are opened and read beside everything else.
const PATIENCE: u32 = 4;

pub(crate) const PROBE: Probe = Probe {
    name: "followers-return",
    about: "2,000 followers (400 in short campaigns) return at once after the server was killed",
    engines: BOTH,
    rounds: 1,
    disk: Disk::Shared,
    fault: Some(Fault::FollowerReturn),
    setup: |_, _| Setup {
        environment: vec![
            ("OSTLER_LIMITS__FOLLOWERS_MAX", FOLLOWERS_LIMIT.into()),
            ("OSTLER_LIMITS__FOLLOWERS_PER_CALLER_MAX", FOLLOWERS_LIMIT.into()),
        ],
        mix: Mix { turns: false, messages: false, prompts: false, grants: false, follower: false, writers: 0 },
        ..Setup::default()
    },
    disturb: come_back,
};

fn come_back(round: &mut Round) -> Result<(), String> {
    let runtime = round.resources.runtime.handle().clone();
    let beat = round.load.as_ref().ok_or("no load")?.beat.clone();
    let writer = runtime.block_on(Writer::create(&beat, "followed"))?;
    let run_id = writer.run_id.clone();
    let count = round.resources.scale.followers;
    let followers: Vec<Follower> = (0..count).map(|_| Follower::start(&runtime, &round.api, &run_id)).collect();
    let writing = runtime.spawn(writer.work(beat.clone()));
    round.let_work(300..600);
    round.kill_server(0);
    round.count(Fault::ServerKill);
    round.start_server(0)?;
    round.tally.count(Fault::FollowerReturn, count as u64);
    round.wait_for_progress()?;
    round.let_work(200..400);
    beat.stop();
    let writer = runtime.block_on(writing).map_err(|error| format!("a writer panicked: {error}"))??;
    let (events, last_seq) = runtime.block_on(writer.settle(&beat))?;
    let settled = followers.into_iter().map(|follower| follower.settle(last_seq, SETTLE_WITHIN * PATIENCE));
    let seen = runtime.block_on(join_all(settled));
    let seen: Vec<u64> = seen.into_iter().collect::<Result<_, _>>()?;
    round.tally.facts.events += events;
    round.tally.facts.followed += seen.iter().sum::<u64>();
    Ok(())
}
