//! Languages of a session: the one that clients show, and the one that the agent replies in.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Failure, Rule};

/// The codes of the languages that a session can have, each with its name for the agent. `auto`: as the prompt is written.
pub const LANGUAGES: [(&str, &str); 10] = [
    ("auto", ""),
    ("ca", "Catalan"),
    ("de", "German"),
    ("en", "English"),
    ("fr", "French"),
    ("ja", "Japanese"),
    ("pt", "Portuguese"),
    ("ru", "Russian"),
    ("zh", "Simplified Chinese"),
    ("zh-TW", "Traditional Chinese"),
];

/// `POST /session/{sessionId}/language`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SetLanguage {
    #[schema(value_type = Option<String>)]
    pub language: Option<serde_json::Value>,
    /// Whether the agent replies in that language, too.
    #[schema(value_type = Option<bool>)]
    pub sync_output_language: Option<serde_json::Value>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct LanguageSet {
    pub language: String,
    pub output_language: Option<String>,
    /// Whether the next prompt uses it.
    pub refreshed: bool,
}

impl SetLanguage {
    /// The code of the language, and whether the agent replies in it.
    pub fn read(&self) -> Result<(&'static str, bool), Failure> {
        let sync = match &self.sync_output_language {
            None => false,
            Some(serde_json::Value::Bool(sync)) => *sync,
            Some(_) => {
                let message = "syncOutputLanguage must be true or false";
                return Err(Failure::invalid(Rule::InvalidSyncFlag, message));
            }
        };
        let language = self.language.as_ref().and_then(serde_json::Value::as_str);
        let code = LANGUAGES.iter().find(|(code, _)| language == Some(*code));
        let unknown = || {
            let codes = LANGUAGES.map(|(code, _)| code);
            let message = format!("language must be one of {}", codes.join(", "));
            Failure::invalid(Rule::InvalidLanguage, message).detail("allowed", codes.to_vec())
        };
        Ok((code.ok_or_else(unknown)?.0, sync))
    }
}

/// The instruction for an agent that is to reply in this language. `None` for `auto` and unknown codes.
pub fn reply_instruction(code: &str) -> Option<String> {
    let (_, name) = LANGUAGES.iter().find(|(known, _)| *known == code)?;
    (!name.is_empty()).then(|| format!("Reply in {name}."))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_language_is_one_of_the_list_and_the_flag_is_true_or_false() {
        let read = |body: serde_json::Value| {
            let set: SetLanguage = serde_json::from_value(body).unwrap();
            set.read().map_err(|failure| failure.broken_rule())
        };
        assert_eq!(read(json!({"language": "de"})), Ok(("de", false)));
        assert_eq!(read(json!({"language": "zh-TW", "syncOutputLanguage": true})), Ok(("zh-TW", true)));
        assert_eq!(read(json!({"language": "tlh"})), Err(Some(Rule::InvalidLanguage)));
        for language in [json!(null), json!({}), json!(1), json!(["de"])] {
            assert_eq!(read(json!({"language": language})), Err(Some(Rule::InvalidLanguage)));
        }
        assert_eq!(read(json!({})), Err(Some(Rule::InvalidLanguage)));
        assert_eq!(read(json!({"language": "de", "syncOutputLanguage": "yes"})), Err(Some(Rule::InvalidSyncFlag)));
    }

    #[test]
    fn only_a_language_with_a_name_is_an_instruction() {
        assert_eq!(reply_instruction("de").as_deref(), Some("Reply in German."));
        assert_eq!((reply_instruction("auto"), reply_instruction("tlh")), (None, None));
    }
}
