//! The `openssl` program, which judges our certificates in the tests: found on `PATH`, else Debian's.

use std::path::PathBuf;

use crate::debian;
use crate::process::find_on_path;

const INSTALL_SCRIPT: &str = "\
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends openssl
";

pub(crate) fn find_or_install() -> Result<PathBuf, String> {
    if find_on_path("openssl").is_none() {
        debian::install("openssl", INSTALL_SCRIPT).map_err(|reason| {
            format!("{reason}\nhint: install the program `openssl` (on Debian: `apt-get install openssl`)")
        })?;
    }
    find_on_path("openssl").ok_or_else(|| "Debian's openssl is installed, but not where it should be".into())
}
