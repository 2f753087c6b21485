//! Redaction of what callers send, before it is stored.

use std::borrow::Cow;

use ostler_protocol::{Failure, RawJson, Rule, ids::name};

use crate::app::App;

impl App {
    /// A caller's JSON, redacted for storage.
    pub fn redacted(&self, raw: &RawJson) -> Result<RawJson, Failure> {
        unless_changed(raw, self.redactor.redact_json(raw.as_str()))
    }

    /// JSON whose top-level fields are ours, redacted for storage. They can be read back whatever values are known.
    pub fn redacted_payload(&self, raw: &RawJson) -> Result<RawJson, Failure> {
        unless_changed(raw, self.redactor.redact_json_payload(raw.as_str()))
    }

    /// JSON all of whose keys are ours, redacted for storage.
    pub fn redacted_values(&self, raw: &RawJson) -> Result<RawJson, Failure> {
        unless_changed(raw, self.redactor.redact_json_values(raw.as_str()))
    }

    /// Checks an id that a caller chose. It is stored and displayed unredacted, so it may not be a credential.
    pub fn name<'a>(&self, field: &str, text: &'a str) -> Result<&'a str, Failure> {
        name(field, text)?;
        match self.redactor.redact(text) {
            Cow::Borrowed(_) => Ok(text),
            Cow::Owned(_) => {
                let message = format!(
                    "{field} looks like a credential; this field is stored and shown unredacted, so it was rejected"
                );
                Err(Failure::invalid(Rule::NameCredential, message).detail("field", field))
            }
        }
    }
}

/// The redacted text, or the JSON as it was if there was nothing to redact.
fn unless_changed(raw: &RawJson, redacted: Cow<'_, str>) -> Result<RawJson, Failure> {
    match redacted {
        Cow::Borrowed(_) => Ok(raw.clone()),
        Cow::Owned(clean) => RawJson::parse(clean).map_err(Failure::internal),
    }
}
