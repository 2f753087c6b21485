//! What a probe consists of.

use crate::{
    random::Random,
    report::Fault,
    resources::Engine,
    round::{Round, Setup},
};

pub(crate) struct Probe {
    pub name: &'static str,
    pub about: &'static str,
    pub engines: &'static [Engine],
    /// Rounds of it in each pass through all probes.
    pub rounds: usize,
    pub disk: Disk,
    /// What it is played for. A campaign in which it never causes this has failed. `None` if it only adds load.
    pub fault: Option<Fault>,
    pub setup: fn(&mut Random, Engine) -> Setup,
    pub disturb: fn(&mut Round) -> Result<(), String>,
}

/// Whether the store needs a file system of its own, which takes root and loop devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disk {
    Shared,
    Own,
    /// If it can be had. The probe has a weaker way without it.
    OwnIfPossible,
}

pub(super) const BOTH: &[Engine] = &[Engine::Sqlite, Engine::Postgres];
pub(super) const SQLITE: &[Engine] = &[Engine::Sqlite];
pub(super) const POSTGRES: &[Engine] = &[Engine::Postgres];
