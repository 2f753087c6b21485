//! Puts the commit and the features that the program is built from into `ostler --version`, and the commit into the health of its
//! server. Outside of a git checkout the commit is the one in `OSTLER_SOURCE_COMMIT`, or unknown.

use std::{env, fs, path::Path, process::Command};

const COMMIT_VARIABLE: &str = "OSTLER_SOURCE_COMMIT";
const UNKNOWN: &str = "unknown";
const COMMIT_CHARS: usize = 12;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed={COMMIT_VARIABLE}");
    let given = env::var(COMMIT_VARIABLE).ok().filter(|commit| !commit.is_empty() && commit != UNKNOWN);
    let commit = given.or_else(checked_out_commit).unwrap_or_else(|| UNKNOWN.to_owned());
    let commit: String = commit.chars().filter(char::is_ascii_alphanumeric).take(COMMIT_CHARS).collect();
    let is_feature = |name: String| Some(name.strip_prefix("CARGO_FEATURE_")?.to_lowercase().replace('_', "-"));
    let mut features: Vec<_> = env::vars().filter_map(|(name, _)| is_feature(name)).collect();
    features.sort_unstable();
    let features = if features.is_empty() { "none".to_owned() } else { features.join(" ") };
    let version = env::var("CARGO_PKG_VERSION").unwrap_or_default();
    println!("cargo::rustc-env=OSTLER_COMMIT={commit}");
    println!("cargo::rustc-env=OSTLER_VERSION={version} (commit {commit}, features: {features})");
}

/// The commit of this checkout. `None` without git, and if the sources are only a part of another project's checkout.
fn checked_out_commit() -> Option<String> {
    let package = env::var("CARGO_MANIFEST_DIR").ok()?;
    let root = fs::canonicalize(Path::new(&package).join("../..")).ok()?;
    if fs::canonicalize(git(&["rev-parse", "--show-toplevel"])?).ok()? != root {
        return None;
    }
    // Written by every commit and checkout. A file that does not exist would have this script run at every build.
    for name in ["logs/HEAD", "HEAD"] {
        let file = git(&["rev-parse", "--git-path", name])?;
        if Path::new(&file).exists() {
            println!("cargo::rerun-if-changed={file}");
            break;
        }
    }
    git(&["rev-parse", "HEAD"])
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
