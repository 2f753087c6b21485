//! For tests: lets a Python package judge our results. `cargo xtask test` installs the packages and names their Python.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use serde_json::Value;

/// Runs a script on one line of JSON per question, and returns its answers, one for each.
pub(crate) fn ask_python(script: &str, questions: &[Value]) -> Vec<Value> {
    let python = std::env::var("OSTLER_TEST_PYTHON");
    let python = python.expect("`cargo xtask test` installs the packages that judge us, and names their Python");
    let mut command = Command::new(python);
    command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let text: String = questions.iter().map(|question| format!("{question}\n")).collect();
    let writer = std::thread::spawn(move || stdin.write_all(text.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "the script failed");
    let answers: Vec<Value> =
        String::from_utf8(output.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), questions.len(), "one answer for each question");
    answers
}
