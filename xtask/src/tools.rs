//! Cargo subcommands that CI needs: taken from `PATH` when recent enough, otherwise built once, pinned, into the
//! cache directory. Nothing is installed where the user's own tools live.

use std::path::PathBuf;
use std::process::Command;

use crate::process::{cargo, find_on_path, run};

pub(crate) struct Tool {
    name: &'static str,
    /// The oldest one on `PATH` that understands our configuration files.
    oldest: (u32, u32, u32),
    pinned: &'static str,
    features: &'static [&'static str],
}

pub(crate) const DENY: Tool = Tool { name: "cargo-deny", oldest: (0, 18, 0), pinned: "0.20.2", features: &[] };

pub(crate) const NEXTEST: Tool = Tool {
    name: "cargo-nextest",
    oldest: (0, 9, 100),
    pinned: "0.9.143",
    // Everything but the part that replaces its own binary.
    features: &["default-no-update"],
};

/// The path of the tool, after building it if need be.
pub(crate) fn find_or_install(tool: &Tool) -> Result<PathBuf, String> {
    if let Some(path) = find_on_path(tool.name) {
        match version_of(&path) {
            Some(version) if version >= tool.oldest => return Ok(path),
            _ => eprintln!("    {} is too old, building our own {}", path.display(), tool.pinned),
        }
    }
    let root = cache_dir()?.join(format!("{}-{}", tool.name, tool.pinned));
    let binary = root.join("bin").join(tool.name);
    if version_of(&binary).is_none() {
        eprintln!("    building {} {} once, into {}", tool.name, tool.pinned, root.display());
        install(tool, &root).map_err(|e| format!("{e}\nhint: install {} yourself and try again", tool.name))?;
    }
    Ok(binary)
}

/// An unoptimised build: it takes half as long as a release build, and the tools then work for a second or so.
fn install(tool: &Tool, root: &std::path::Path) -> Result<(), String> {
    let mut command = cargo()?;
    command.args(["install", tool.name, "--version", tool.pinned, "--locked", "--debug", "--no-default-features"]);
    command.args(["--features", &tool.features.join(",")]).arg("--root").arg(root);
    // Its dependencies are not ours: in our target directory they would only take room.
    command.env_remove("CARGO_TARGET_DIR").env("CARGO_PROFILE_DEV_DEBUG", "0");
    run(&mut command)
}

fn version_of(binary: &PathBuf) -> Option<(u32, u32, u32)> {
    let output = Command::new(binary).arg("--version").output().ok().filter(|o| o.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?;
    let mut numbers = text.split_whitespace().nth(1)?.splitn(3, '.');
    let mut next = || numbers.next()?.split(['-', '+']).next()?.parse().ok();
    Some((next()?, next()?, next()?))
}

/// `$OSTLER_CACHE_DIR`, else the user's cache directory.
pub(crate) fn cache_dir() -> Result<PathBuf, String> {
    let from = |key: &str| std::env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
    from("OSTLER_CACHE_DIR")
        .or_else(|| from("XDG_CACHE_HOME").map(|cache| cache.join("ostler")))
        .or_else(|| from("HOME").map(|home| home.join(".cache").join("ostler")))
        .ok_or_else(|| "no place for tools: set OSTLER_CACHE_DIR".to_owned())
}
