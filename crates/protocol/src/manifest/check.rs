//! Reads a manifest that somebody submits, and holds it to every constraint of its format. What is merely unwise is taken,
//! with a warning.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    Canonical, DESCRIPTION_BYTES_MAX, LABEL_BYTES_MAX, MANIFEST_BYTES_MAX, MANIFEST_BYTES_WARN, Manifest,
    SCHEMA_VERSION, SCOPE_ID_BYTES_MAX, Scope, TEXT_KEY_BYTES_MAX, TOOL_TIMEOUT_MS_MAX, Tool,
    pointer::Pointer,
    schema,
    scopes::{is_reserved, preset},
};
use crate::{Failure, json::read_shape};

const INVALID: &str = "manifest-invalid";
const NAME: &str = "capability_manifest";

/// A manifest that keeps its format's rules.
#[derive(Clone, Debug)]
pub struct Checked {
    pub manifest: Manifest,
    pub canonical: Canonical,
    pub warnings: Vec<Warning>,
}

/// Something to look at. The manifest was taken all the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Warning {
    pub rule: String,
    /// Where in the manifest.
    pub pointer: String,
    pub message: String,
}

impl Checked {
    /// Reads and checks what a caller submits.
    pub fn read(text: &str) -> Result<Self, Failure> {
        let canonical = Canonical::read(NAME, text)?;
        let bytes = canonical.text.len();
        if bytes > MANIFEST_BYTES_MAX {
            return Err(Failure::too_large("manifest-too-large", NAME, bytes, MANIFEST_BYTES_MAX));
        }
        let mut checked = Self::of(canonical)?;
        if checked.is_large() {
            let message = format!("{bytes} bytes; the limit is {MANIFEST_BYTES_MAX}");
            checked.warn("manifest-large", "", message);
        }
        checked.check()?;
        checked.warn_of_unknown_fields();
        Ok(checked)
    }

    /// Reads a manifest that was checked when it was stored.
    pub fn stored(text: &str) -> Result<Self, Failure> {
        Self::of(Canonical::of(serde_json::from_str(text).map_err(Failure::internal)?))
    }

    fn of(canonical: Canonical) -> Result<Self, Failure> {
        let manifest = read_shape(INVALID, NAME, &canonical.text)?;
        Ok(Self { manifest, canonical, warnings: vec![] })
    }

    /// Whether it is near the limit.
    pub fn is_large(&self) -> bool {
        self.canonical.text.len() >= MANIFEST_BYTES_WARN
    }

    fn warn(&mut self, rule: &str, pointer: &str, message: impl Into<String>) {
        self.warnings.push(Warning { rule: rule.into(), pointer: pointer.into(), message: message.into() });
    }

    fn check(&mut self) -> Result<(), Failure> {
        let manifest = self.manifest.clone();
        if manifest.schema_version != SCHEMA_VERSION {
            return Err(invalid("/schema_version", format!("must be {SCHEMA_VERSION:?}")));
        }
        if semver::Version::parse(&manifest.agent_version).is_err() {
            return Err(invalid("/agent_version", "must be a semantic version such as 1.0.0"));
        }
        let mut ids = HashSet::new();
        for (index, scope) in manifest.permission_scopes.iter().enumerate() {
            let at = format!("/permission_scopes/{index}");
            check_scope(scope, &at)?;
            if !ids.insert(scope.id.as_str()) {
                return Err(invalid(&format!("{at}/id"), format!("{:?} is declared twice", scope.id)));
            }
            if !scope.id.contains(':') {
                self.warn("scope-form", &format!("{at}/id"), "a scope is better named <domain>:<action>");
            }
        }
        let mut patterns_left = schema::PATTERNS_MAX;
        let mut tool_names = HashSet::new();
        for (index, tool) in manifest.tools.iter().enumerate() {
            let at = format!("/tools/{index}");
            check_tool(tool, &at)?;
            if !tool_names.insert(tool.name.as_str()) {
                return Err(invalid(&format!("{at}/name"), format!("{:?} is declared twice", tool.name)));
            }
            if !ids.contains(tool.permission_scope.as_str()) {
                let message = format!("{:?} is not among permission_scopes", tool.permission_scope);
                return Err(refused("scope-unknown", &format!("{at}/permission_scope"), message));
            }
            self.check_schema(&tool.input_schema, &format!("{at}/input_schema"), &mut patterns_left)?;
            if preset(&tool.permission_scope).is_none() && tool.description_fallback.is_none() {
                let message = "no text of ours describes this tool; give it a description_fallback";
                self.warn("tool-fallback", &format!("{at}/description_fallback"), message);
            }
        }
        Ok(())
    }

