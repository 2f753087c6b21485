//! `ostler-fuzz TARGET [--seconds N] [--from NUMBER]`: tries cases until the time is over or one fails, and prints which.

#![expect(clippy::print_stdout, reason = "the result is the output of this program")]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use ostler_fuzz::{TARGETS, Target};

const SECONDS_DEFAULT: u64 = 60;

fn main() -> ExitCode {
    match run(std::env::args().skip(1)) {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "how long it runs is the caller's wish; no case depends on it")]
fn run(mut arguments: impl Iterator<Item = String>) -> Result<String, String> {
    let names = TARGETS.map(|target| target.name).join(", ");
    let usage = format!("usage: ostler-fuzz TARGET [--seconds N] [--from NUMBER]\n  TARGET  {names}");
    let target = arguments.next().and_then(|name| Target::find(&name)).ok_or(usage.as_str())?;
    let (mut seconds, mut from) = (SECONDS_DEFAULT, 0);
    while let Some(argument) = arguments.next() {
        let value = arguments.next().and_then(|value| value.parse().ok()).ok_or(usage.as_str())?;
        match argument.as_str() {
            "--seconds" => seconds = value,
            "--from" => from = value,
            _ => return Err(usage),
        }
    }
    let (started, mut tried) = (Instant::now(), 0_u64);
    for (number, case) in target.cases(from) {
        if started.elapsed() >= Duration::from_secs(seconds) {
            break;
        }
        target.try_one(number, &case)?;
        tried += 1;
    }
    Ok(format!("{}: {tried} cases from {from}, nothing found", target.name))
}
