//! Every constraint of the format, at its limit and one past it; and the canonical form.

use serde_json::{Value, json};

use super::{read, scope, taking};
use crate::{
    FailureKind,
    trust::manifest::{Canonical, Checked, MANIFEST_BYTES_MAX, MANIFEST_BYTES_WARN, SCOPES_MAX, TOOLS_MAX},
};

/// The specification's own example.
const SAMPLE: &str = r#"{ "schema_version": "1.0", "agent_version": "1.0.0", "tools": [ { "name": "read_file", "description_i18n_key": "agent.cap.read_file.description", "input_schema": { "type": "object", "properties": { "path": { "type": "string" } }, "required": ["path"], "additionalProperties": false }, "permission_scope": "filesystem:read", "required": false, "timeout_ms": 5000 } ], "permission_scopes": [ { "id": "filesystem:read", "label_i18n_key": "agent.scope.filesystem_read.label", "description_i18n_key": "agent.scope.filesystem_read.description", "sensitivity": "medium" } ], "capability_flags": { "supports_streaming": true, "supports_artifacts": true, "supports_voice": false, "supports_group_chat": false }}"#;

fn sample() -> Value {
    serde_json::from_str(SAMPLE).unwrap()
}

/// The sample with one place changed; `null` takes the field away.
fn with(pointer: &str, value: Value) -> Value {
    let mut manifest = sample();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    let parent = manifest.pointer_mut(parent).unwrap();
    match value {
        Value::Null => drop(parent.as_object_mut().unwrap().remove(key)),
        value => parent[key] = value,
    }
    manifest
}

fn refusal(manifest: &Value) -> String {
    let failure = Checked::read(&manifest.to_string()).unwrap_err();
    failure.rule_name().unwrap().to_owned()
}

#[test]
fn the_specifications_sample_is_taken_without_a_word() {
    assert_eq!(Checked::read(SAMPLE).unwrap().warnings, []);
}

#[test]
fn every_field_is_held_to_its_constraint() {
    let good = [
        ("/agent_version", json!("1.0.0-rc.1+build")),
        ("/tools/0/name", json!("ab")),
        ("/tools/0/name", json!(format!("a{}", "9".repeat(31)))),
        ("/tools/0/timeout_ms", json!(600_000)),
        ("/tools/0/timeout_ms", Value::Null),
        ("/tools/0/required", Value::Null),
        ("/permission_scopes/0/description_i18n_key", Value::Null),
        ("/permission_scopes/0/sensitivity", json!("high")),
        ("/capability_flags", Value::Null),
        ("/tools", json!([])),
    ];
    good.into_iter().for_each(|(pointer, value)| drop(read(&with(pointer, value))));
    let invalid = [
        ("/schema_version", json!("1.1")),
        ("/schema_version", json!(1.0)),
        ("/agent_version", json!("1.0")),
        ("/agent_version", json!("v1.0.0")),
        ("/tools", Value::Null),
        ("/permission_scopes", Value::Null),
        ("/tools/0/name", json!("a")),
        ("/tools/0/name", json!(format!("a{}", "9".repeat(32)))),
        ("/tools/0/name", json!("Read")),
        ("/tools/0/name", json!("9read")),
        ("/tools/0/name", json!("rèad")),
        ("/tools/0/description_i18n_key", json!("Not A Key")),
        ("/tools/0/timeout_ms", json!(0)),
        ("/tools/0/timeout_ms", json!(600_001)),
        ("/permission_scopes/0/sensitivity", json!("extreme")),
        // A preset scope has a floor.
        ("/permission_scopes/0/sensitivity", json!("low")),
        ("/permission_scopes/0/id", json!("File System")),
        ("/permission_scopes/0/label_i18n_key", Value::Null),
        ("/permission_scopes/0/label_fallback", json!("turned \u{202e} round")),
    ];
    for (pointer, value) in invalid {
        assert_eq!(refusal(&with(pointer, value.clone())), "manifest-invalid", "{pointer}: {value}");
    }
    assert_eq!(refusal(&with("/tools/0/permission_scope", json!("clipboard:read"))), "scope-unknown");
    for reserved in ["hashee:admin", "system:all"] {
        assert_eq!(refusal(&with("/permission_scopes/0/id", json!(reserved))), "scope-reserved");
    }
    for schema in [
        json!({"type": "strange"}),
        json!({"type": "string"}),
        json!({}),
        json!([]),
        json!({"type": "object", "required": "path"}),
    ] {
        assert_eq!(refusal(&with("/tools/0/input_schema", schema.clone())), "schema-invalid", "{schema}");
    }
}

