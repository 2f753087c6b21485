//! Manifests as people write them: the examples of the guide are accepted, the schema describes what is accepted, and everything
//! that is wrong with one is in one answer.

use ostler_protocol::{
    FailureKind::SchemaInvalid,
    trust::manifest::{Checked, json_schema},
};
use serde_json::{Value, json};

use crate::harness::{Engine, TestServer, both_engines, one_engine, openapi};

/// The manifests of the guide, in its order: the minimal one and the one with every field.
fn examples() -> [Value; 2] {
    let page = include_str!("../../../../docs/agents.md");
    let blocks = page.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let all: Vec<Value> = blocks.map(|block| serde_json::from_str(block).unwrap()).collect();
    all.try_into().expect("the guide has two manifests")
}

#[both_engines]
async fn the_manifests_of_the_guide_are_accepted_without_a_warning(engine: Engine) {
    let server = TestServer::start(engine).await;
    for manifest in examples() {
        let body = json!({"name": "reader", "capability_manifest": manifest});
        let made = server.post("/agents", &body).await.with_status(201);
        assert_eq!(made["warnings"], json!([]));
        assert_eq!(made["capability_manifest_version"], 1);
    }
}

#[test]
fn the_full_example_has_every_field() {
    let [_, full] = examples();
    let schema = json_schema();
    let names = |schema: &Value| schema["properties"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    let defined = |name: &str| schema["$defs"][name].clone();
    for (name, schema, value) in [
        ("manifest", schema.clone(), &full),
        ("tool", defined("ManifestTool"), &full["tools"][0]),
        ("scope", defined("ManifestScope"), &full["permission_scopes"][0]),
        ("flags", defined("CapabilityFlags"), &full["capability_flags"]),
    ] {
        for field in names(&schema) {
            assert!(value.get(&field).is_some(), "the {name} of the example has no {field}");
        }
    }
}

#[test]
fn the_schema_of_manifests_accepts_the_examples_and_rejects_what_is_no_manifest() {
    let validator = jsonschema::validator_for(&json_schema()).unwrap();
    for manifest in examples() {
        assert!(validator.is_valid(&manifest), "{:?}", validator.iter_errors(&manifest).map(|e| e.to_string()).next());
    }
    let [minimal, _] = examples();
    for (pointer, value) in [
        ("/schema_version", json!("2.0")),
        ("/agent_version", json!(1)),
        ("/tools", json!({})),
        ("/tools/0/name", json!("Read File")),
        ("/tools/0/timeout_ms", json!(0)),
        ("/tools/0/description_i18n_key", json!("Not a key")),
        ("/permission_scopes/0/id", json!("File System")),
        ("/permission_scopes/0/sensitivity", json!("extreme")),
    ] {
        let mut changed = minimal.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        changed.pointer_mut(parent).unwrap()[key] = value;
        assert!(!validator.is_valid(&changed), "{pointer}");
        assert!(Checked::read(&changed.to_string()).is_err(), "{pointer}");
    }
}

#[test]
fn the_document_has_the_schema_of_manifests() {
    let schemas = &openapi()["components"]["schemas"];
    let reference = json!("#/components/schemas/Manifest");
    assert_eq!(schemas["DiffManifest"]["properties"]["capability_manifest"]["$ref"], reference);
    let own = json_schema();
    for name in own["properties"].as_object().unwrap().keys() {
        assert!(schemas["Manifest"]["properties"][name].is_object(), "{name}");
    }
    assert_eq!(schemas["Manifest"]["required"], own["required"]);
    assert_eq!(schemas["ManifestTool"]["required"], own["$defs"]["ManifestTool"]["required"]);
}

/// `OSTLER_BLESS=1` writes the file again.
#[test]
fn the_schema_is_also_a_file() {
    let text = format!("{}\n", serde_json::to_string_pretty(&json_schema()).unwrap());
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/generated/manifest.schema.json");
    if std::env::var_os("OSTLER_BLESS").is_some() {
        std::fs::write(path, &text).unwrap();
    }
    assert_eq!(std::fs::read_to_string(path).unwrap_or_default(), text, "run the test with OSTLER_BLESS=1");
}

#[one_engine]
async fn every_problem_of_a_manifest_is_in_one_answer(engine: Engine) {
    let server = TestServer::start(engine).await;
    let [mut manifest, _] = examples();
    manifest["agent_version"] = json!("1.0");
    manifest["tools"][0]["permission_scope"] = json!("notes:read");
    manifest["tools"][0].as_object_mut().unwrap().remove("input_schema");
    manifest["tools"].as_array_mut().unwrap().push(json!({"name": 7}));
    manifest["permission_scopes"][0]["sensitivity"] = json!("low");
    let body = json!({"name": "reader", "capability_manifest": manifest});
    let answer = server.post("/agents", &body).await;
    let problems = answer.body["details"]["problems"].clone();
    let places: Vec<_> = problems.as_array().unwrap().iter().map(|problem| problem["pointer"].clone()).collect();
    assert_eq!(
        places,
        [
            "/tools/0/input_schema",
            "/tools/1/name",
            "/tools/1/description_i18n_key",
            "/tools/1/input_schema",
            "/tools/1/permission_scope",
            "/agent_version",
            "/permission_scopes/0/sensitivity",
            "/tools/0/permission_scope",
        ]
    );
    assert_eq!(answer.body["message"], problems[0]["message"]);
    answer.refused_by(SchemaInvalid, "manifest-invalid");
    // A tool that can be read is checked in every respect.
    manifest = examples()[0].clone();
    manifest["tools"][0]["permission_scope"] = json!("notes:read");
    manifest["tools"][0]["name"] = json!("Read");
    let body = json!({"name": "reader", "capability_manifest": manifest});
    let answer = server.post("/agents", &body).await;
    let problems = answer.body["details"]["problems"].as_array().unwrap().clone();
    let rules: Vec<_> = problems.iter().map(|problem| problem["rule"].clone()).collect();
    assert_eq!(rules, ["manifest-invalid", "scope-unknown"]);
    // So are the other fields of the body.
    let body = json!({"name": "", "backend_profile": "A B", "capability_manifest": manifest});
    let answer = server.post("/agents", &body).await;
    let problems = answer.body["details"]["problems"].as_array().unwrap().clone();
    let rules: Vec<_> = problems.iter().map(|problem| problem["rule"].clone()).collect();
    assert_eq!(rules.len(), 4, "{rules:?}");
    assert_eq!(rules[2..], ["manifest-invalid", "scope-unknown"]);
}

#[one_engine]
async fn the_list_of_problems_is_bounded(engine: Engine) {
    let server = TestServer::start(engine).await;
    let [mut manifest, _] = examples();
    manifest["tools"] = (0..200).map(|_| json!({})).collect();
    let answer = server.post("/agents", &json!({"name": "reader", "capability_manifest": manifest})).await;
    assert_eq!(answer.body["details"]["problems"].as_array().unwrap().len(), 20);
    assert_eq!(answer.body["details"]["hasMoreProblems"], true);
}
