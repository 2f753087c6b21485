//! `cargo xtask dist`: the release archive. It contains the program, completions, manual pages, the systemd unit, the licences of
//! everything that is linked into the program, an SBOM, and checksums.

mod archive;
mod build;
mod install;
mod inventory;
mod licences;
mod sbom;

use std::fs;
use std::path::{Path, PathBuf};

use crate::process::workspace_root;
use build::Program;
use inventory::Inventory;

pub(crate) use install::install;

const USAGE: &str = "usage: cargo xtask dist [--profile NAME] [--binary FILE] [--out DIR]";
/// The profile of a release. The archive of another one is for tests.
const RELEASE: &str = "release";
/// Faults on demand, which no release has.
const NEVER_RELEASED: &str = "fault-injection";

struct Order {
    profile: String,
    /// A program that was built before.
    binary: Option<PathBuf>,
    /// Where the archive is written; `target/dist` if not given.
    out: Option<PathBuf>,
}

/// Rejects a program that must not be published.
fn check_release(program: &Program) -> Result<(), String> {
    check_features(program)?;
    if program.commit == "unknown" {
        return Err("the program does not know its commit; set OSTLER_SOURCE_COMMIT, or build in a checkout".into());
    }
    Ok(())
}

fn check_features(program: &Program) -> Result<(), String> {
    match program.features.iter().any(|feature| feature == NEVER_RELEASED) {
        true => Err(format!("{} was built with {NEVER_RELEASED}; no release is", program.path.display())),
        false => Ok(()),
    }
}

pub(crate) fn dist(arguments: &[String]) -> Result<(), String> {
    let order = read(arguments)?;
    let program = match &order.binary {
        Some(path) => Program::at(path)?,
        None => Program::build(&order.profile)?,
    };
    let is_release = order.profile == RELEASE;
    if is_release {
        check_release(&program)?;
    }
    let out = order.out.map_or_else(|| Ok(build::target_directory()?.join("dist")), Ok::<_, String>)?;
    fs::create_dir_all(&out).map_err(|e| format!("cannot make {}: {e}", out.display()))?;
    let name = program.archive_name()?;
    let staged = tempfile::tempdir_in(&out).map_err(|e| format!("cannot write to {}: {e}", out.display()))?;
    let contents = staged.path().join(&name);
    fill(&contents, &program)?;
    let archive = archive::pack(staged.path(), &name, &out, if is_release { 6 } else { 1 })?;
    eprintln!("==> {}", archive.display());
    Ok(())
}

fn read(arguments: &[String]) -> Result<Order, String> {
    let mut order = Order { profile: RELEASE.to_owned(), binary: None, out: None };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let mut value = || rest.next().ok_or(format!("{argument} needs a value\n{USAGE}"));
        match argument.as_str() {
            "--profile" => order.profile = value()?.clone(),
            "--binary" => order.binary = Some(value()?.into()),
            "--out" => order.out = Some(value()?.into()),
            other => return Err(format!("`dist` does not know `{other}`\n{USAGE}")),
        }
    }
    Ok(order)
}

fn fill(contents: &Path, program: &Program) -> Result<(), String> {
    let root = workspace_root()?;
    put(contents, "bin/ostler", |path| fs::copy(&program.path, path).map(drop))?;
    for (shell, file) in [("bash", "ostler.bash"), ("zsh", "_ostler"), ("fish", "ostler.fish")] {
        let script = program.print(&["completions", shell])?;
        put(contents, &format!("completions/{file}"), |path| fs::write(path, &script))?;
    }
    program.print(&["man", &contents.join("man/man1").display().to_string()])?;
    for (from, to) in [
        ("deploy/ostler.service", "systemd/ostler.service"),
        ("LICENSE", "LICENSE"),
        ("README.md", "README.md"),
        ("CHANGELOG.md", "CHANGELOG.md"),
    ] {
        put(contents, to, |path| fs::copy(root.join(from), path).map(drop))?;
    }
    let inventory = Inventory::read(program)?;
    licences::write(contents, &inventory)?;
    put(contents, "sbom.cdx.json", |path| fs::write(path, sbom::render(&inventory)))?;
    archive::list_checksums(contents, &archive::files_below(contents)?)
}

/// Writes one file of the archive, and makes the directories above it.
fn put(contents: &Path, name: &str, write: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<(), String> {
    let path = contents.join(name);
    let made = path.parent().map_or(Ok(()), fs::create_dir_all);
    made.and_then(|()| write(&path)).map_err(|e| format!("cannot write {}: {e}", path.display()))
}
