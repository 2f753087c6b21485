//! Removes secrets from the texts and arguments of calls before they are cut: half of a secret could not be recognised.

use std::borrow::Cow;

use ostler_protocol::ids::RunId;
use serde::de::IgnoredAny;

use super::source::ToolContext;
use crate::{app::App, job_redactors::RunRedactors};

/// Recognises the secrets that this server knows, those of the jobs of one run, and what looks like a credential.
pub(super) struct CallRedactor<'a> {
    app: &'a App,
    of_jobs: RunRedactors,
}

impl<'a> CallRedactor<'a> {
    pub(super) fn of_run(app: &'a App, run_id: RunId) -> Self {
        Self { app, of_jobs: app.job_redactors.of_run(run_id) }
    }

    /// For a call in the context's run, or for one outside of any run.
    pub(super) fn of_context(app: &'a App, context: &ToolContext) -> Self {
        match &context.run {
            Some(run) => Self::of_run(app, run.run_id),
            None => Self { app, of_jobs: RunRedactors::default() },
        }
    }

    /// Redacts a text, which may be JSON. A field that is named like a secret is recognised only while its JSON is complete, so that
    /// JSON is redacted as such first.
    pub(super) async fn redact(&self, text: String) -> String {
        self.app.compute(text.len(), move || self.without_secrets(text)).await
    }

    /// Redacts a JSON text, also the names of its fields. The result is JSON.
    pub(super) async fn redact_json(&self, json: String) -> String {
        self.app.compute(json.len(), move || self.json_without_secrets(json)).await
    }

    fn without_secrets(&self, text: String) -> String {
        let text = if is_json(&text) { self.json_without_secrets(text) } else { text };
        let text = self.of_jobs.redact(text);
        match self.app.redactor.redact(&text) {
            Cow::Borrowed(_) => text,
            Cow::Owned(clean) => clean,
        }
    }

    fn json_without_secrets(&self, json: String) -> String {
        let json = self.of_jobs.redact_json_text(json);
        match self.app.redactor.redact_json(&json) {
            Cow::Borrowed(_) => json,
            Cow::Owned(clean) => clean,
        }
    }
}

/// Whether a text is a JSON object or array.
fn is_json(text: &str) -> bool {
    text.trim_start().starts_with(['{', '[']) && serde_json::from_str::<IgnoredAny>(text).is_ok()
}
