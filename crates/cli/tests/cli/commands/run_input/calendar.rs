//! `ostler calendar`: add, list, change, export and delete.

use std::{io::Write, process::Stdio};

use serde_json::{Value, json};

use crate::fixtures::{
    process::stdout_of,
    test_home::{Engine, TestHome, both_engines},
};

#[both_engines]
fn an_event_is_added_listed_changed_exported_and_deleted(engine: Engine) {
    let home = TestHome::new(engine);
    let server = home.serve();
    let ostler = |args: &[&str]| home.cli(Some(&server), &[&["calendar"][..], args].concat());
    let json = |args: &[&str]| -> Value {
        serde_json::from_str(&stdout_of(ostler(&[args, &["-o", "json"]].concat()))).unwrap()
    };
    let weekly = ["--repeat", "FREQ=WEEKLY;COUNT=3"];
    let add = ["add", "Standup", "2030-03-25T09:00", "--until", "2030-03-25T09:15", "--timezone", "Europe/Berlin"];
    let made = stdout_of(ostler(&[&add[..], &weekly[..]].concat()));
    let window = ["list", "--from", "2030-03-01T00:00:00Z", "--days", "60"];
    let starts: Vec<Value> = json(&window).as_array().unwrap().iter().map(|one| one["local"].clone()).collect();
    let expected = ["2030-03-25T09:00:00+01:00", "2030-04-01T09:00:00+02:00", "2030-04-08T09:00:00+02:00"];
    assert_eq!(starts, expected.map(Value::from));
    let moved = json(&["update", &made.trim()[..20], "--start", "2030-03-26T10:00", "--repeat", ""]);
    assert_eq!((&moved["ends_at"], &moved["recurrence"]), (&"2030-03-26T10:15:00".into(), &Value::Null));
    let missing = ostler(&["add", "Night", "2030-03-31T02:30", "--timezone", "Europe/Berlin"]);
    assert!(String::from_utf8_lossy(&missing.stderr).contains("skip this local time"), "{missing:?}");
    let text = stdout_of(ostler(&["export"]));
    assert_eq!(text.matches("BEGIN:VEVENT").count(), 2);
    let read = read_with_icalendar(&text);
    assert_eq!(read, json!(["Standup", "Night"]));
    assert_eq!(stdout_of(ostler(&["delete", made.trim(), "--yes"])), "Standup deleted\n");
}

/// The titles of an exported calendar, as the package `icalendar` reads them, with which other programs import calendars.
fn read_with_icalendar(text: &str) -> Value {
    let python = std::env::var("OSTLER_TEST_PYTHON");
    let python = python.expect("`cargo xtask test` installs the packages that judge us, and names their Python");
    let script = "import sys, json; from icalendar import Calendar\n\
        events = Calendar.from_ical(sys.stdin.buffer.read()).walk('VEVENT')\n\
        print(json.dumps([str(event['SUMMARY']) for event in events if not event.errors]))";
    let mut command = std::process::Command::new(python);
    let mut child = command.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "the calendar cannot be read");
    serde_json::from_slice(&output.stdout).unwrap()
}
