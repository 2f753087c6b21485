//! Finds the tests that failed and then passed on a later try, in the JUnit report that nextest writes in CI's profile.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::process::workspace_root;

/// Nextest writes it there even if `CARGO_TARGET_DIR` is set. The name is from `.config/nextest.toml`.
const REPORT: &str = "target/nextest/ci/junit.xml";

/// Deletes the report of an earlier run: a run that ends early writes none.
pub(crate) fn delete_report() -> Result<(), String> {
    match fs::remove_file(report()?) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(format!("cannot delete {REPORT}: {error}")),
        _ => Ok(()),
    }
}

/// The names of the flaky tests of the last run, with their binaries.
pub(crate) fn list() -> Result<Vec<String>, String> {
    match fs::read_to_string(report()?) {
        Ok(report) => Ok(flaky_tests(&report)),
        // The run ended before its first test.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(vec![]),
        Err(error) => Err(format!("cannot read {REPORT}: {error}")),
    }
}

fn report() -> Result<PathBuf, String> {
    Ok(workspace_root()?.join(REPORT))
}

/// Text of tests is escaped in the report, so an unescaped `<` always begins an element.
fn flaky_tests(report: &str) -> Vec<String> {
    let cases = report.split("<testcase ").skip(1);
    let flaky = cases.filter(|case| case.contains("<flakyFailure "));
    flaky.filter_map(|case| Some(format!("{} {}", attribute(case, "classname")?, attribute(case, "name")?))).collect()
}

/// The value of an attribute of the element at the beginning of the text.
fn attribute<'a>(element: &'a str, name: &str) -> Option<&'a str> {
    let (attributes, _) = element.split_once('>')?;
    let mut values = attributes.split_ascii_whitespace().filter_map(|attribute| attribute.split_once('='));
    values.find(|(attribute, _)| *attribute == name).map(|(_, value)| value.trim_end_matches('/').trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tests_that_passed_on_a_later_try_are_flaky() {
        let report = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="nextest-run" tests="4">
    <testsuite name="ostler-server::server" tests="4">
        <testcase name="leases::good" classname="ostler-server::server" time="0.008"/>
        <testcase name="leases::flaky::postgres" classname="ostler-server::server" time="0.017">
            <flakyFailure time="0.273" message="panicked" type="test failure">did not happen: &lt;flakyFailure </flakyFailure>
            <flakyFailure time="0.273" message="panicked" type="test failure">did not happen</flakyFailure>
        </testcase>
        <testcase name="leases::prints" classname="ostler-server::server" time="0.2">
            <failure message="panicked" type="test failure">&lt;flakyFailure </failure>
            <rerunFailure message="panicked" type="test failure">did not happen</rerunFailure>
        </testcase>
        <testcase name="last" classname="ostler-server::server"/>
    </testsuite>
</testsuites>"#;
        assert_eq!(flaky_tests(report), ["ostler-server::server leases::flaky::postgres"]);
        assert_eq!(flaky_tests(""), [""; 0]);
    }
}
