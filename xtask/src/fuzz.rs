//! `cargo xtask fuzz`: tries what strangers might send for as long as is asked. Built for development, so that every overflow
//! and every assertion of our own counts.

use crate::process::{cargo, run};

pub(crate) fn fuzz(arguments: &[String]) -> Result<(), String> {
    run(cargo()?.args(["run", "--quiet", "--package", "ostler-fuzz", "--"]).args(arguments))
}