/// The pointer of every problem.
fn pointers(manifest: &Value) -> Vec<String> {
    let failure = Checked::read(&manifest.to_string()).unwrap_err();
    let problems = failure.details.unwrap()["problems"].as_array().cloned().unwrap_or_default();
    problems.iter().map(|problem| problem["pointer"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn one_answer_names_every_problem_whatever_its_kind() {
    let manifest = json!({
        "schema_version": "2.0",
        "agent_version": 1,
        "tools": [
            {
                "name": "Bad Name",
                "permission_scope": "no:where",
                "timeout_ms": 0,
                "input_schema": {"properties": {
                    "a": {"pattern": "(?i)x"}, "b": {"$ref": "other.json"}, "c": {"dependencies": {}}}},
            },
            {"description_i18n_key": "a.b", "permission_scope": "own:scope", "input_schema": {"type": "object"}},
            7,
        ],
        "permission_scopes": [
            {"id": "own:scope", "sensitivity": "extreme"},
            {"label_i18n_key": "Not A Key", "sensitivity": "low"},
        ],
    });
    let mut found = pointers(&manifest);
    found.sort_unstable();
    assert_eq!(
        found,
        [
            "/agent_version",
            "/permission_scopes/0/description_fallback",
            "/permission_scopes/0/label_fallback",
            "/permission_scopes/0/label_i18n_key",
            "/permission_scopes/0/sensitivity",
            "/permission_scopes/1/id",
            "/permission_scopes/1/label_i18n_key",
            "/schema_version",
            "/tools/0/description_i18n_key",
            "/tools/0/input_schema",
            "/tools/0/input_schema/properties/a/pattern",
            "/tools/0/input_schema/properties/b/$ref",
            "/tools/0/input_schema/properties/c/dependencies",
            "/tools/0/name",
            "/tools/0/permission_scope",
            "/tools/0/timeout_ms",
            "/tools/1/name",
            "/tools/2",
        ]
    );
}

#[test]
fn a_schema_lists_everything_that_the_dialect_rejects() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "nope"}, "b": {"required": "x"}, "c": {"maxLength": -1}}});
    let mut found = pointers(&with("/tools/0/input_schema", schema));
    found.sort_unstable();
    let of = |place: &str| format!("/tools/0/input_schema/properties/{place}");
    assert_eq!(found, [of("a/type"), of("b/required"), of("c/maxLength")]);
    let schema = json!({"type": "object", "properties": {"a": {"type": "nope"}, "b": {"pattern": "(?i)x"}}});
    assert_eq!(pointers(&with("/tools/0/input_schema", schema)), [of("b/pattern"), of("a/type")]);
}

#[test]
fn names_are_declared_once() {
    let sample = sample();
    for list in ["/tools", "/permission_scopes"] {
        let one = sample.pointer(list).unwrap()[0].clone();
        assert_eq!(refusal(&with(list, json!([one, one]))), "manifest-invalid");
    }
}

#[test]
fn a_manifest_declares_so_many_tools_and_scopes_and_no_more() {
    let tools = |count: usize| {
        let named = |number| with("/tools/0/name", json!(format!("tool_{number}")))["tools"][0].clone();
        with("/tools", (0..count).map(named).collect())
    };
    let scopes = |count: usize| {
        let own = sample()["permission_scopes"][0].clone();
        let others = (1..count).map(|number| scope(&format!("notes:s{number}"), "low"));
        with("/permission_scopes", [own].into_iter().chain(others).collect())
    };
    read(&tools(TOOLS_MAX));
    read(&scopes(SCOPES_MAX));
    for (list, manifest) in [("/tools", tools(TOOLS_MAX + 1)), ("/permission_scopes", scopes(SCOPES_MAX + 1))] {
        let failure = Checked::read(&manifest.to_string()).unwrap_err();
        assert_eq!(failure.details.as_ref().unwrap()["pointer"], list);
        assert!(failure.message.contains("at most"), "{failure}");
    }
}

