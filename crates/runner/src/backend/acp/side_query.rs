//! A side query to an ACP backend. The protocol cannot keep a program from using its tools: it may run them without asking for
//! permission. So the program is not started. The model that its settings name is asked instead, for one completion without
//! tools. A backend whose model is not known has no answer.

use std::collections::BTreeMap;

use ostler_protocol::kernel::provider_profiles::AgentExtensions;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use crate::{
    backend::{
        model::side_query::{KeyedModel, ask_keyed},
        turn::TurnEnd,
    },
    environment::BackendEnvironment,
    side_queries::SideQuery,
};

/// The settings of Qwen Code, by their path in its home.
const SETTINGS: &str = ".qwen/settings.json";
/// How Qwen Code names the protocol that the model backend speaks, too.
const OPENAI: &str = "openai";

/// The text of the model's reply, as far as it was read: at least `chars_max` characters of it. Empty if the backend is not
/// Qwen Code, or if its settings name no model.
pub(in crate::backend) async fn ask(
    (environment, files): (&BackendEnvironment, &BTreeMap<String, SecretString>),
    query: &SideQuery,
    chars_max: usize,
) -> Result<String, TurnEnd> {
    match model_of(environment, files) {
        Some(model) => ask_keyed(model, environment, query, chars_max).await,
        None => Ok(String::new()),
    }
}

/// Whether the backend's model is known.
pub(in crate::backend) fn has_model(environment: &BackendEnvironment, files: &BTreeMap<String, SecretString>) -> bool {
    model_of(environment, files).is_some()
}

fn model_of(environment: &BackendEnvironment, files: &BTreeMap<String, SecretString>) -> Option<KeyedModel> {
    if environment.backend.extensions() != Some(AgentExtensions::Qwen) {
        return None;
    }
    files.get(SETTINGS).and_then(|settings| model_in(settings.expose_secret()))
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Settings {
    security: Security,
    model: ModelChoice,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Security {
    auth: ProviderAuth,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ProviderAuth {
    selected_type: Option<String>,
    api_key: Option<SecretString>,
    base_url: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ModelChoice {
    name: Option<String>,
}

/// The model that the settings name, with its endpoint and its key. `None` if they do not name all of it, or cannot be understood.
fn model_in(settings: &str) -> Option<KeyedModel> {
    let Settings { security, model } = serde_json::from_str(&without_comments(settings)).ok()?;
    let ProviderAuth { selected_type, api_key, base_url } = security.auth;
    let is_named = |text: &String| !text.is_empty();
    selected_type.filter(|selected| selected == OPENAI)?;
    let key = api_key.filter(|key| !key.expose_secret().is_empty());
    Some(KeyedModel { base_url: base_url.filter(is_named)?, model: model.name.filter(is_named)?, key })
}

/// JSON without the comments that Qwen Code allows in its settings.
fn without_comments(text: &str) -> String {
    let (mut plain, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(start) = rest.find(['"', '/']) {
        plain.push_str(&rest[..start]);
        rest = &rest[start..];
        let (is_comment, length) = match rest.as_bytes() {
            [b'"', ..] => (false, string_length(rest)),
            [b'/', b'/', ..] => (true, rest.find('\n').unwrap_or(rest.len())),
            [b'/', b'*', ..] => (true, rest[2..].find("*/").map_or(rest.len(), |end| end + 4)),
            _ => (false, 1),
        };
        plain.push_str(if is_comment { " " } else { &rest[..length] });
        rest = &rest[length..];
    }
    plain.push_str(rest);
    plain
}

/// The bytes of the JSON string at the beginning of a text, with its quotes.
fn string_length(text: &str) -> usize {
    let mut is_escaped = false;
    for (index, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = true,
            b'"' => return index + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn named(settings: &Value) -> Option<(String, String, bool)> {
        let found = model_in(&settings.to_string())?;
        Some((found.base_url, found.model, found.key.is_some()))
    }

    #[test]
    fn the_model_is_the_one_that_the_settings_name_with_its_endpoint() {
        let auth = json!({"selectedType": "openai", "apiKey": "key", "baseUrl": "http://localhost:1/v1"});
        let settings = json!({"security": {"auth": auth}, "model": {"name": "small"}, "tools": {}});
        let expected = ("http://localhost:1/v1".to_owned(), "small".to_owned(), true);
        assert_eq!(named(&settings), Some(expected.clone()));
        let mut keyless = settings.clone();
        keyless["security"]["auth"]["apiKey"] = "".into();
        assert_eq!(named(&keyless), Some((expected.0, expected.1, false)));
        for (place, value) in [
            ("/security/auth/selectedType", json!("anthropic")),
            ("/security/auth/baseUrl", json!(null)),
            ("/model/name", json!("")),
            ("/model", json!("small")),
        ] {
            let mut other = settings.clone();
            *other.pointer_mut(place).unwrap() = value;
            assert_eq!(named(&other), None, "{place}");
        }
        assert!(model_in("// no JSON").is_none());
    }

    #[test]
    fn settings_may_have_comments() {
        let text = r#"// who answers
            {"security": {"auth": {"selectedType": "openai", /* of the "operator" */ "baseUrl": "http://localhost:1/v1"}},
            "model": {"name": "a\\\"//b"} // the end"#;
        assert!(model_in(text).is_none(), "it is not closed");
        let found = model_in(&format!("{text}\n}}/* no end")).unwrap();
        assert_eq!((found.base_url.as_str(), found.model.as_str()), ("http://localhost:1/v1", "a\\\"//b"));
    }
}
