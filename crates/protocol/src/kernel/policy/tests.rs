use serde_json::{Value, json};

use super::*;
use crate::FailureKind;

fn request(change: impl FnOnce(&mut Value)) -> CreateRun {
    let mut body = json!({"tenantId": "hwlab", "projectId": "pikasTech/HWLAB", "workspaceRef": {"kind": "none"},
        "providerId": "G14", "backendProfile": "scripted", "traceSink": null});
    change(&mut body);
    serde_json::from_value(body).expect("a well-typed request")
}

fn broken_rule(change: impl FnOnce(&mut Value)) -> (FailureKind, String) {
    let failure = TenantPolicy::default().admit(&request(change)).expect_err("refused");
    (failure.kind, failure.rule_name().expect("a rule").to_owned())
}

#[test]
fn a_plain_request_gets_the_whole_policy() {
    let run = TenantPolicy::default().admit(&request(|_| ())).unwrap();
    assert_eq!(run.execution_policy.sandbox, Sandbox::WorkspaceWrite);
    assert_eq!(run.execution_policy.timeout_ms, 1_800_000);
}

#[test]
fn each_required_field_has_its_rule() {
    for (field, rule) in [
        ("tenantId", "tenant-id-required"),
        ("projectId", "project-id-required"),
        ("workspaceRef", "workspace-ref-required"),
        ("providerId", "provider-id-required"),
        ("backendProfile", "backend-profile-required"),
        ("traceSink", "trace-sink-required"),
    ] {
        let broken = broken_rule(|body| drop(body.as_object_mut().unwrap().remove(field)));
        assert_eq!(broken, (FailureKind::SchemaInvalid, rule.into()));
    }
}

#[test]
fn a_resource_bundle_is_admitted_as_it_was_sent() {
    let bundle = json!({"kind": "gitbundle", "repoUrl": "https://git.example/a.git",
        "bundles": [{"subpath": "skills", "targetPath": "skills"}]});
    let admit = |bundle: Value| TenantPolicy::default().admit(&request(|body| body["resourceBundleRef"] = bundle));
    let admitted = admit(bundle.clone()).unwrap().resource_bundle_ref.unwrap();
    assert_eq!(admitted.to_value(), bundle);
    assert!(admit(Value::Null).unwrap().resource_bundle_ref.is_none());
    let broken = broken_rule(|body| body["resourceBundleRef"] = json!({"kind": "gitbundle", "bundles": []}));
    assert_eq!(broken, (FailureKind::SchemaInvalid, "workspace-git-url".into()));
}

#[test]
fn what_is_for_one_runner_is_refused_on_a_run() {
    for (field, value) in [("backendImageRef", json!({"image": "a"})), ("transientEnv", json!({"A": "b"}))] {
        let broken = broken_rule(|body| body[field] = value);
        assert_eq!(broken, (FailureKind::SchemaInvalid, "run-field-of-job".into()), "{field}");
        TenantPolicy::default().admit(&request(|body| body[field] = Value::Null)).unwrap();
    }
}

#[test]
fn nothing_widens_the_policy() {
    for (policy, rule) in [
        (json!({"sandbox": "danger-full-access"}), "sandbox-widened"),
        (json!({"timeoutMs": 1_800_001}), "timeout-widened"),
        (json!({"secretScope": {"allowCredentialEcho": true}}), "credential-echo"),
        (json!({"secretScope": {"toolCredentials": [{"tool": "aws"}]}}), "secret-scope-tool"),
        (
            json!({"secretScope": {"providerCredentials": [{"profile": "codex",
                "secretRef": {"name": "agentrun-v01-provider-codex", "keys": []}}]}}),
            "secret-scope-profile",
        ),
    ] {
        let broken = broken_rule(|body| body["executionPolicy"] = policy);
        assert_eq!(broken, (FailureKind::TenantPolicyDenied, rule.into()));
    }
}

#[test]
fn a_narrower_policy_stays_as_it_is() {
    let requested =
        json!({"sandbox": "read-only", "approval": "untrusted", "network": "disabled", "timeoutMs": 5, "maxTurns": 3});
    let run = TenantPolicy::default().admit(&request(|body| body["executionPolicy"] = requested)).unwrap();
    assert_eq!(run.execution_policy.sandbox, Sandbox::ReadOnly);
    assert_eq!(run.execution_policy.budgets.max_turns, Some(3));
}

#[test]
fn a_network_that_nothing_would_disable_is_refused() {
    let wide = Ceiling { sandbox: Sandbox::DangerFullAccess, ..Ceiling::default() };
    let policy = TenantPolicy { ceiling: wide, ..TenantPolicy::default() };
    let admit = |requested: Value| policy.admit(&request(|body| body["executionPolicy"] = requested));
    let refused = admit(json!({"network": "disabled", "sandbox": "danger-full-access"})).expect_err("refused");
    assert_eq!((refused.kind, refused.rule_name()), (FailureKind::TenantPolicyDenied, Some("network-unconfined")));
    // A request that names no sandbox gets one in which that holds.
    let narrowed = admit(json!({"network": "disabled"})).unwrap().execution_policy;
    assert_eq!((narrowed.sandbox, narrowed.network), (Sandbox::WorkspaceWrite, Network::Disabled));
    let sandbox = |requested: Value| admit(requested).unwrap().execution_policy.sandbox;
    assert_eq!(sandbox(json!({})), Sandbox::WorkspaceWrite, "a ceiling is no default");
    assert_eq!(sandbox(json!({"sandbox": "danger-full-access"})), Sandbox::DangerFullAccess);
}

#[test]
fn a_profile_without_its_matching_credential_is_refused() {
    for profile in ["deepseek", "minimax-m3", "some-dynamic"] {
        let broken = broken_rule(|body| body["backendProfile"] = profile.into());
        assert_eq!(broken, (FailureKind::SecretUnavailable, "provider-credential-required".into()));
    }
}

#[test]
fn a_credential_offers_every_key_its_profile_needs() {
    let with_keys = |keys: &[&str]| {
        request(|body| {
            body["backendProfile"] = "codex".into();
            body["executionPolicy"] = json!({"secretScope": {"providerCredentials": [{"profile": "codex",
                "secretRef": {"name": "agentrun-v01-provider-codex", "keys": keys}}]}});
        })
    };
    TenantPolicy::default().admit(&with_keys(&["auth.json", "config.toml"])).unwrap();
    for keys in [&["auth.json"][..], &[]] {
        let failure = TenantPolicy::default().admit(&with_keys(keys)).expect_err("refused");
        assert_eq!(failure.rule_name(), Some("secret-scope-keys-missing"));
        assert!(failure.message.contains("config.toml"), "{}", failure.message);
    }
}

#[test]
fn a_dynamic_profile_with_its_credential_is_admitted() {
    let scope = json!({"secretScope": {"providerCredentials": [{"profile": "my-model",
        "secretRef": {"name": "agentrun-v01-provider-my-model", "keys": ["auth.json"]}}]}});
    let run_request = request(|body| {
        body["backendProfile"] = "my-model".into();
        body["executionPolicy"] = scope;
    });
    TenantPolicy::default().admit(&run_request).unwrap();
}
