use proptest::prelude::*;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::{
    compile,
    compile::{HINTS_BYTES_MAX, NODES_MAX},
    hints::UiHints,
    of_message,
    schema::UiSchemaRenderer,
};

fn compiled(hints: &Value) -> Option<Value> {
    compile(&hints.to_string()).map(|schema| serde_json::to_value(schema).unwrap())
}

/// A type's JSON Schema on its own, with the shapes it names in `$defs`.
fn published<T: ToSchema>(id: &str, title: &str) -> Value {
    let mut named = vec![];
    T::schemas(&mut named);
    let mut schema = serde_json::to_value(T::schema()).unwrap();
    let shapes: serde_json::Map<_, _> =
        named.into_iter().map(|(name, shape)| (name, serde_json::to_value(shape).unwrap())).collect();
    schema["$schema"] = json!("https://json-schema.org/draft/2020-12/schema");
    schema["$id"] = json!(id);
    schema["title"] = json!(title);
    schema["$defs"] = Value::Object(shapes);
    serde_json::from_str(&schema.to_string().replace("#/components/schemas/", "#/$defs/")).unwrap()
}

fn hints_schema() -> Value {
    published::<UiHints>("urn:ostler:ui-hints:2.1", "ui_hints 2.1")
}

fn renderer_schema() -> Value {
    published::<UiSchemaRenderer>("urn:ostler:ui-schema:2.0", "UiSchema 2.0")
}

/// `OSTLER_BLESS=1` writes them again.
#[test]
fn both_schemas_are_published() {
    for (file, schema) in [("ui-hints.schema.json", hints_schema()), ("ui-schema.schema.json", renderer_schema())] {
        let path = format!("{}/../../docs/generated/{file}", env!("CARGO_MANIFEST_DIR"));
        let text = format!("{schema:#}\n");
        if std::env::var_os("OSTLER_BLESS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        assert!(jsonschema::meta::is_valid(&schema), "{file} is a JSON Schema");
        assert_eq!(std::fs::read_to_string(&path).unwrap_or_default(), text, "run the test with OSTLER_BLESS=1");
    }
}

#[test]
fn the_protocols_own_example_comes_out_letter_by_letter() {
    let hints = json!({"version": "2.1", "intent": "status", "locale": "zh-CN", "status": "success",
        "title": "日程已创建", "message": "您的会议日程创建成功"});
    let expected = json!({"version": "2.0", "locale": "zh-CN", "status": "success", "theme": "default",
        "root": {"type": "stack", "appearance": "card", "children": [
            {"type": "text", "content": "日程已创建", "role": "title"},
            {"type": "badge", "label": "SUCCESS", "status": "success"},
            {"type": "text", "content": "您的会议日程创建成功", "role": "body"}]}});
    assert_eq!(compiled(&hints).unwrap(), expected);
    for name in ["uiHints", "ui_hints"] {
        let payload = json!({"messageId": "m", "text": "done", name: hints}).to_string();
        assert_eq!(serde_json::to_value(of_message(&payload)).unwrap(), expected);
    }
    assert_eq!(of_message(r#"{"text": "no hints"}"#), None);
}

fn everything() -> Value {
    json!({
        "intent": "data", "status": "warning", "theme": "dark", "title": "t-title", "subtitle": "t-subtitle",
        "message": "t-message", "meta": {"requestId": "m-request", "toolId": "m-tool", "traceId": "m-trace"},
        "blocks": [
            {"type": "text", "text": "b-text", "role": "caption", "format": "markdown"},
            {"type": "code", "code": "b-code"},
            {"type": "fields", "items": [{"label": "f-label", "value": 12.5, "status": "error"}, {"label": "f-flag", "value": true}]},
            {"type": "list", "ordered": true, "items": ["l-plain", {"text": "l-rich", "detail": "l-detail", "emoji": "🐎", "status": "pending"}]},
            {"type": "table", "columns": ["c-one"], "rows": [["r-one", "r-two"], [3]]},
            {"type": "badge", "label": "b-badge"},
            {"type": "icon", "source": "url", "value": "https://example.org/i-icon.png"},
            {"type": "actions", "items": [{"label": "a-inner", "type": "copy", "text": "a-copied"}]},
        ],
        "sections": [{"title": "s-one", "blocks": [{"type": "text", "text": "s-text"}]}, {"title": "s-two"}],
        "actions": [
            {"label": "a-url", "style": "primary", "type": "url", "url": "https://example.org/a-place"},
            {"label": "a-nav", "type": "navigation", "target": "a-target"},
            {"label": "a-event", "type": "event", "name": "a-name", "value": {"deep": "a-value"}},
            {"label": "a-tool", "style": "danger", "type": "tool", "name": "a-toolname"},
            {"label": "a-payload", "type": "payload", "value": ["a-given"]},
        ],
    })
}

/// Every word an agent wrote, except the names of kinds.
fn words(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(word) if word.contains('-') || word == "🐎" => found.push(word.clone()),
        Value::Array(list) => list.iter().for_each(|item| words(item, found)),
        Value::Object(fields) => fields.values().for_each(|item| words(item, found)),
        _ => {}
    }
}

#[test]
fn nothing_that_was_hinted_at_gets_lost_whatever_the_intent() {
    for intent in ["message", "data", "list", "status", "something new"] {
        let mut hints = everything();
        hints["intent"] = json!(intent);
        let shown = compiled(&hints).unwrap().to_string();
        let mut wanted = vec!["12.5".to_owned(), "true".to_owned(), "\"3\"".to_owned()];
        words(&hints, &mut wanted);
        assert!(wanted.len() > 30);
        for word in wanted {
            assert!(shown.contains(&word), "{word} is lost under {intent}");
        }
    }
}

#[test]
fn what_does_not_fit_makes_no_schema() {
    for bad in [
        json!(null),
        json!([]),
        json!("hints"),
        json!({}),
        json!({"status": "success "}),
        json!({"status": 1}),
        json!({"title": ["t"]}),
        json!({"title": "t", "version": "3.0"}),
        json!({"title": "t", "version": "2."}),
        json!({"title": "t", "locale": "not a locale"}),
        json!({"title": "t", "theme": "pink"}),
        json!({"title": "t", "blocks": [{"type": "video"}]}),
        json!({"title": "t", "blocks": [{"type": "text"}]}),
        json!({"title": "t", "blocks": {"type": "text", "text": "x"}}),
        json!({"blocks": [{"type": "list", "items": []}]}),
        json!({"title": "t", "actions": [{"label": "x", "type": "url", "url": "javascript:alert(1)"}]}),
        json!({"title": "t", "actions": [{"label": "x", "type": "url", "url": "https://a\u{9}b"}]}),
        json!({"title": "t", "actions": [{"label": "x"}]}),
        json!({"title": "t", "meta": ["one", "two", "three"]}),
        json!({"title": "t", "blocks": [["badge", "label", null]]}),
        json!({"title": "t", "blocks": [{"type": "icon", "source": "url", "value": "data:image/svg+xml,x"}]}),
    ] {
        assert_eq!(compiled(&bad), None, "{bad}");
    }
    assert_eq!(compile("{"), None);
    assert_eq!(of_message("not json"), None);
}

#[test]
fn hints_beyond_their_limits_make_no_schema() {
    let sized = |bytes: usize| {
        let empty = json!({"title": ""}).to_string().len();
        compiled(&json!({"title": "x".repeat(bytes - empty)}))
    };
    assert!(sized(HINTS_BYTES_MAX).is_some());
    assert!(sized(HINTS_BYTES_MAX + 1).is_none());
    let nodes = |count: usize| compiled(&json!({"blocks": vec![json!({"type": "badge", "label": "x"}); count]}));
    assert!(nodes(NODES_MAX).is_some());
    assert!(nodes(NODES_MAX + 1).is_none());
}

/// Any JSON, from the words that hints are made of.
fn anything() -> impl Strategy<Value = Value> {
    let words =
        ["text", "fields", "list", "table", "badge", "icon", "actions", "url", "copy", "success", "2.1", "en", "x"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        proptest::sample::select(words.to_vec()).prop_map(Value::from),
    ];
    let names = [
        "type", "text", "title", "status", "blocks", "sections", "items", "label", "value", "rows", "columns",
        "actions", "source",
    ];
    leaf.prop_recursive(5, 64, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            proptest::collection::btree_map(proptest::sample::select(names.to_vec()), inner, 0..6).prop_map(|fields| {
                Value::Object(fields.into_iter().map(|(name, value)| (name.into(), value)).collect())
            }),
        ]
    })
}

