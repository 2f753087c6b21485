//! The account that runs the server. Postgres refuses to run as root, so root starts it as an unprivileged account.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

#[derive(Clone, Copy)]
pub(super) enum Owner {
    Ourselves,
    Other { uid: u32, gid: u32 },
}

impl Owner {
    pub(super) fn choose() -> Result<Self, String> {
        if !rustix::process::geteuid().is_root() {
            return Ok(Self::Ourselves);
        }
        let accounts = fs::read_to_string("/etc/passwd").map_err(|e| format!("cannot read the accounts: {e}"))?;
        let find = |name: &str| {
            let mut accounts = accounts.lines().map(|line| line.split(':').collect::<Vec<_>>());
            let account = accounts.find(|fields| fields.first() == Some(&name))?;
            Some(Self::Other { uid: account.get(2)?.parse().ok()?, gid: account.get(3)?.parse().ok()? })
        };
        find("postgres")
            .or_else(|| find("nobody"))
            .ok_or_else(|| "Postgres does not run as root, and there is no other account to run it as".to_owned())
    }

    /// A command run as this account, in a directory that the account can enter.
    pub(super) fn command(self, program: &Path, directory: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(directory).stdin(Stdio::null());
        if let Self::Other { uid, gid } = self {
            command.uid(uid).gid(gid);
        }
        command
    }
}
