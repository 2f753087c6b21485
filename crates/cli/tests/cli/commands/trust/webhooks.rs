//! `ostler webhooks`: set, test, list and replay.

use serde_json::{Value, json};

use crate::fixtures::{
    process::stdout_of,
    test_home::{Engine, TestHome, both_engines},
};

/// A local port without a listener. A development server accepts it as a webhook.
const UNREACHABLE: &str = "https://localhost:9/hook";

#[both_engines]
fn a_webhook_is_set_tested_removed_and_replayed(engine: Engine) {
    let mut home = TestHome::new(engine);
    home.set("OSTLER_WEBHOOKS__ALLOW_LOOPBACK", "true");
    let server = home.serve();
    let ostler = |args: &[&str]| home.cli(Some(&server), args);
    let json = |args: &[&str]| -> Value {
        serde_json::from_str(&stdout_of(ostler(&[args, &["-o", "json"]].concat()))).unwrap()
    };
    let made = stdout_of(ostler(&["agents", "create", "told"]));
    let agent = made.trim();
    let none = ostler(&["webhooks", "show", "told"]);
    let printed = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(
        printed.contains("the agent has no webhook") && printed.contains("ostler webhooks set AGENT URL"),
        "{printed}"
    );
    let set = ostler(&["webhooks", "set", "told", UNREACHABLE]);
    assert!(String::from_utf8_lossy(&set.stderr).contains("it is not shown again"), "{set:?}");
    let secret = stdout_of(set);
    assert_eq!(secret.trim().len(), 44, "base64 of 32 bytes and nothing else: {secret}");
    let shown = stdout_of(ostler(&["webhooks", "show", &agent[..agent.len() - 1]]));
    assert_eq!(shown, format!("{UNREACHABLE}\n"));
    let reported = stdout_of(ostler(&["webhooks", "test", agent]));
    let delivery = reported.trim();
    assert!(stdout_of(ostler(&["webhooks", "show", agent, delivery])).starts_with("webhook.test pending after "));
    assert_eq!(stdout_of(ostler(&["webhooks", "remove", agent, "--yes"])), format!("{UNREACHABLE} removed\n"));
    let dead = json(&["webhooks", "list", agent, "--status", "dead"]);
    assert_eq!(
        (&dead[0]["delivery_id"], &dead[0]["last_error"]),
        (&json!(delivery), &json!("the webhook was removed"))
    );
    let replay = ["webhooks", "replay", agent, "--dead"];
    assert!(!ostler(&replay).status.success(), "there is no webhook to tell it to");
    stdout_of(ostler(&["webhooks", "set", agent, UNREACHABLE]));
    assert_eq!(stdout_of(ostler(&replay)), format!("{delivery} pending\n"));
    assert_eq!(json(&["webhooks", "list", agent, "--status", "dead"]), json!([]));
}

#[both_engines]
fn a_webhook_at_a_forbidden_address_is_rejected(engine: Engine) {
    let home = TestHome::new(engine);
    let server = home.serve();
    let made = stdout_of(home.cli(Some(&server), &["agents", "create", "told"]));
    for url in ["http://agent.example/hook", "https://10.0.0.1/hook", UNREACHABLE] {
        let refused = home.cli(Some(&server), &["webhooks", "set", made.trim(), url]);
        let words = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
        assert!(words.contains("this cannot be a webhook"), "{words}");
    }
}
