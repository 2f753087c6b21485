//! Provider profiles: which agent a backend profile runs. A profile never falls back to another one.

use serde::{Deserialize, Serialize};

/// The agent behind a profile, as its config names it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "agent", rename_all = "kebab-case", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum AgentConfig {
    /// Plays the script in its prompt, inside the runner.
    Scripted,
    /// `codex app-server`, with `config.toml` and `auth.json` in its home.
    #[default]
    Codex,
    /// Any agent that speaks the Agent Client Protocol over stdio.
    Acp {
        /// The program and its arguments.
        command: Vec<String>,
    },
    /// A model behind an OpenAI-compatible endpoint, called by the runner itself.
    Model { base_url: String, model: String },
}

impl AgentConfig {
    /// The agent of a profile that has no config.
    pub fn of_profile(profile: &str) -> Self {
        if profile == "scripted" { Self::Scripted } else { Self::Codex }
    }
}
