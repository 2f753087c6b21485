//! Power cuts: the processes are frozen where they stand, the disk is copied as the device has it, and the machine starts
//! again from the copy. What only the page cache had is gone.

use super::{BOTH, Disk, Probe};
use crate::{
    report::Fault,
    round::{Round, Setup},
};

const CUTS: usize = 2;

pub(crate) const PROBE: Probe = Probe {
    name: "power-cut",
    about: "the machine of the store loses power: what no process had asked the disk to write is gone",
    engines: BOTH,
    rounds: 3,
    disk: Disk::Own,
    fault: Some(Fault::PowerCut),
    setup: |_, _| Setup::default(),
    disturb: cut,
};

fn cut(round: &mut Round) -> Result<(), String> {
    for _ in 0..CUTS {
        round.let_work(50..400);
        round.cut_power()?;
        round.count(Fault::PowerCut);
        round.wait_for_progress()?;
    }
    Ok(())
}
