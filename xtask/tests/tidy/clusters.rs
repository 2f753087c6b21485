//! Tests that can run on a real cluster, and the filter by which `cargo xtask test --kubernetes` finds them.

use std::fs;
use std::path::Path;

use crate::{assert_none, root, source_files};

/// What a test file contains if its tests can run on a real cluster.
const MARKS: [&str; 2] = ["TestCluster::any", "KubeCluster::start()"];

#[test]
fn every_test_that_can_run_on_a_real_cluster_is_run_on_one() {
    let command = fs::read_to_string(root().join("xtask/src/test.rs")).unwrap();
    let filter = command.lines().find(|line| line.starts_with("const ON_CLUSTER")).unwrap();
    let named = |kind: &str| -> Vec<String> {
        let kind = format!("{kind}(");
        let parts = filter.split(&kind).skip(1);
        parts.map(|part| part.split(')').next().unwrap().to_owned()).collect()
    };
    let (tests, binaries) = (named("test"), named("binary"));
    let mut missed = vec![];
    for path in source_files() {
        let Some((_, within)) = path.to_str().unwrap().split_once("/tests/") else { continue };
        let is_run = tests.iter().any(|part| within.contains(part.as_str()))
            || binaries.iter().any(|binary| Path::new(within).starts_with(binary));
        let text = fs::read_to_string(root().join(&path)).unwrap();
        if !is_run && !within.starts_with("tidy") && MARKS.iter().any(|mark| text.contains(mark)) {
            missed.push(path.display().to_string());
        }
    }
    assert_none(missed, "files whose tests `cargo xtask test --kubernetes` does not run");
}
