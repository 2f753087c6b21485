//! `cargo xtask bench --against REV`: builds another revision in a worktree of its own and measures it and the working
//! tree in alternating short rounds. Each revision is measured by its own load generator.

use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::compare::{self, Figures, Round};
use super::equipment::{Equipment, PROGRAMS, build, figures_dir, release_dir};
use crate::process::{cargo, in_workspace, run, workspace_root};

/// Hexadecimal digits of a commit that the tables show.
const SHORT_DIGITS: usize = 9;
/// A change of these makes figures of two revisions hard to compare.
const LOAD_PATHS: [&str; 2] = ["bench", "stand-ins"];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Side {
    Base,
    Current,
}

pub(crate) fn measure(revision: &str, round_count: usize, filter: Option<&str>) -> Result<(), String> {
    let commit = resolve(revision)?;
    let base_name = &commit[..SHORT_DIGITS.min(commit.len())];
    let place = workspace_root()?.join("target").join("against");
    eprintln!("==> building {base_name}");
    let base = find_or_build(&commit, &place)?;
    eprintln!("==> building the working tree");
    build(&mut cargo()?)?;
    // A copy, because a build in another terminal would exchange the programs between two rounds.
    let current = place.join("current");
    copy_programs(&release_dir()?, &current)?;
    if has_changed(&commit, &LOAD_PATHS)? {
        eprintln!("    the load generator differs between {base_name} and the working tree: compare figures with care");
    }

    let equipment = Equipment::start()?;
    let out = figures_dir()?.join(format!("against-{base_name}"));
    create_empty(&out)?;
    let mut measure_side = |side, number| {
        let (programs, name) = match side {
            Side::Base => (&base, base_name),
            Side::Current => (&current, "current"),
        };
        eprintln!("==> round {number}: {name}");
        let file = out.join(format!("{number}-{name}.json"));
        let mut program = equipment.load_generator(programs)?;
        // Its table has targets for a single run, which are not the question here.
        program.arg("--out").arg(&file).arg("--quick").args(filter).stdout(Stdio::null());
        run(&mut program)?;
        let json = fs::read_to_string(&file).map_err(|e| format!("cannot read {}: {e}", file.display()))?;
        compare::parse(&json).map_err(|e| format!("{}: {e}", file.display()))
    };
    let rounds = measure_until_sure(round_count, &mut measure_side)?;

    let comparison = compare::compare(&rounds);
    print!("\n{}\n{}", compare::rounds_table(&rounds, base_name), comparison.table(base_name));
    eprintln!("==> the figures of all rounds are in {}", out.display());
    match comparison.worse().len() {
        0 => Ok(()),
        1 => Err("one figure is clearly worse".to_owned()),
        count => Err(format!("{count} figures are clearly worse")),
    }
}

type MeasureSide<'a> = dyn FnMut(Side, usize) -> Result<Figures, String> + 'a;

/// Measures `count` rounds, and as many again if a figure looks worse. With a hundred figures, some of the noisy ones
/// are worse in a few rounds by chance, and few of them in twice as many.
fn measure_until_sure(count: usize, measure: &mut MeasureSide) -> Result<Vec<Round>, String> {
    let mut rounds = measure_rounds(1..=count, measure)?;
    let worse = compare::compare(&rounds).worse().join(", ");
    if !worse.is_empty() {
        eprintln!("==> as many rounds again, because these look worse: {worse}");
        rounds.extend(measure_rounds(count + 1..=2 * count, measure)?);
    }
    Ok(rounds)
}

/// Measures both sides in the order ABBAABBA…, so that a machine that gets slower or faster favours neither.
fn measure_rounds(numbers: RangeInclusive<usize>, measure: &mut MeasureSide) -> Result<Vec<Round>, String> {
    let round = |number: usize| {
        let is_base_first = number % 2 == 1;
        let [first, second] = if is_base_first { [Side::Base, Side::Current] } else { [Side::Current, Side::Base] };
        let (first, second) = (measure(first, number)?, measure(second, number)?);
        let (base, current) = if is_base_first { (first, second) } else { (second, first) };
        Ok(Round { base, current, is_base_first })
    };
    numbers.map(round).collect()
}

/// The full hash of a revision's commit.
fn resolve(revision: &str) -> Result<String, String> {
    // Without this option a revision that starts with a dash would be taken for one.
    let arguments = ["rev-parse", "--verify", "--quiet", "--end-of-options"];
    let commit = output(git()?.args(arguments).arg(format!("{revision}^{{commit}}")));
    commit.map_err(|_| format!("{revision:?} is not a revision of this repository\nhint: `git log` lists them"))
}

/// The directory with a commit's programs. They are built once for each commit and compiler.
fn find_or_build(commit: &str, place: &Path) -> Result<PathBuf, String> {
    let compiler = output(in_workspace("rustc")?.arg("--version"))?;
    let version = compiler.split_whitespace().nth(1).unwrap_or("unknown");
    let programs = place.join(format!("{commit}-rustc-{version}"));
    if PROGRAMS.iter().all(|program| programs.join(program).is_file()) {
        return Ok(programs);
    }
    // All commits share these build results: their dependencies are mostly the same.
    let target = place.join("target");
    {
        let checkout = Checkout::create(commit, place.join("checkout"))?;
        build(cargo()?.current_dir(&checkout.path).env("CARGO_TARGET_DIR", &target))?;
    }
    copy_programs(&target.join("release"), &programs)?;
    Ok(programs)
}

