//! A campaign: rounds of all probes, in an order drawn from the seed, until the time is over.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::{
    clock::{now, since},
    probe::{Disk, ONCE, PROBES, Probe},
    random::Random,
    report::{Fault, Tally, Violation},
    resources::{CampaignResources, Engine, Scale},
    round,
};

/// More of them say nothing new.
const VIOLATIONS_MAX: usize = 20;

#[derive(Clone)]
pub(crate) struct Order {
    pub seed: u64,
    pub minutes: f64,
    /// Rounds at most; by default as many as there is time for.
    pub rounds: Option<u64>,
    pub probe: Option<&'static Probe>,
}

/// Plays an engine's campaign. Call this on a thread that outlives it: see [`CampaignResources::set`].
pub(crate) fn run(
    engine: Engine,
    ostler: &Path,
    order: &Order,
    logs: &Path,
    started: Instant,
) -> Result<Tally, String> {
    let mut resources = CampaignResources::set(engine, ostler, Scale::of(order.minutes))?;
    let mut tally = Tally::default();
    if let Err(why) = &resources.mounts {
        for probe in PROBES.iter().filter(|probe| probe.disk != Disk::Shared && probe.engines.contains(&engine)) {
            let how = if probe.disk == Disk::Own { "was not done" } else { "was done in a weaker way" };
            tally.not_done.push(format!("{} {how}: loop mounts are not available: {why}", probe.name));
        }
    }
    let mut deck = Deck::new(engine, order, resources.mounts.is_ok());
    if deck.probes.is_empty() {
        return Ok(tally);
    }
    let enough = |tally: &Tally| {
        crate::interrupt::is_interrupted()
            || since(started) >= Duration::from_secs_f64(order.minutes * 60.0)
            || order.rounds.is_some_and(|rounds| tally.rounds >= rounds)
            || tally.violations.len() >= VIOLATIONS_MAX
    };
    let mut caused: BTreeMap<&str, (&Probe, Tally)> = BTreeMap::new();
    while !enough(&tally) {
        let (probe, seed) = deck.next();
        let began = now();
        let played = round::play(&mut resources, probe, seed, logs);
        let faults: Vec<String> =
            played.faults.iter().map(|(fault, times)| format!("{times} {}", fault.name())).collect();
        println!(
            "{:>6.1} s  {:8} {:>4}  {:18} seed {seed:<20} {:>5.1} s  {}",
            since(started).as_secs_f64(),
            engine.name(),
            tally.rounds + 1,
            probe.name,
            since(began).as_secs_f64(),
            faults.join(", ")
        );
        for violation in &played.violations {
            println!("VIOLATION on {} in {}: {}", engine.name(), probe.name, violation.what);
            println!(
                "    again: cargo xtask torture --engine {} --probe {} --seed {seed} --rounds 1",
                engine.name(),
                probe.name
            );
        }
        caused.entry(probe.name).or_insert_with(|| (probe, Tally::default())).1.add(played.clone());
        tally.add(played);
    }
    for (probe, of_probe) in caused.values() {
        tally.violations.extend(find_without_effect(probe, of_probe, engine, order.seed));
    }
    // Every fault is in the table, also one that was not tried.
    Fault::ALL.into_iter().for_each(|fault| tally.count(fault, 0));
    Ok(tally)
}

/// A probe whose rounds never caused its fault has shown nothing.
fn find_without_effect(probe: &'static Probe, played: &Tally, engine: Engine, seed: u64) -> Option<Violation> {
    let fault = probe.fault.filter(|fault| played.of(*fault) == 0 && !crate::interrupt::is_interrupted())?;
    let what = format!("{} rounds of {} caused no {}", played.rounds, probe.name, fault.name());
    println!("VIOLATION on {} in {}: {what}", engine.name(), probe.name);
    Some(Violation { engine, probe: probe.name, seed, what })
}

/// The order of rounds: all probes as often as they are worth, shuffled, and again.
struct Deck {
    random: Random,
    probes: Vec<&'static Probe>,
    waiting: Vec<&'static Probe>,
    /// The seed itself is that of the first round, so that a single round can be repeated.
    next_seed: u64,
}

impl Deck {
    fn new(engine: Engine, order: &Order, mounts: bool) -> Self {
        let fits = |probe: &&'static Probe| match order.probe {
            Some(only) => only.name == probe.name,
            None => probe.engines.contains(&engine),
        };
        let probes: Vec<_> = PROBES.iter().filter(fits).filter(|probe| mounts || probe.disk != Disk::Own).collect();
        let once = probes.iter().copied().filter(|probe| probe.name == ONCE && order.probe.is_none()).collect();
        let mut deck = Self { random: Random::new(order.seed), probes, waiting: vec![], next_seed: order.seed };
        deck.fill();
        deck.waiting.extend::<Vec<_>>(once);
        deck
    }

    fn fill(&mut self) {
        let only = self.probes.len() == 1;
        let worth = self.probes.iter().filter(|probe| only || probe.name != ONCE);
        self.waiting = worth.flat_map(|probe| std::iter::repeat_n(*probe, probe.rounds)).collect();
        self.random.shuffle(&mut self.waiting);
    }

    fn next(&mut self) -> (&'static Probe, u64) {
        if self.waiting.is_empty() {
            self.fill();
        }
        let seed = self.next_seed;
        self.next_seed = self.random.draw();
        (self.waiting.pop().unwrap_or(&PROBES[0]), seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(probe: Option<&'static Probe>) -> Order {
        Order { seed: 7, minutes: 1.0, rounds: None, probe }
    }

    #[test]
    fn a_pass_has_every_probe_of_the_engine_and_the_seed_gives_the_order() {
        for engine in [Engine::Sqlite, Engine::Postgres] {
            let mut deck = Deck::new(engine, &order(None), true);
            let pass: Vec<_> =
                (0..deck.waiting.len()).map(|_| deck.next()).map(|(probe, seed)| (probe.name, seed)).collect();
            let expected = PROBES.iter().filter(|probe| probe.engines.contains(&engine));
            assert!(expected.clone().all(|probe| pass.iter().any(|(name, _)| *name == probe.name)), "{pass:?}");
            assert_eq!(pass.len(), expected.map(|probe| probe.rounds).sum::<usize>());
            assert_eq!(pass[0], (ONCE, 7), "the longest first, with the seed itself");
            let mut again = Deck::new(engine, &order(None), true);
            assert!(pass.iter().all(|round| again.next().0.name == round.0));
        }
    }

    #[test]
    fn a_probe_that_caused_none_of_its_faults_is_a_violation() {
        let probe = crate::probe::find("io-errors").unwrap();
        let mut played = Tally { rounds: 2, ..Tally::default() };
        // A kill at the start of a round is not what this probe is played for.
        played.count(Fault::ServerKill, 2);
        let found = find_without_effect(probe, &played, Engine::Sqlite, 7).unwrap();
        assert_eq!((found.probe, found.what.as_str()), ("io-errors", "2 rounds of io-errors caused no I/O errors"));
        played.count(Fault::IoError, 1);
        assert!(find_without_effect(probe, &played, Engine::Sqlite, 7).is_none());
    }

    #[test]
    fn a_single_probe_is_repeated_by_its_seed() {
        let mut deck = Deck::new(Engine::Sqlite, &order(crate::probe::find("kill-server")), true);
        let rounds = [deck.next(), deck.next()];
        assert_eq!((rounds[0].0.name, rounds[0].1), ("kill-server", 7));
        assert_ne!(rounds[1].1, 7);
    }
}
