//! The speech endpoint that writes down what users say.

use std::path::PathBuf;

use ostler_protocol::{Failure, Rule};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use ostler_server::config::{Config, MS_MAX, Section, check_range};

/// Speech to text: `POST /api/v1/agent/transcribe`.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct TranscriptionSection {
    /// The OpenAI-compatible speech endpoint, for example `https://api.openai.com/v1`; if unset, nothing is
    /// transcribed.
    pub base_url: Option<String>,
    /// The model that the endpoint uses.
    pub model: String,
    /// The file with the endpoint's key, if it needs one.
    #[schema(value_type = Option<String>)]
    pub key_file: Option<PathBuf>,
    /// How long the endpoint may take.
    pub timeout_ms: u64,
}

impl Default for TranscriptionSection {
    fn default() -> Self {
        Self { base_url: None, model: "whisper-1".into(), key_file: None, timeout_ms: 60_000 }
    }
}

impl Section for TranscriptionSection {
    const NAME: &'static str = "transcription";

    fn problems(&self, _: &Config) -> Vec<Failure> {
        let is_url = |url: &String| url.starts_with("http://") || url.starts_with("https://");
        let bad_url = self.base_url.as_ref().filter(|url| !is_url(url)).map(|_| {
            let message = "transcription.base_url must be an http or https URL";
            Failure::invalid(Rule::Config, message).detail("key", "transcription.base_url")
        });
        let bad_timeout = check_range("transcription.timeout_ms", self.timeout_ms, 1_000..=MS_MAX).err();
        bad_url.into_iter().chain(bad_timeout).collect()
    }
}