    fn check_schema(&mut self, input: &Value, at: &str, patterns_left: &mut usize) -> Result<(), Failure> {
        schema::check(input, &Pointer::from(at), patterns_left)
            .map_err(|fault| refused("schema-invalid", &fault.pointer, fault.message))?;
        if input.get("type") != Some(&Value::from("object")) {
            return Err(refused("schema-invalid", at, "arguments are an object: `type` must be \"object\""));
        }
        if input.get("additionalProperties") != Some(&Value::Bool(false)) {
            self.warn("schema-open", at, "additionalProperties is not false: any argument is accepted");
        }
        Ok(())
    }

    fn warn_of_unknown_fields(&mut self) {
        let mut unknown = vec![];
        super::diff::each_object(&self.canonical.value, &mut |object, fields, at| {
            unknown
                .extend(object.keys().filter(|key| !fields.contains(&key.as_str())).map(|key| at.key(key).to_string()));
        });
        unknown.iter().for_each(|pointer| self.warn("field-unknown", pointer, "this format has no such field"));
    }
}

fn check_scope(scope: &Scope, at: &str) -> Result<(), Failure> {
    if is_reserved(&scope.id) {
        return Err(refused("scope-reserved", &format!("{at}/id"), format!("{:?} is the platform's", scope.id)));
    }
    let fits = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b":_.-".contains(&c);
    let begins = scope.id.bytes().next().is_some_and(|c| c.is_ascii_lowercase());
    if !begins || scope.id.len() > SCOPE_ID_BYTES_MAX || !scope.id.bytes().all(fits) {
        let message = format!("1 to {SCOPE_ID_BYTES_MAX} of a-z 0-9 : _ . - beginning with a letter");
        return Err(invalid(&format!("{at}/id"), message));
    }
    check_text_key(&scope.label_i18n_key, &format!("{at}/label_i18n_key"))?;
    if let Some(key) = &scope.description_i18n_key {
        check_text_key(key, &format!("{at}/description_i18n_key"))?;
    }
    let texts = [
        ("label_fallback", &scope.label_fallback, LABEL_BYTES_MAX),
        ("description_fallback", &scope.description_fallback, DESCRIPTION_BYTES_MAX),
    ];
    let preset = preset(&scope.id);
    for (field, text, bytes_max) in texts {
        check_fallback(text.as_deref(), bytes_max, preset.is_none(), &format!("{at}/{field}"))?;
    }
    match preset {
        Some(preset) if scope.sensitivity < preset.floor => {
            let message = format!("{} is at least {}", scope.id, preset.floor.as_str());
            Err(invalid(&format!("{at}/sensitivity"), message))
        }
        _ => Ok(()),
    }
}

fn check_tool(tool: &Tool, at: &str) -> Result<(), Failure> {
    let fits = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
    let begins = tool.name.bytes().next().is_some_and(|c| c.is_ascii_lowercase());
    if !begins || !(2..=32).contains(&tool.name.len()) || !tool.name.bytes().all(fits) {
        return Err(invalid(&format!("{at}/name"), "must match ^[a-z][a-z0-9_]{1,31}$"));
    }
    check_text_key(&tool.description_i18n_key, &format!("{at}/description_i18n_key"))?;
    let fallback = tool.description_fallback.as_deref();
    check_fallback(fallback, DESCRIPTION_BYTES_MAX, false, &format!("{at}/description_fallback"))?;
    match tool.timeout_ms {
        1..=TOOL_TIMEOUT_MS_MAX => Ok(()),
        _ => Err(invalid(&format!("{at}/timeout_ms"), format!("must be 1 to {TOOL_TIMEOUT_MS_MAX}"))),
    }
}

/// The key of a translated text: dotted segments.
fn check_text_key(key: &str, at: &str) -> Result<(), Failure> {
    let segment = |s: &str| {
        !s.is_empty() && s.bytes().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || b"_-".contains(&c))
    };
    if key.len() <= TEXT_KEY_BYTES_MAX && key.split('.').all(segment) {
        return Ok(());
    }
    Err(invalid(at, format!("dotted lower-case segments, at most {TEXT_KEY_BYTES_MAX} bytes")))
}

/// A text that people read when they consent: plain, short, and in the order it is written in.
fn check_fallback(text: Option<&str>, bytes_max: usize, is_needed: bool, at: &str) -> Result<(), Failure> {
    let Some(text) = text else {
        let message = "the scope is not one of the preset ones, so the manifest has to bring its text";
        return if is_needed { Err(invalid(at, message)) } else { Ok(()) };
    };
    let turns =
        |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{061c}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if text.trim().is_empty() || text.len() > bytes_max || text.chars().any(|c| c.is_control() || turns(c)) {
        return Err(invalid(at, format!("plain text of 1 to {bytes_max} bytes, without control characters")));
    }
    Ok(())
}

fn invalid(pointer: &str, message: impl Into<String>) -> Failure {
    refused(INVALID, pointer, message)
}

fn refused(rule: &'static str, pointer: &str, message: impl Into<String>) -> Failure {
    let message = message.into();
    Failure::invalid(rule, format!("{NAME}{pointer}: {message}")).detail("pointer", pointer)
}
