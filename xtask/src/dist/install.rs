//! `cargo xtask install`: tries the documented installation from a checkout. It installs into a scratch directory and builds
//! without optimisation, in the shared target directory, so that only what changed is compiled. It is no part of
//! `cargo xtask test`, because it is a second build with other features.

use super::build::{Program, target_directory};
use super::check_features;
use crate::process::{cargo, run};

/// The arguments of `cargo` in the README.
const INSTALL: [&str; 4] = ["install", "--locked", "--path", "crates/cli"];

pub(crate) fn install(arguments: &[String]) -> Result<(), String> {
    match arguments.first() {
        Some(unknown) => Err(format!("`install` does not know `{unknown}`\nusage: cargo xtask install")),
        None => try_install(),
    }
}

fn try_install() -> Result<(), String> {
    let place = tempfile::tempdir().map_err(|e| format!("cannot make a scratch directory: {e}"))?;
    let mut command = cargo()?;
    command.args(INSTALL).arg("--debug");
    command.arg("--root").arg(place.path()).arg("--target-dir").arg(target_directory()?);
    run(&mut command)?;
    let program = Program::at(&place.path().join("bin/ostler"))?;
    check_features(&program)?;
    let expected = env!("CARGO_PKG_VERSION");
    if program.version != expected {
        return Err(format!("the installed program is version {}, not {expected}", program.version));
    }
    eprintln!("==> installed ostler {} (commit {}), and it runs", program.version, program.commit);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::workspace_root;

    #[test]
    fn the_tried_command_is_the_one_that_the_readme_has() {
        let readme = std::fs::read_to_string(workspace_root().unwrap().join("README.md")).unwrap();
        assert!(readme.contains(&format!("`cargo {}`", INSTALL.join(" "))));
        assert!(workspace_root().unwrap().join(INSTALL[3]).join("Cargo.toml").is_file());
    }
}
