//! Faults of the network between servers and Postgres, made by a proxy: connections cut, cut in the middle of a message,
//! silent in one direction, or slow because packets are lost.

use std::time::Duration;

use ostler_testkit::proxy::{Direction, Proxy};

use super::{Disk, POSTGRES, Probe};
use crate::{
    random::Random,
    report::Fault,
    resources::{Engine, REPLICAS_MAX},
    round::{Round, Setup},
};

const CUTS: usize = 5;
const TRUNCATIONS: usize = 10;
const ONE_WAY_CUTS: usize = 2;
/// A cut is armed for a byte of the traffic of a moment.
const CUT_BYTES_MAX: u64 = 6_000;
const FIRE_LOOKS_MAX: usize = 150;
const RETRANSMIT_AFTER: Duration = Duration::from_millis(200);

pub(crate) const CUT: Probe = Probe {
    name: "cut-postgres",
    about: "all connections to Postgres cut, and new ones refused for a while",
    engines: POSTGRES,
    rounds: 2,
    disk: Disk::Shared,
    fault: Some(Fault::PostgresOutage),
    setup: servers,
    disturb: cut,
};

pub(crate) const TRUNCATE: Probe = Probe {
    name: "truncate-postgres",
    about: "connections to Postgres cut after the n-th byte, in either direction: often inside a message",
    engines: POSTGRES,
    rounds: 5,
    disk: Disk::Shared,
    fault: Some(Fault::IoError),
    setup: servers,
    disturb: truncate,
};

pub(crate) const ONE_WAY: Probe = Probe {
    name: "one-way-postgres",
    about: "nothing reaches Postgres, or nothing comes back, for up to three seconds; then it arrives, or the connection is cut",
    engines: POSTGRES,
    rounds: 2,
    disk: Disk::Shared,
    fault: Some(Fault::PostgresOutage),
    setup: servers,
    disturb: one_way,
};

pub(crate) const LOSS: Probe = Probe {
    name: "packet-loss",
    about: "lost packets between servers and Postgres, modelled as the delay until they are sent again",
    engines: POSTGRES,
    rounds: 1,
    disk: Disk::Shared,
    fault: Some(Fault::PostgresOutage),
    setup: servers,
    disturb: loss,
};

fn servers(random: &mut Random, _: Engine) -> Setup {
    Setup { replicas: if random.chance(50) { REPLICAS_MAX } else { 1 }, ..Setup::default() }
}

/// The proxy of one of the round's servers.
fn proxy<'a>(round: &'a mut Round) -> Result<&'a Proxy, String> {
    let number = round.random.between(0..round.servers.len() as u64) as usize;
    let postgres = round.resources.postgres.as_ref().ok_or("there is no Postgres")?;
    Ok(&postgres.proxies[number])
}

fn direction(round: &mut Round) -> Direction {
    if round.random.chance(50) { Direction::Up } else { Direction::Down }
}

fn cut(round: &mut Round) -> Result<(), String> {
    for _ in 0..CUTS {
        round.let_work(20..150);
        let refused_for = if round.random.chance(50) { round.random.millis(20..300) } else { Duration::ZERO };
        let proxy = proxy(round)?;
        proxy.refuse(true);
        proxy.cut_all();
        std::thread::sleep(refused_for);
        proxy.refuse(false);
        round.count(Fault::PostgresOutage);
        round.wait_for_progress()?;
    }
    Ok(())
}

fn truncate(round: &mut Round) -> Result<(), String> {
    for _ in 0..TRUNCATIONS {
        round.let_work(5..60);
        let (direction, bytes) = (direction(round), round.random.between(0..CUT_BYTES_MAX) as u32);
        let proxy = proxy(round)?;
        let before = proxy.cuts();
        proxy.cut_after(direction, bytes);
        for _ in 0..FIRE_LOOKS_MAX {
            if !proxy.is_cut_armed() {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let fired = proxy.cuts() - before;
        proxy.heal();
        round.tally.count(Fault::IoError, fired);
        round.wait_for_progress()?;
    }
    Ok(())
}

fn one_way(round: &mut Round) -> Result<(), String> {
    for _ in 0..ONE_WAY_CUTS {
        round.let_work(20..150);
        let direction = direction(round);
        let held_for =
            if round.random.chance(30) { round.random.millis(1_500..3_000) } else { round.random.millis(50..800) };
        let is_cut = round.random.chance(50);
        let proxy = proxy(round)?;
        proxy.hold(direction, true);
        std::thread::sleep(held_for);
        if is_cut {
            proxy.cut_all();
        }
        proxy.heal();
        round.count(Fault::PostgresOutage);
        round.wait_for_progress()?;
    }
    Ok(())
}

fn loss(round: &mut Round) -> Result<(), String> {
    let (per_mille, seed) = (round.random.between(10..80), round.random.draw());
    let delay = round.random.millis(0..4);
    let proxy = proxy(round)?;
    for direction in [Direction::Up, Direction::Down] {
        proxy.lose(direction, per_mille, RETRANSMIT_AFTER, seed);
        proxy.delay(direction, delay);
    }
    round.count(Fault::PostgresOutage);
    round.let_work(800..1_500);
    round.resources.postgres.iter().flat_map(|postgres| &postgres.proxies).for_each(Proxy::heal);
    round.wait_for_progress()
}
