//! The browser in which the tests let a page of a foreign origin try everything: found on `PATH`, else Debian's.

use std::path::PathBuf;

use crate::debian;
use crate::process::find_on_path;

pub(crate) const VARIABLE: &str = "OSTLER_TEST_CHROMIUM";

const INSTALL_SCRIPT: &str = "\
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends chromium
";

pub(crate) fn find_or_install() -> Result<PathBuf, String> {
    if let Some(browser) = find() {
        return Ok(browser);
    }
    debian::install("chromium", INSTALL_SCRIPT).map_err(|reason| {
        format!(
            "the tests need a browser, and none can be had: {reason}\n\
             hint: install one (on Debian: `apt-get install chromium`), or name it in {VARIABLE}"
        )
    })?;
    find().ok_or_else(|| "Debian's chromium is installed, but not where it should be".into())
}

fn find() -> Option<PathBuf> {
    let named = std::env::var_os(VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
    named.or_else(|| ["chromium", "chromium-browser", "google-chrome"].into_iter().find_map(find_on_path))
}
