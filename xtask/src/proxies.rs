//! nginx and Caddy, which tests put in front of servers: found on the machine, else Debian's.

use std::path::Path;

use crate::debian;
use crate::process::find_on_path;

/// The packages start their services, which is not wanted here: the policy keeps them from doing so.
const INSTALL_SCRIPT: &str = "\
set -eu
export DEBIAN_FRONTEND=noninteractive
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    trap \"rm -f $policy\" EXIT
    printf '#!/bin/sh\\nexit 101\\n' > $policy
    chmod 0755 $policy
fi
apt-get update -q
apt-get install -q -y --no-install-recommends nginx-light caddy
";

/// Where Debian installs them; only root has this directory on its path.
const SBIN: &str = "/usr/sbin";

pub(crate) fn find_or_install() -> Result<(), String> {
    if are_there() {
        return Ok(());
    }
    debian::install("nginx and Caddy", INSTALL_SCRIPT).map_err(|reason| {
        format!("{reason}\nhint: install nginx and Caddy (on Debian: `apt-get install nginx-light caddy`)")
    })?;
    if are_there() {
        Ok(())
    } else {
        Err("Debian's nginx and Caddy are installed, but not where they should be".into())
    }
}

fn are_there() -> bool {
    ["nginx", "caddy"].iter().all(|name| find_on_path(name).is_some() || Path::new(SBIN).join(name).is_file())
}