#[test]
fn what_is_an_object_is_not_written_as_an_array() {
    let sample = sample();
    let in_order = |object: &Value, fields: &[&str]| fields.iter().map(|field| object[*field].clone()).collect();
    let tool_fields =
        ["name", "description_i18n_key", "none", "input_schema", "permission_scope", "required", "timeout_ms"];
    let scope_fields = ["id", "label_i18n_key", "none", "description_i18n_key", "none", "sensitivity"];
    let tool: Value = in_order(&sample["tools"][0], &tool_fields);
    let scope: Value = in_order(&sample["permission_scopes"][0], &scope_fields);
    for (pointer, value) in [
        ("/tools", json!([tool])),
        ("/permission_scopes", json!([scope])),
        ("/capability_flags", json!([true, true, true, true])),
    ] {
        assert_eq!(refusal(&with(pointer, value)), "manifest-invalid", "{pointer}");
    }
}

#[test]
fn people_see_all_there_is_in_a_text() {
    for field in ["label_fallback", "description_fallback"] {
        for hidden in ["\u{200b}", " \u{a0}", "\u{3164}", "ze\u{200d}ro", "so\u{ad}ft", "se\u{e000}cret", "line\nend"] {
            let manifest = with(&format!("/permission_scopes/0/{field}"), json!(hidden));
            assert_eq!(refusal(&manifest), "manifest-invalid", "{field}: {hidden:?}");
        }
        read(&with(&format!("/permission_scopes/0/{field}"), json!("读取 – lire l’état, ☂")));
    }
    let manifest = with("/tools/0/description_fallback", json!("\u{2066}"));
    assert_eq!(refusal(&manifest), "manifest-invalid");
}

#[test]
fn a_scope_that_is_not_predefined_brings_its_texts() {
    let scope = scope("shell:exec", "high");
    let using = |scope: &Value| {
        let mut manifest = with("/permission_scopes", json!([scope]));
        manifest["tools"][0]["permission_scope"] = json!("shell:exec");
        manifest
    };
    let warnings = read(&using(&scope)).warnings;
    assert_eq!(warnings.iter().map(|warning| warning.rule.as_str()).collect::<Vec<_>>(), ["tool-fallback"]);
    for field in ["label_fallback", "description_fallback"] {
        let mut without = scope.clone();
        without.as_object_mut().unwrap().remove(field);
        assert_eq!(refusal(&using(&without)), "manifest-invalid", "{field}");
    }
}

#[test]
fn what_is_unwise_is_taken_with_a_warning() {
    let warned =
        |manifest: &Value| read(manifest).warnings.into_iter().map(|w| (w.rule, w.pointer)).collect::<Vec<_>>();
    let pair = |rule: &str, pointer: &str| (rule.to_owned(), pointer.to_owned());
    assert_eq!(warned(&taking(json!({"type": "object"}))), [pair("schema-open", "/tools/0/input_schema")]);
    assert_eq!(warned(&with("/tools/0/x-icon", json!("file"))), [pair("field-unknown", "/tools/0/x-icon")]);
}

/// A manifest of exactly so many canonical bytes.
fn of_size(bytes: usize) -> Value {
    let mut manifest = with("/tools/0/input_schema/title", json!(""));
    let empty = read(&manifest).canonical.text.len();
    manifest["tools"][0]["input_schema"]["title"] = json!("x".repeat(bytes - empty));
    manifest
}

#[test]
fn the_size_is_that_of_the_canonical_form() {
    let written_wide = serde_json::to_string_pretty(&of_size(MANIFEST_BYTES_MAX)).unwrap() + &" ".repeat(4_096);
    assert_eq!(Checked::read(&written_wide).unwrap().canonical.text.len(), MANIFEST_BYTES_MAX);
    let failure = Checked::read(&of_size(MANIFEST_BYTES_MAX + 1).to_string()).unwrap_err();
    assert_eq!((failure.kind, failure.rule_name()), (FailureKind::PayloadTooLarge, Some("manifest-too-large")));
    assert_eq!(read(&of_size(MANIFEST_BYTES_WARN - 1)).warnings, []);
    assert_eq!(read(&of_size(MANIFEST_BYTES_WARN)).warnings[0].rule, "manifest-large");
}

