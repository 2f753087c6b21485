//! Packages of Debian's, for what the tests need and the machine lacks. Elsewhere, and without the right to install
//! anything, it reports that.

use std::process::{Command, Stdio};

use crate::process::{find_on_path, run};

/// Runs a script that installs `what`, as root.
pub(crate) fn install(what: &str, script: &str) -> Result<(), String> {
    if find_on_path("apt-get").is_none() {
        return Err("it was not found, and this is not a Debian system".to_owned());
    }
    let mut command = if we_are_root() {
        Command::new("sh")
    } else if may_become_root() {
        let mut command = Command::new("sudo");
        command.args(["-n", "sh"]);
        command
    } else {
        return Err("it was not found, and we may not install packages".to_owned());
    };
    eprintln!("    not found: installing Debian's {what}");
    run(command.args(["-c", script]).stdin(Stdio::null()))
}

pub(crate) fn we_are_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn may_become_root() -> bool {
    let mut command = Command::new("sudo");
    command.args(["-n", "true"]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
