//! Every key of the configuration can be set in the environment.

use ostler_protocol::Failure;
use ostler_server::{
    Config,
    config::{Key, Overrides, keys, settings::explain},
};
use serde_json::{Value, json};

use crate::harness::dialects;

/// Something else than the default that the key takes: as in the environment, and as it is read.
fn other(key: &Key) -> (String, Value) {
    let takes = |kind: &str| key.schema["type"] == kind || key.schema["type"][0] == kind;
    match &key.default {
        Value::Bool(on) => ((!on).to_string(), json!(!on)),
        Value::Array(_) if key.name == "auth.issuers" => {
            let issuer = json!([{"issuer": "i", "audience": "a", "jwks_url": "https://x", "jwks_file": null}]);
            (issuer.to_string(), issuer)
        }
        Value::Object(_) if key.name == "daemon.device_flows" => {
            let flow = json!({"id": {"device_authorization_url": "https://x/d", "token_url": "https://x/t",
                "client_id": "c", "scope": null, "profile": "p", "pkce": true}});
            (flow.to_string(), flow)
        }
        Value::Object(_) if key.name == "mcp.servers" => {
            let server = json!({"notes": {"command": "notes-mcp"}});
            let read = read(key, &server.to_string()).unwrap();
            assert_eq!(read["notes"]["command"], "notes-mcp");
            (server.to_string(), read)
        }
        Value::Object(_) if key.name == "kubernetes.node_selector" => {
            let labels = json!({"pool": "agents"});
            (labels.to_string(), labels)
        }
        Value::Array(_) if key.name == "kubernetes.tolerations" => {
            let taints = json!([{"key": "agents", "operator": "Exists", "effect": "NoSchedule"}]);
            (taints.to_string(), taints)
        }
        Value::Object(_) if key.name == "kubernetes.resources" => {
            let own = json!({"codex": {"cpu_request": "1", "cpu_limit": null, "memory_request": "1Gi", "memory_limit": null,
                "disk_limit": "1Gi"}});
            (own.to_string(), own)
        }
        Value::Object(_) => {
            let own = json!({"events_ms": 7, "threads_ms": null, "webhook_deliveries_ms": null, "attachments_ms": null,
                "storage_ms": null});
            (json!({"hwlab": {"events_ms": 7}}).to_string(), json!({"hwlab": own}))
        }
        Value::Array(_) => ("one, two".into(), json!(["one", "two"])),
        _ if takes("integer") => ("7".into(), json!(7)),
        _ if takes("number") => ("0.5".into(), json!(0.5)),
        _ if ["store.database_url", "store.read_database_url", "secrets.key"].contains(&key.name.as_str()) => {
            ("postgres://x".into(), json!("(hidden)"))
        }
        // Of the few words such a key takes, one that is not the default.
        _ if key.schema["$ref"].is_string()
            || ["store.sqlite_synchronous", "mcp.budget_mode", "secrets.store"].contains(&key.name.as_str()) =>
        {
            let words = [
                "read-only",
                "untrusted",
                "disabled",
                "off",
                "process",
                "json",
                "enqueue",
                "invite",
                "local-only",
                "files",
            ];
            let one = words.iter().find(|word| read(key, word).is_ok()).expect("a word that it takes");
            ((*one).into(), json!(one))
        }
        _ => ("words".into(), json!("words")),
    }
}

fn read(key: &Key, text: &str) -> Result<Value, Failure> {
    let name = key.environment().strip_prefix("OSTLER_").expect("ours").to_lowercase();
    let config = Config::read(None, [(name, text.to_owned())].into_iter(), &[], &dialects().sections())?.json();
    Ok(key.name.split('.').fold(config, |value, field| value[field].clone()))
}

#[test]
fn every_key_can_be_set_in_the_environment() {
    assert!(keys(&dialects().sections()).len() > 30, "{}", keys(&dialects().sections()).len());
    for key in keys(&dialects().sections()) {
        let (text, value) = other(&key);
        assert_ne!(value, key.default, "{}", key.name);
        assert_eq!(read(&key, &text).unwrap(), value, "{}={text}", key.environment());
    }
}

#[test]
fn a_list_in_the_environment_may_be_json() {
    let tenants = keys(&dialects().sections()).into_iter().find(|key| key.name == "policy.tenants").unwrap();
    for (text, list) in [
        (r#"["a,b", "c"]"#, json!(["a,b", "c"])),
        ("acme", json!(["acme"])),
        ("acme,beta", json!(["acme", "beta"])),
        ("", json!([])),
    ] {
        assert_eq!(read(&tenants, text).unwrap(), list, "{text}");
    }
    assert!(read(&tenants, "[1").is_err());
}

#[test]
fn a_section_is_found_under_its_former_name() {
    let folder = tempfile::tempdir().unwrap();
    let read = |text: &str, variables: &[(&str, &str)]| {
        let file = folder.path().join("ostler.toml");
        std::fs::write(&file, text).unwrap();
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Ok::<_, Failure>(Config::read(Some(&file), variables, &[], &dialects().sections())?.json())
    };
    let former = read("[agent_runs]\nbusy = \"enqueue\"\ntenant = \"a\"\n", &[("agent_runs__tenant", "b")]).unwrap();
    assert_eq!((&former["run_input"]["busy"], &former["run_input"]["tenant"]), (&json!("enqueue"), &json!("b")));
    assert_eq!(former["agent_runs"], json!(null));
    let variables = [("run_input__tenant", "current"), ("agent_runs__tenant", "former")];
    assert_eq!(read("", &variables).unwrap()["run_input"]["tenant"], "current");
    let both = read("[agent_runs]\nbusy = \"enqueue\"\n[run_input]\nbusy = \"rollback\"\n", &[]).unwrap();
    assert_eq!(both["run_input"]["busy"], "rollback");
    let file = folder.path().join("ostler.toml");
    std::fs::write(&file, "[agent_runs]\nbusy = \"enqueue\"\n").unwrap();
    let explained = explain(Some(&file), Overrides::default(), &dialects().sections()).unwrap();
    let origin = |key: &str| explained.iter().find(|setting| setting.key == key).unwrap().origin.to_string();
    assert_eq!(origin("run_input.busy"), format!("file {}", file.display()));
    assert_eq!(origin("run_input.tenant"), "default");
    for refused in ["agent_runs = 3\n", "[agent_runs]\nunknown = 1\n"] {
        assert!(read(refused, &[]).is_err(), "{refused}");
    }
}
