//! Python packages of other people: from PyPI, each by its hash, in virtual environments of their own in the cache
//! directory. One has the packages that judge what we send: another judge is another line of
//! `xtask/python/requirements.txt`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::process::{find_on_path, in_workspace, run, workspace_root};
use crate::{debian, installed};

pub(crate) const VARIABLE: &str = "OSTLER_TEST_PYTHON";

const INSTALL_SCRIPT: &str = "\
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends python3 python3-venv
";

/// The Python that finds the packages.
pub(crate) fn find_or_install() -> Result<PathBuf, String> {
    let wanted = workspace_root()?.join("xtask").join("python").join("requirements.txt");
    find_or_install_packages("python", &wanted, "the Python packages that judge what we send").map_err(|reason| {
        format!(
            "the tests let Python packages judge what we send, and they cannot be had: {reason}\n\
             hint: they come from PyPI; see that `pip download ag-ui-protocol` works, and try again"
        )
    })
}

/// The Python of the environment with this name, which has exactly the packages of a lock file.
pub(crate) fn find_or_install_packages(name: &str, requirements: &Path, what: &str) -> Result<PathBuf, String> {
    let lock = fs::read_to_string(requirements).map_err(|e| format!("cannot read {}: {e}", requirements.display()))?;
    let is_good = |made: &Path| python(made).is_file();
    let directory = installed::find_or_make(name, &lock, is_good, |new| make(new, requirements, what))?;
    Ok(python(&directory))
}

fn make(new: &Path, requirements: &Path, what: &str) -> Result<(), String> {
    eprintln!("    installing {what}, once");
    let mut venv = in_workspace(find_or_install_python()?)?;
    run(venv.args(["-m", "venv"]).arg(new).stdout(Stdio::null()))?;
    let mut pip = in_workspace(python(new))?;
    // By hashes, and wheels alone: nothing of theirs is run to install them.
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes", "--no-deps"]);
    pip.args(["--only-binary", ":all:", "--requirement"]).arg(requirements);
    run(pip.stdout(Stdio::null()))
}

fn python(environment: &Path) -> PathBuf {
    environment.join("bin").join("python")
}

fn find_or_install_python() -> Result<PathBuf, String> {
    if find_on_path("python3").is_none() {
        debian::install("python3", INSTALL_SCRIPT)?;
    }
    find_on_path("python3").ok_or_else(|| "Debian's python3 is installed, but not where it should be".into())
}
