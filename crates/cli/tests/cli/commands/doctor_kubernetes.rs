//! `ostler doctor --kubernetes`, with an API server and a server that pods could call.

use ostler_testkit::kube::KubeApi;
use serde_json::Value;

use crate::fixtures::test_home::{Engine, TestHome};

/// The exit code, and the state of each check by its name.
fn doctor(home: &TestHome) -> (i32, Vec<(String, String)>) {
    let output = home.cli(None, &["doctor", "--kubernetes", "-o", "json"]);
    let rows: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    let text = |row: &Value, field: &str| row[field].as_str().unwrap().to_owned();
    let rows = rows.as_array().unwrap().iter().map(|row| (text(row, "name"), text(row, "state"))).collect();
    (output.status.code().unwrap(), rows)
}

fn states(rows: &[(&str, &str)]) -> Vec<(String, String)> {
    rows.iter().map(|(name, state)| ((*name).to_owned(), (*state).to_owned())).collect()
}

#[test]
fn the_cluster_of_a_server_is_checked() {
    let api = KubeApi::start().unwrap();
    let mut home = TestHome::new(Engine::Sqlite);
    let server = home.serve();
    let pinned = format!("registry.example/ostler@sha256:{}", "0123456789abcdef".repeat(4));
    let url = server.url();
    for (name, value) in [
        ("OSTLER_RUNNER__LAUNCHER", "kubernetes"),
        ("OSTLER_KUBERNETES__KUBECONFIG", api.kubeconfig().to_str().unwrap()),
        ("OSTLER_KUBERNETES__IMAGE", &pinned),
        ("OSTLER_KUBERNETES__SERVER_URL", &url),
    ] {
        home.set(name, value);
    }
    let good = [("launcher", "ok"), ("rights", "ok"), ("storage", "ok"), ("image", "skip"), ("server address", "ok")];
    assert_eq!(doctor(&home), (0, states(&good)));
    // The server's own account may not read storage classes: a claim that is not stored shows the default.
    home.set("OSTLER_KUBERNETES__KUBECONFIG", api.server_kubeconfig().to_str().unwrap());
    assert_eq!(doctor(&home), (0, states(&good)));
    assert_eq!(api.objects("persistentvolumeclaims").len(), 0);
    api.deny("create", "jobs");
    home.set("OSTLER_KUBERNETES__IMAGE", "ostler:0.1.0");
    let bad = [("launcher", "ok"), ("rights", "fail"), ("storage", "ok"), ("image", "warn"), ("server address", "ok")];
    assert_eq!(doctor(&home), (1, states(&bad)));
    server.stop();
    assert_eq!(doctor(&home).1[4], ("server address".to_owned(), "warn".to_owned()), "pods may see another network");
}
