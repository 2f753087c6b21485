//! Webhooks on the command line: set, tried, looked at, and begun again with what was given up.

use serde_json::{Value, json};

use crate::{
    agents::printed,
    home::{Engine, Home, both_engines},
};

/// A port of this machine where nobody listens. It may be set on a server for development.
const UNREACHABLE: &str = "https://localhost:9/hook";

#[both_engines]
fn a_webhook_is_set_tried_removed_and_replayed(engine: Engine) {
    let mut home = Home::new(engine);
    home.set("OSTLER_WEBHOOKS__ALLOW_LOOPBACK", "true");
    let server = home.serve();
    let ostler = |args: &[&str]| home.cli(Some(&server), args);
    let json =
        |args: &[&str]| -> Value { serde_json::from_str(&printed(ostler(&[args, &["-o", "json"]].concat()))).unwrap() };
    let made = printed(ostler(&["agents", "create", "told"]));
    let agent = made.trim();
    let none = ostler(&["webhooks", "show", "told"]);
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(said.contains("the agent has no webhook") && said.contains("ostler webhooks set AGENT URL"), "{said}");
    let set = ostler(&["webhooks", "set", "told", UNREACHABLE]);
    assert!(String::from_utf8_lossy(&set.stderr).contains("it is not shown again"), "{set:?}");
    let secret = printed(set);
    assert_eq!(secret.trim().len(), 44, "base64 of 32 bytes and nothing else: {secret}");
    let shown = printed(ostler(&["webhooks", "show", &agent[..agent.len() - 1]]));
    assert_eq!(shown, format!("{UNREACHABLE}\n"));
    let told = printed(ostler(&["webhooks", "test", agent]));
    let delivery = told.trim();
    assert!(printed(ostler(&["webhooks", "show", agent, delivery])).starts_with("webhook.test pending after "));
    assert_eq!(printed(ostler(&["webhooks", "remove", agent, "--yes"])), format!("{UNREACHABLE} removed\n"));
    let dead = json(&["webhooks", "list", agent, "--status", "dead"]);
    assert_eq!(
        (&dead[0]["delivery_id"], &dead[0]["last_error"]),
        (&json!(delivery), &json!("the webhook was removed"))
    );
    let replay = ["webhooks", "replay", agent, "--dead"];
    assert!(!ostler(&replay).status.success(), "there is no webhook to tell it to");
    printed(ostler(&["webhooks", "set", agent, UNREACHABLE]));
    assert_eq!(printed(ostler(&replay)), format!("{delivery} waits\n"));
    assert_eq!(json(&["webhooks", "list", agent, "--status", "dead"]), json!([]));
}

#[both_engines]
fn a_webhook_that_may_not_be_reached_is_refused(engine: Engine) {
    let home = Home::new(engine);
    let server = home.serve();
    let made = printed(home.cli(Some(&server), &["agents", "create", "told"]));
    for url in ["http://agent.example/hook", "https://10.0.0.1/hook", UNREACHABLE] {
        let refused = home.cli(Some(&server), &["webhooks", "set", made.trim(), url]);
        let words = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
        assert!(words.contains("this cannot be a webhook"), "{words}");
    }
}
