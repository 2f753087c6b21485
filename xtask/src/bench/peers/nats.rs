//! nats-server, of a version that can sync each write: found on `PATH`, else Debian's. The package is unpacked into the cache
//! directory instead of being installed, because its installation would start a server. apt checks its signature.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::installation::Peer;
use crate::installed;
use crate::process::{find_on_path, in_workspace, run};

/// The first with `sync_interval: always`.
const OLDEST: (u32, u32) = (2, 10);

/// From the first release of Debian with such a version, whichever release this machine has. The mirror and the keys are
/// those of the machine; apt's own state is not touched.
const UNPACK_SCRIPT: &str = "\
set -eu
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Origin: Debian' | head -n 1)
test -n \"$mirror\" || { echo 'apt knows no mirror of Debian; `apt-get update` may help' >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf \"$work\"' EXIT
mkdir -p \"$work/lists/partial\" \"$work/cache/archives/partial\" \"$work/parts\"
echo \"deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror trixie main\" > \"$work/sources.list\"
apt() {
  apt-get -q -o Dir::Etc::SourceList=\"$work/sources.list\" -o Dir::Etc::SourceParts=\"$work/parts\" \\
    -o Dir::State::Lists=\"$work/lists\" -o Dir::Cache=\"$work/cache\" -o APT::Sandbox::User=\"$(id -un)\" \"$@\"
}
apt update >&2
cd \"$work\"
apt download nats-server >&2
dpkg-deb -x nats-server_*.deb \"$1\"
";

pub(crate) fn find_or_install() -> Result<Peer, String> {
    let on_path = find_on_path("nats-server").and_then(|server| Some((version_of(&server)?, server)));
    if let Some((version, server)) = on_path.filter(|(version, _)| is_new_enough(version)) {
        return Ok(Peer::new(version, [("server", &server)]));
    }
    if find_on_path("apt-get").is_none() {
        return Err("no nats-server of version 2.10 or later is on PATH, and this is not a Debian system".to_owned());
    }
    let is_good = |directory: &Path| server_in(directory).is_some();
    let directory = installed::find_or_make("nats-server", UNPACK_SCRIPT, is_good, |new| {
        eprintln!("    unpacking Debian's nats-server, once");
        run(in_workspace("sh")?.args(["-c", UNPACK_SCRIPT, "sh"]).arg(new).stdin(Stdio::null()))
    })?;
    let server = server_in(&directory).ok_or("Debian's package has no nats-server")?;
    let version = version_of(&server).ok_or("Debian's nats-server does not start")?;
    if !is_new_enough(&version) {
        return Err(format!("version {version} cannot sync each write; 2.10 is the first that can"));
    }
    Ok(Peer::new(version, [("server", &server)]))
}

fn server_in(directory: &Path) -> Option<PathBuf> {
    ["usr/sbin", "usr/bin"]
        .map(|folder| directory.join(folder).join("nats-server"))
        .into_iter()
        .find(|file| file.is_file())
}

fn version_of(server: &Path) -> Option<String> {
    let output = Command::new(server).arg("--version").stdin(Stdio::null()).output().ok()?;
    parse_version(&String::from_utf8_lossy(&output.stdout))
}

/// From `nats-server: v2.10.27`, with or without the letter.
fn parse_version(text: &str) -> Option<String> {
    let version = text.split_whitespace().last()?.trim_start_matches('v');
    version.starts_with(|c: char| c.is_ascii_digit()).then(|| version.to_owned())
}

fn is_new_enough(version: &str) -> bool {
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= OLDEST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_that_cannot_sync_each_write_are_too_old() {
        assert_eq!(parse_version("nats-server: v2.10.27\n").as_deref(), Some("2.10.27"));
        assert_eq!(parse_version("nats-server: 2.9.10").as_deref(), Some("2.9.10"));
        assert_eq!(parse_version("unknown command"), None);
        assert!(is_new_enough("2.10.27") && is_new_enough("3.0") && !is_new_enough("2.9.10") && !is_new_enough(""));
    }
}