#[test]
fn the_hash_is_that_of_the_meaning() {
    let hash = |text: &str| Canonical::read("it", text).unwrap().1.hash;
    assert_eq!(hash(r#"{"b": 1.0, "a": [1, 2]}"#), hash("{\"a\":[1,2],\n\t\"b\":1e0}"));
    assert_ne!(hash(r#"{"a":[1,2]}"#), hash(r#"{"a":[2,1]}"#));
    assert_eq!(hash("{}"), "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");
    let read = Checked::read(SAMPLE).unwrap();
    let shown = Checked::reformatted(SAMPLE).unwrap();
    assert_eq!((&shown.canonical, &shown.manifest), (&read.canonical, &read.manifest));
    let stored = Checked::stored(read.canonical.clone()).unwrap();
    assert_eq!((stored.canonical, stored.manifest), (read.canonical, read.manifest));
}

/// Vectors of RFC 8785, section 3.2 and appendix B.
#[test]
fn the_canonical_form_is_that_of_rfc_8785() {
    let text = |text: &str| Canonical::read("it", text).unwrap().1.text;
    let sorted = r#"{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One","\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}"#;
    let expected = "{\"\\r\":\"Carriage Return\",\"1\":\"One\",\"\u{80}\":\"Control\",\"ö\":\"Latin Small Letter O With Diaeresis\",\"€\":\"Euro Sign\",\"😀\":\"Emoji: Grinning Face\",\"\u{fb33}\":\"Hebrew Letter Dalet With Dagesh\"}";
    assert_eq!(text(sorted), expected);
    for (written, canonical) in [
        ("-0", "0"),
        ("4.50", "4.5"),
        ("2e-3", "0.002"),
        ("0.000000000000000000000000001", "1e-27"),
        ("333333333.33333329", "333333333.3333333"),
        ("5e-324", "5e-324"),
        ("9007199254740991", "9007199254740991"),
        (r#""\u000f\u0022\/""#, r#""\u000f\"/""#),
    ] {
        assert_eq!(text(written), canonical);
    }
}

/// The samples of RFC 8785, appendix B. Whole numbers that not every reader keeps are no manifest's.
#[test]
fn numbers_are_written_as_rfc_8785_has_them() {
    for (bits, canonical) in [
        (0x0000_0000_0000_0000_u64, "0"),
        (0x8000_0000_0000_0000, "0"),
        (0x0000_0000_0000_0001, "5e-324"),
        (0x8000_0000_0000_0001, "-5e-324"),
        (0x3eb0_c6f7_a0b5_ed8c, "9.999999999999997e-7"),
        (0x3eb0_c6f7_a0b5_ed8d, "0.000001"),
        (0x41b3_de43_5555_5553, "333333333.3333332"),
        (0x41b3_de43_5555_5554, "333333333.33333325"),
        (0x41b3_de43_5555_5555, "333333333.3333333"),
        (0x41b3_de43_5555_5556, "333333333.3333334"),
        (0x41b3_de43_5555_5557, "333333333.33333343"),
        (0xbecb_f647_612f_3696, "-0.0000033333333333333333"),
        (0x4314_3ff3_c1cb_0959, "1424953923781206.2"),
    ] {
        let written = format!("{:e}", f64::from_bits(bits));
        assert_eq!(Canonical::read("it", &written).unwrap().1.text, canonical, "{written}");
    }
    for bits in [
        0x7fef_ffff_ffff_ffff_u64,
        0xffef_ffff_ffff_ffff,
        0x4340_0000_0000_0000,
        0xc340_0000_0000_0000,
        0x4430_0000_0000_0000,
        0x44b5_2d02_c7e1_4af5,
        0x44b5_2d02_c7e1_4af6,
        0x44b5_2d02_c7e1_4af7,
        0x444b_1ae4_d6e2_ef4e,
        0x444b_1ae4_d6e2_ef4f,
        0x444b_1ae4_d6e2_ef50,
    ] {
        let written = format!("{:e}", f64::from_bits(bits));
        assert!(Canonical::read("it", &written).is_err(), "{written}");
    }
}

#[test]
fn what_two_readers_may_see_differently_is_refused() {
    for bad in [
        r#"{"a": 1, "a": 1}"#,
        r#"{"deep": [{"b": 1, "\u0062": 2}]}"#,
        "9007199254740992",
        "-9007199254740992",
        "18446744073709551616",
        "1e30",
        "1e999",
        r#""\ud800""#,
        "{} {}",
    ] {
        assert!(Canonical::read("it", bad).is_err(), "{bad}");
    }
}
