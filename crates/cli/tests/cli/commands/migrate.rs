//! `ostler migrate`, before the first server and again.

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
