//! `ostler migrate`, before the first server and again, and the flags of all commands that work on the store itself.

use crate::fixtures::test_home::{Engine, TestHome, both_engines};

#[both_engines]
fn a_store_is_migrated_without_a_server_and_only_once(engine: Engine) {
    let home = TestHome::new(engine);
    let migrate = || {
        let output = home.cli(None, &["migrate", "-o", "json"]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let first = migrate();
    assert!(first.contains("\"0001_kernel\""), "{first}");
    assert_eq!(migrate(), first);
    let server = home.serve();
    server.stop();
    assert_eq!(migrate(), first, "the server had nothing left to do");
}

#[test]
fn commands_that_work_on_the_store_reject_flags_that_name_a_server() {
    let home = TestHome::new(Engine::Sqlite);
    home.serve().stop();
    let file = home.path("backup.tar");
    let file = file.to_str().unwrap();
    for flags in [["--server", "http://127.0.0.1:9"], ["--context", "lab"]] {
        for args in [
            &["backup", file][..],
            &["restore", file],
            &["verify"],
            &["migrate"],
            &["retention", "compact", "--yes"],
            &["serve"],
            &["daemon"],
        ] {
            let output = home.cli(None, &[args, &flags[..]].concat());
            let stderr = String::from_utf8(output.stderr).unwrap();
            assert_eq!(output.status.code(), Some(2), "{args:?}: {stderr}");
            assert!(stderr.contains(&format!("works on this machine and takes no {}", flags[0])), "{args:?}: {stderr}");
        }
    }
}

#[both_engines]
fn the_last_line_of_a_backup_names_its_source(engine: Engine) {
    let home = TestHome::new(engine);
    home.serve().stop();
    let file = home.path("backup.tar");
    let made = home.cli(None, &["backup", file.to_str().unwrap()]);
    let stdout = String::from_utf8(made.stdout).unwrap();
    let data_dir = home.data_dir.display();
    match engine {
        Engine::Sqlite => assert!(stdout.ends_with(&format!("; from {data_dir}\n")), "{stdout}"),
        Engine::Postgres => assert!(stdout.contains(&format!("; from {data_dir} and Postgres at ")), "{stdout}"),
    }
}
