//! File systems in image files, or a note that this machine cannot mount them.

use std::{fs::File, io::Write, path::Path};

use ostler_testkit::loop_mount::LoopMount;

/// Where `cargo xtask test` gathers what could not be tested, to say it at its end.
const NOT_TESTED_FILE: &str = "OSTLER_NOT_TESTED";
/// Set to anything: what cannot be tested here has failed.
const TEST_EVERYTHING: &str = "OSTLER_TEST_EVERYTHING";

/// Mounts, or says aloud that this machine cannot: past the capture of a passing test's output.
pub fn mount_or_say_so(image: &Path, bytes: u64, dir: &Path) -> Option<LoopMount> {
    let why = match LoopMount::create(image, bytes, dir) {
        Ok(mount) => return Some(mount),
        Err(why) => why,
    };
    assert!(std::env::var_os(TEST_EVERYTHING).is_none(), "loop mounts are not available here: {why}");
    let test = std::thread::current().name().unwrap_or("a test").to_owned();
    let line = format!("NOT TESTED: {test}: loop mounts are not available here: {why}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(file) = std::env::var_os(NOT_TESTED_FILE) {
        let mut file = File::options().create(true).append(true).open(file).unwrap();
        file.write_all(line.as_bytes()).unwrap();
    }
    None
}
