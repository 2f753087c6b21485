//! Two servers on one Postgres against one, with as many clients in all on the same machine: a second server must not cost
//! what it brings. Only rounds that follow each other are compared.

use std::time::Duration;

use crate::engine::{Bench, Engine};
use crate::machine::{now, since};
use crate::outcome::Outcome;
use crate::report::Report;
use crate::run::{CLIENTS, Load};

/// Lets the tail of one side's work end before the other side is measured.
const PAUSE: Duration = Duration::from_millis(200);

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let alone = bench.place(Engine::Postgres)?;
    let shared = bench.place(Engine::Postgres)?;
    let one = bench.serve(&alone)?;
    let (first, second) = (bench.serve(&shared)?, bench.serve(&bench.same_store(&shared))?);
    let mut sides = [(Load::open(&[&one]).await?, vec![]), (Load::open(&[&first, &second]).await?, vec![])];
    let runs = CLIENTS * bench.sizes.runs_per_client;
    // The first round warms up and is not counted.
    for round in 0..=bench.sizes.run_rounds {
        // Each side is first in every second round.
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            let (load, rates) = &mut sides[side];
            let started = now();
            load.run(runs).await?;
            let per_s = runs as f64 / since(started).as_secs_f64();
            if round > 0 {
                rates.push(per_s);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
    let [one_per_s, two_per_s]: [Vec<f64>; 2] = sides.map(|(_, rates)| rates);
    for (one, two) in one_per_s.iter().zip(&two_per_s) {
        eprintln!("    replicas: {one:.0} runs/s with one server, {two:.0} with two");
    }
    report.rounds("replicas.ratio_two_to_one", one_per_s.iter().zip(&two_per_s).map(|(one, two)| two / one));
    report.rounds("replicas.one.per_s", one_per_s);
    report.rounds("replicas.two.per_s", two_per_s);
    report.note(format!(
        "replicas: {CLIENTS} clients in all, on one server or divided between two, in alternating rounds; the ratio is the median of \
         those of single rounds"
    ));
    for server in [one, first, second] {
        server.stop()?;
    }
    Ok(())
}
