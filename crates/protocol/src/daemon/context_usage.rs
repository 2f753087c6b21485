//! How much of a model's context window a session takes. The total is what the provider counted for the last model call; its
//! parts are estimated from the length of their texts. What is not known is 0.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Bytes of text that are estimated as one token.
pub const BYTES_PER_TOKEN: u64 = 4;

/// `GET /session/{sessionId}/context-usage`.
#[derive(Clone, Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ReadContextUsage {
    /// `true`: list the parts one by one, such as each memory file.
    pub detail: Option<String>,
}

impl ReadContextUsage {
    pub fn has_details(&self) -> bool {
        self.detail.as_deref() == Some("true")
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionContextUsage {
    pub v: u32,
    pub session_id: String,
    pub workspace_cwd: String,
    pub usage: ContextUsage,
    /// The same for people, as Markdown.
    pub formatted_text: String,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextUsage {
    pub model_name: String,
    pub total_tokens: u64,
    /// 0: not known. The profile's config states it.
    pub context_window_size: u64,
    pub breakdown: ContextBreakdown,
    /// Backends do not report their tools.
    pub builtin_tools: Vec<ContextPart>,
    pub mcp_tools: Vec<ContextPart>,
    pub memory_files: Vec<ContextFile>,
    pub skills: Vec<ContextPart>,
    /// Whether the total or the window is not known and was estimated, or left at 0.
    pub is_estimated: bool,
    pub show_details: bool,
}

/// Tokens by category. Those of memory files and messages are estimated; of the others, backends report nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ContextBreakdown {
    pub system_prompt: u64,
    pub builtin_tools: u64,
    pub mcp_tools: u64,
    pub memory_files: u64,
    pub skills: u64,
    pub messages: u64,
    /// What the provider counted beyond the categories: the system prompt and the tools of the backend.
    pub unattributed: u64,
    /// How much of the total the provider had cached.
    pub cached_tokens: u64,
    pub free_space: u64,
    pub autocompact_buffer: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ContextPart {
    pub name: String,
    pub tokens: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ContextFile {
    pub path: String,
    pub tokens: u64,
}

/// How Qwen Code begins the id of a model that its settings name: `$runtime|PROVIDER|MODEL(PROVIDER)`.
const RUNTIME_MODEL: &str = "$runtime|";

/// The name of a model without what Qwen Code adds to it.
fn plain_name(id: &str) -> &str {
    let Some((provider, name)) = id.strip_prefix(RUNTIME_MODEL).and_then(|rest| rest.split_once('|')) else {
        return id;
    };
    let plain =
        name.strip_suffix(')').and_then(|name| name.strip_suffix(provider)).and_then(|name| name.strip_suffix('('));
    plain.unwrap_or(name)
}

/// What is known about the context of a session.
#[derive(Clone, Debug, Default)]
pub struct ContextFacts {
    pub model_name: String,
    pub context_window: Option<u64>,
    /// Input tokens of the last model call.
    pub input_tokens: Option<u64>,
    pub cached_tokens: u64,
    /// Memory files that precede prompts, with the bytes of their texts.
    pub memory_files: Vec<(String, u64)>,
    /// Bytes of the conversation's messages.
    pub message_bytes: u64,
}

/// The part of a `usage` event that is about one model call.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CallUsage {
    pub model: Option<String>,
    pub input_tokens: Option<u64>,
    pub cached_input_tokens: Option<u64>,
}

fn estimate(bytes: u64) -> u64 {
    bytes.div_ceil(BYTES_PER_TOKEN)
}

impl ContextUsage {
    pub fn of(facts: ContextFacts, show_details: bool) -> Self {
        let files = facts.memory_files.into_iter().map(|(path, bytes)| ContextFile { path, tokens: estimate(bytes) });
        let files: Vec<_> = files.collect();
        let memory: u64 = files.iter().map(|file| file.tokens).sum();
        let messages = estimate(facts.message_bytes);
        // Without a count of the provider the total is the sum of the estimates.
        let total = facts.input_tokens.unwrap_or(memory + messages);
        let memory_files = memory.min(total);
        let messages = messages.min(total - memory_files);
        let window = facts.context_window.unwrap_or(0);
        let breakdown = ContextBreakdown {
            memory_files,
            messages,
            unattributed: total - memory_files - messages,
            cached_tokens: facts.cached_tokens.min(total),
            free_space: window.saturating_sub(total),
            ..ContextBreakdown::default()
        };
        Self {
            model_name: plain_name(&facts.model_name).to_owned(),
            total_tokens: total,
            context_window_size: window,
            breakdown,
            memory_files: if show_details { files } else { vec![] },
            is_estimated: facts.input_tokens.is_none() || facts.context_window.is_none(),
            show_details,
            ..Self::default()
        }
    }

    /// For people, as Markdown.
    pub fn text(&self) -> String {
        let mut text = format!("## Context usage\n\nModel: {}\n", self.model_name);
        let _ = match self.context_window_size {
            0 => writeln!(text, "Context window: not known; the profile's `context_window` states it"),
            window => writeln!(text, "Context window: {window} tokens"),
        };
        if self.is_estimated {
            text.push_str("\n*Estimated: the provider's count or the size of the window is missing.*\n");
        }
        let share = |tokens: u64| match self.context_window_size {
            0 => String::new(),
            window => format!(" ({:.1} %)", 100.0 * tokens as f64 / window as f64),
        };
        let parts = &self.breakdown;
        let rows = [
            ("Used", self.total_tokens),
            ("Memory files, estimated", parts.memory_files),
            ("Messages, estimated", parts.messages),
            ("Not attributed", parts.unattributed),
            ("Cached", parts.cached_tokens),
            ("Free", parts.free_space),
        ];
        text.push('\n');
        for (name, tokens) in rows {
            let _ = writeln!(text, "- {name}: {tokens} tokens{}", share(tokens));
        }
        for file in &self.memory_files {
            let _ = writeln!(text, "  - {}: {} tokens", file.path, file.tokens);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_shown_by_its_plain_name() {
        for (id, name) in [
            ("$runtime|openai|m1(openai)", "m1"),
            ("$runtime|openai|a|b(c)", "a|b(c)"),
            ("m1(openai)", "m1(openai)"),
            ("$runtime|m1", "$runtime|m1"),
        ] {
            assert_eq!(plain_name(id), name);
        }
        let usage = ContextUsage::of(ContextFacts { model_name: "$runtime|x|m(x)".into(), ..facts() }, false);
        assert_eq!(usage.model_name, "m");
    }

    fn facts() -> ContextFacts {
        ContextFacts {
            model_name: "m".into(),
            memory_files: vec![("AGENTS.md".into(), 399)],
            message_bytes: 2_000,
            ..ContextFacts::default()
        }
    }

    #[test]
    fn without_a_count_everything_is_an_estimate() {
        let usage = ContextUsage::of(facts(), false);
        assert!(usage.is_estimated && usage.memory_files.is_empty());
        assert_eq!((usage.total_tokens, usage.context_window_size), (600, 0));
        let parts = &usage.breakdown;
        assert_eq!((parts.memory_files, parts.messages, parts.unattributed, parts.free_space), (100, 500, 0, 0));
        assert!(usage.text().contains("Context window: not known"));
    }

    #[test]
    fn parts_never_exceed_what_the_provider_counted() {
        let known = ContextFacts { input_tokens: Some(450), context_window: Some(1_000), cached_tokens: 90, ..facts() };
        let usage = ContextUsage::of(known.clone(), true);
        let parts = &usage.breakdown;
        assert_eq!((parts.memory_files, parts.messages, parts.unattributed), (100, 350, 0));
        assert_eq!((parts.free_space, parts.cached_tokens, usage.is_estimated), (550, 90, false));
        assert_eq!(usage.memory_files, [ContextFile { path: "AGENTS.md".into(), tokens: 100 }]);
        assert!(usage.text().contains("- Used: 450 tokens (45.0 %)"), "{}", usage.text());
        let more = ContextUsage::of(ContextFacts { input_tokens: Some(2_000), ..known }, false).breakdown;
        assert_eq!((more.unattributed, more.free_space), (1_400, 0));
    }
}
