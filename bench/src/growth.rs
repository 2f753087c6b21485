//! Cost that does not grow: reads and writes over stores with few and with many rows of each noun, at the first page and in the
//! middle. The rows are written past the server, because a million requests would take hours and leave the same rows.

mod fill;
mod probes;

use std::time::Duration;

use tokio::time::timeout;

use crate::engine::{Bench, Engine};
use crate::http::Connection;
use crate::machine::{now, since};
use crate::outcome::Outcome;
use crate::report::{Report, median};
use fill::Store;
use probes::{PROBES, Probe};

/// Calls of each kind on each store that are not counted.
const WARM_UP: usize = 10;
const FILL_TIMEOUT: Duration = Duration::from_secs(1_800);

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let mut worst = 0.0_f64;
    let mut failed = vec![];
    for engine in Engine::BOTH {
        let mut stores = vec![];
        for size in bench.sizes.growth {
            stores.push(timeout(FILL_TIMEOUT, Store::fill(bench, engine, size)).await??);
        }
        for probe in PROBES {
            let name = format!("growth.{}.{}", engine.name(), probe.name);
            let medians = match medians(bench, &mut stores, probe).await {
                Ok(medians) => medians,
                // Filling takes minutes, so that the other calls are measured all the same.
                Err(error) => {
                    report.note(format!("{name} failed: {error}"));
                    failed.push(name);
                    for store in &mut stores {
                        store.connection = Connection::open(&store.server).await?;
                    }
                    continue;
                }
            };
            let (few, many) = (medians[0], medians[medians.len() - 1]);
            let shown: Vec<_> = medians.iter().map(|ms| format!("{ms:.3}")).collect();
            eprintln!("    {name}: {} ms", shown.join(", "));
            report.figure(format!("{name}_ms"), many);
            report.figure(format!("{name}_ratio"), many / few);
            worst = worst.max(many / few);
        }
        for store in stores {
            store.server.stop()?;
        }
    }
    report.figure("growth.ratio_max", worst);
    report.figure("growth.failed_calls", failed.len() as f64);
    if !failed.is_empty() {
        report.failure(format!("calls that were not measured: {}", failed.join(", ")));
    }
    let sizes = bench.sizes.growth.map(|size| format!("{} events and {} of each noun", size.events, size.items));
    report.note(format!(
        "growth: medians of alternating calls on stores with {}; the ratio of the last to the first, of the call and engine where \
         it is worst",
        sizes.join(", ")
    ));
    Ok(())
}

/// The time of a call on each store in ms.
async fn medians(bench: &Bench, stores: &mut [Store], probe: &Probe) -> Outcome<Vec<f64>> {
    let mut times = vec![vec![]; stores.len()];
    for call in 0..bench.sizes.growth_calls + WARM_UP {
        for (store, times) in stores.iter_mut().zip(&mut times) {
            let request = (probe.request)(store, call);
            let started = now();
            store.connection.call(&request).await?;
            if call >= WARM_UP {
                times.push(since(started).as_secs_f64() * 1e3);
            }
        }
    }
    Ok(times.into_iter().map(median).collect())
}