/// Takes away or replaces one thing somewhere in good hints.
fn damaged() -> impl Strategy<Value = Value> {
    (0..200_usize, anything()).prop_map(|(at, other)| {
        let mut hints = everything();
        let mut left = at;
        replace(&mut hints, &mut left, &other);
        hints
    })
}

fn replace(value: &mut Value, left: &mut usize, other: &Value) {
    if *left == 0 {
        *value = other.clone();
        *left = usize::MAX;
        return;
    }
    *left = left.saturating_sub(1).max(usize::from(*left == usize::MAX) * usize::MAX);
    match value {
        Value::Array(list) => list.iter_mut().for_each(|item| replace(item, left, other)),
        Value::Object(fields) => fields.values_mut().for_each(|item| replace(item, left, other)),
        _ => {}
    }
}

proptest! {
    #[test]
    fn whatever_an_agent_writes_the_schema_is_none_or_valid(hints in prop_oneof![anything(), damaged()]) {
        let renderer = jsonschema::validator_for(&renderer_schema()).unwrap();
        let takes = jsonschema::validator_for(&hints_schema()).unwrap();
        if let Some(schema) = compiled(&hints) {
            prop_assert!(renderer.is_valid(&schema), "{schema:#}");
            prop_assert!(takes.is_valid(&hints), "compiled, although the published schema forbids it: {hints:#}");
        }
    }
}

#[test]
fn the_published_schemas_take_what_is_good_and_refuse_what_is_not() {
    let takes = jsonschema::validator_for(&hints_schema()).unwrap();
    let renderer = jsonschema::validator_for(&renderer_schema()).unwrap();
    assert!(takes.is_valid(&everything()));
    assert!(!takes.is_valid(&json!({"status": "great"})));
    let mut schema = compiled(&everything()).unwrap();
    assert!(renderer.is_valid(&schema));
    schema["root"]["children"][0]["role"] = json!("headline");
    assert!(!renderer.is_valid(&schema));
}
