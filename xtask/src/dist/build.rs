//! The program of a release: built here, or named by the caller.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::process::{cargo, run, workspace_root};

pub(crate) struct Program {
    pub path: PathBuf,
    pub version: String,
    pub commit: String,
    pub features: Vec<String>,
}

impl Program {
    /// Builds it with its default features, from the locked dependencies.
    pub(crate) fn build(profile: &str) -> Result<Self, String> {
        eprintln!("==> building ostler (profile {profile})");
        run(cargo()?.args(["build", "--locked", "--profile", profile, "--package", "ostler-cli", "--bin", "ostler"]))?;
        let folder = if profile == "dev" { "debug" } else { profile };
        Self::at(&target_directory()?.join(folder).join("ostler"))
    }

    pub(crate) fn at(path: &Path) -> Result<Self, String> {
        let path = fs::canonicalize(path).map_err(|e| format!("cannot find {}: {e}", path.display()))?;
        let printed = output(Command::new(&path).arg("--version"))?;
        let (version, commit, features) =
            read_version(&printed).ok_or(format!("{} is not ostler: it printed {printed:?}", path.display()))?;
        Ok(Self { path, version, commit, features })
    }

    pub(crate) fn archive_name(&self) -> Result<String, String> {
        Ok(format!("ostler-{}-{}", self.version, host()?))
    }

    /// What it prints.
    pub(crate) fn print(&self, arguments: &[&str]) -> Result<String, String> {
        output(Command::new(&self.path).args(arguments).env_remove("COMPLETE"))
    }
}

/// Version, commit and features of `ostler 0.1.0 (commit 0123456789ab, features: s3)`.
fn read_version(printed: &str) -> Option<(String, String, Vec<String>)> {
    let (version, rest) = printed.trim().strip_prefix("ostler ")?.split_once(" (commit ")?;
    let (commit, features) = rest.strip_suffix(')')?.split_once(", features: ")?;
    let features = features.split(' ').filter(|feature| *feature != "none").map(str::to_owned).collect();
    Some((version.to_owned(), commit.to_owned(), features))
}

/// The platform that the program is built for.
pub(crate) fn host() -> Result<String, String> {
    let printed = output(Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into())).arg("-vV"))?;
    let host = printed.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| "rustc does not name its host".to_owned())
}

pub(crate) fn target_directory() -> Result<PathBuf, String> {
    // Joining an absolute path replaces the root, which is also what cargo does with this variable.
    Ok(workspace_root()?.join(std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into())))
}

/// What a command prints on stdout. Its stderr is ours.
pub(crate) fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stderr(std::process::Stdio::inherit()).output();
    let output = output.map_err(|e| format!("cannot start {program}: {e}"))?;
    if !output.status.success() {
        return Err(format!("{program} failed ({})", output.status));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("{program} printed something that is not text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_names_its_commit_and_features() {
        let read =
            |text| read_version(text).map(|(version, commit, features)| format!("{version} {commit} {features:?}"));
        assert_eq!(read("ostler 0.1.0 (commit unknown, features: none)\n").unwrap(), "0.1.0 unknown []");
        assert_eq!(read("ostler 0.1.0 (commit ab12, features: a b)").unwrap(), r#"0.1.0 ab12 ["a", "b"]"#);
        assert_eq!(read("ostler 0.1.0"), None);
    }
}
