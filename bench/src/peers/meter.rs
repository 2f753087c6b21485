//! What a round costs and yields: the clock, the CPU time of a side and of the generator, and how busy the rest of the
//! machine was at the same time.

use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::machine::{busy, cores, now, own_cpu, since, tree_cpu};
use crate::outcome::Outcome;
use crate::report::percentile;
use crate::run::TAIL;

/// What one round has measured. A piece of work is a run or a message.
pub(crate) struct Throughput {
    pub per_s: f64,
    /// CPU time of all processes of the side, for each piece.
    pub cpu_ms: f64,
    /// Of the client's waiting time: for a run, or for a batch of messages.
    pub p50_ms: f64,
    /// The generator's CPU time as a share of the wall-clock time.
    pub generator_share: f64,
    /// The share of the machine's processors that was neither idle nor used by the side and the generator.
    pub others_share: f64,
}

pub(crate) struct Meter {
    pids: Vec<u32>,
    cpu: Duration,
    own: Duration,
    busy: Duration,
    started: Instant,
}

impl Meter {
    /// Starts a round of a side. The CPU time of these processes counts, and that of everything that descends from them.
    pub(crate) fn start(pids: &[u32]) -> Outcome<Self> {
        let cpu = cpu_of(pids)?;
        Ok(Self { pids: pids.to_vec(), cpu, own: own_cpu()?, busy: busy()?, started: now() })
    }

    /// Ends it. Each waiting time counts for that many pieces of work.
    pub(crate) async fn finish(self, mut waiting_ms: Vec<f64>, pieces_each: usize) -> Outcome<Throughput> {
        let seconds = since(self.started).as_secs_f64();
        // Work that a server does after its answer belongs to the run.
        sleep(TAIL).await;
        let cpu = cpu_of(&self.pids)?.saturating_sub(self.cpu).as_secs_f64();
        let own = own_cpu()?.saturating_sub(self.own).as_secs_f64();
        let busy = busy()?.saturating_sub(self.busy).as_secs_f64();
        let available = since(self.started).as_secs_f64() * cores() as f64;
        waiting_ms.sort_by(f64::total_cmp);
        let pieces = (waiting_ms.len() * pieces_each) as f64;
        Ok(Throughput {
            per_s: pieces / seconds,
            cpu_ms: cpu * 1e3 / pieces,
            p50_ms: percentile(&waiting_ms, 50),
            generator_share: own / seconds,
            others_share: ((busy - cpu - own) / available).clamp(0.0, 1.0),
        })
    }
}

fn cpu_of(pids: &[u32]) -> Outcome<Duration> {
    pids.iter().map(|pid| tree_cpu(*pid)).sum()
}