/// Copies all programs or none.
fn copy_programs(from: &Path, to: &Path) -> Result<(), String> {
    let unfinished = to.with_file_name("unfinished");
    create_empty(&unfinished)?;
    for program in PROGRAMS {
        let (from, to) = (from.join(program), unfinished.join(program));
        fs::copy(&from, to).map_err(|e| format!("cannot copy {}: {e}", from.display()))?;
    }
    let _ = fs::remove_dir_all(to);
    fs::rename(&unfinished, to).map_err(|e| format!("cannot create {}: {e}", to.display()))
}

fn create_empty(directory: &Path) -> Result<(), String> {
    let _ = fs::remove_dir_all(directory);
    fs::create_dir_all(directory).map_err(|e| format!("cannot create {}: {e}", directory.display()))
}

fn has_changed(commit: &str, paths: &[&str]) -> Result<bool, String> {
    let status = git()?.args(["diff", "--quiet", commit, "--"]).args(paths).status();
    Ok(!status.map_err(|e| format!("cannot start git: {e}"))?.success())
}

/// A worktree that exists as long as this value.
struct Checkout {
    path: PathBuf,
}

impl Checkout {
    fn create(commit: &str, path: PathBuf) -> Result<Self, String> {
        // The drop of this value also removes what an earlier process left when it was killed.
        drop(Self { path: path.clone() });
        let checkout = Self { path };
        run(git()?.args(["worktree", "add", "--quiet", "--detach"]).arg(&checkout.path).arg(commit))?;
        Ok(checkout)
    }
}

impl Drop for Checkout {
    fn drop(&mut self) {
        // Twice: an interrupted `worktree add` leaves a locked worktree. Not by `run`, which does nothing after a signal.
        if let Ok(mut git) = git() {
            let _ =
                git.args(["worktree", "remove", "--force", "--force"]).arg(&self.path).stderr(Stdio::null()).status();
        }
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn git() -> Result<Command, String> {
    in_workspace("git")
}

/// The trimmed standard output of a command that succeeds.
fn output(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|e| format!("cannot start {name}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_alternate_which_side_is_first() {
        let mut order = vec![];
        let rounds = measure_rounds(1..=4, &mut |side, number| {
            order.push(side);
            let value = if side == Side::Base { 10.0 } else { 20.0 };
            Ok(Figures::from([("value".to_owned(), value + number as f64)]))
        });
        use Side::{Base, Current};
        assert_eq!(order, [Base, Current, Current, Base, Base, Current, Current, Base]);
        for (index, round) in rounds.unwrap().iter().enumerate() {
            let number = (index + 1) as f64;
            assert_eq!((round.base["value"], round.current["value"]), (10.0 + number, 20.0 + number));
            assert_eq!(round.is_base_first, index % 2 == 0);
        }
    }

    #[test]
    fn a_failed_run_ends_the_rounds() {
        let mut runs = 0;
        let outcome = measure_rounds(1..=4, &mut |_, number| {
            runs += 1;
            if number == 2 { Err("failed".to_owned()) } else { Ok(Figures::new()) }
        });
        assert_eq!((outcome.err().as_deref(), runs), (Some("failed"), 3));
    }

    #[test]
    fn a_figure_that_looks_worse_is_measured_again() {
        let measure = |current: fn(usize) -> f64| {
            measure_until_sure(5, &mut |side, number| {
                let value = if side == Side::Base { 100.0 } else { current(number) };
                Ok(Figures::from([("start.ready_ms".to_owned(), value)]))
            })
            .unwrap()
        };
        let (same, worse) = (measure(|_| 101.0), measure(|_| 120.0));
        let by_chance = measure(|number| if number <= 5 { 120.0 } else { 90.0 });
        assert_eq!([&same, &worse, &by_chance].map(Vec::len), [5, 10, 10]);
        let verdicts = [same, worse, by_chance].map(|rounds| compare::compare(&rounds).worse().len());
        assert_eq!(verdicts, [0, 1, 0]);
        // The rounds that were added go on alternating.
        let order: Vec<bool> = measure(|_| 120.0).iter().map(|round| round.is_base_first).collect();
        assert_eq!(order[4..7], [true, false, true]);
    }

    #[test]
    fn programs_are_copied_all_or_none() {
        let place = tempfile::tempdir().unwrap();
        let (from, to) = (place.path().join("from"), place.path().join("to"));
        fs::create_dir(&from).unwrap();
        PROGRAMS[..2].iter().for_each(|program| fs::write(from.join(program), program).unwrap());
        assert!(copy_programs(&from, &to).unwrap_err().contains(PROGRAMS[2]));
        assert!(!to.exists());
        fs::write(from.join(PROGRAMS[2]), "").unwrap();
        copy_programs(&from, &to).unwrap();
        copy_programs(&from, &to).unwrap();
        assert!(PROGRAMS.iter().all(|program| to.join(program).is_file()));
    }
}
