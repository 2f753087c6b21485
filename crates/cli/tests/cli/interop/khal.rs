//! khal, unmodified, imports an exported calendar and lists the same times.

use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    process::stdout_of,
    test_home::{Engine, TestHome, one_engine},
};

/// Everything of khal's is in the home of the test. It shows times in UTC.
fn khal(home: &TestHome, args: &[&str]) -> Output {
    let python = std::env::var("OSTLER_TEST_PYTHON");
    let python = python.expect("`cargo xtask test` installs khal, and names its Python");
    let mut command = Command::new(python);
    command.env_clear().env("HOME", home.path("")).env("LANG", "C.UTF-8");
    command.args(["-m", "khal", "-c"]).arg(home.path("khal.conf")).args(args).output().unwrap()
}

fn configure(home: &TestHome) {
    let (calendar, cache) = (home.path("calendar"), home.path("khal.db"));
    std::fs::create_dir(&calendar).unwrap();
    let config = format!(
        "[calendars]\n[[ostler]]\npath = {}\ntype = calendar\n[sqlite]\npath = {}\n[locale]\nlocal_timezone = UTC\n\
         default_timezone = UTC\ntimeformat = %H:%M\ndateformat = %Y-%m-%d\nlongdateformat = %Y-%m-%d\n\
         datetimeformat = %Y-%m-%d %H:%M\nlongdatetimeformat = %Y-%m-%d %H:%M\n[default]\ndefault_calendar = ostler\n",
        calendar.display(),
        cache.display()
    );
    std::fs::write(home.path("khal.conf"), config).unwrap();
}

/// What khal lists from this day on, for so many days: an event once for each of its days.
fn listed(home: &TestHome, from: &str, days: &str) -> Vec<Value> {
    let fields = ["title", "start", "end", "all-day", "description", "location"].map(|field| ["--json", field]);
    let text = stdout_of(khal(home, &[&["list"][..], fields.as_flattened(), &[from, days]].concat()));
    let lines = text.lines().map(|line| serde_json::from_str::<Vec<Value>>(line).unwrap());
    lines.flatten().collect()
}

#[one_engine]
fn khal_imports_an_export_with_the_same_times_and_texts(engine: Engine) {
    let home = TestHome::new(engine);
    let server = home.serve();
    let mut http = Http::new(&server);
    let (title, description) = ("Müller, Größe; Übergabe", "first line\nsecond, with a comma");
    for event in [
        // The clocks of Berlin change on 29 March.
        json!({"title": title, "description": description, "location": "Zimmer 7, \"Süd\"", "starts_at": "2026-03-23T09:00",
            "ends_at": "2026-03-23T09:30", "event_timezone": "Europe/Berlin", "recurrence": "FREQ=WEEKLY;COUNT=3"}),
        json!({"title": "Fair", "starts_at": "2026-05-01", "ends_at": "2026-05-04", "all_day": true,
            "event_timezone": "Asia/Tokyo"}),
        json!({"title": "Call", "starts_at": "2026-07-01T12:00", "ends_at": "2026-07-01T13:00", "event_timezone": "UTC"}),
    ] {
        http.post("/api/v1/calendar-events", &event).good();
    }
    let file = home.path("calendar.ics");
    std::fs::write(&file, stdout_of(home.cli(Some(&server), &["calendar", "export"]))).unwrap();
    configure(&home);
    let imported = khal(&home, &["import", "--batch", "-a", "ostler", file.to_str().unwrap()]);
    assert!(imported.status.success(), "{imported:?}");

    let weekly = listed(&home, "2026-03-20", "30d");
    let starts: Vec<_> = weekly.iter().map(|event| event["start"].as_str().unwrap()).collect();
    assert_eq!(starts, ["2026-03-23 08:00", "2026-03-30 07:00", "2026-04-06 07:00"]);
    assert_eq!(weekly[2]["end"], "2026-04-06 07:30");
    for event in &weekly {
        assert_eq!((&event["title"], &event["description"]), (&json!(title), &json!(description)));
        assert_eq!(event["location"], "Zimmer 7, \"Süd\"");
    }
    let fair = listed(&home, "2026-04-28", "10d");
    assert_eq!(fair.len(), 3, "it is listed on each of its days");
    // khal shows the last day, and iCalendar has the day after it.
    assert_eq!((&fair[0]["start"], &fair[0]["end"]), (&json!("2026-05-01"), &json!("2026-05-03")));
    assert_eq!(fair[0]["all-day"], "True");
    let call = listed(&home, "2026-07-01", "1d");
    assert_eq!((&call[0]["start"], &call[0]["end"]), (&json!("2026-07-01 12:00"), &json!("2026-07-01 13:00")));
    server.stop();
}
