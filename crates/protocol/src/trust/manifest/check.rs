//! Reads a submitted manifest, and holds it to every constraint of its format. What is merely unwise is accepted, with
//! a warning.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    Canonical, DESCRIPTION_BYTES_MAX, LABEL_BYTES_MAX, MANIFEST_BYTES_MAX, MANIFEST_BYTES_WARN, Manifest,
    SCHEMA_VERSION, SCOPE_ID_BYTES_MAX, SCOPES_MAX, Scope, TEXT_KEY_BYTES_MAX, TOOL_TIMEOUT_MS_MAX, TOOLS_MAX, Tool,
    extensions::Extensions,
    fields::{self, misfits, with_stand_ins},
    outline::weight,
    pointer::Pointer,
    schema,
    scopes::{PRESETS, is_reserved, preset},
};
use crate::{Failure, Rule, failures::PROBLEMS_MAX, json::read_shape, text::is_plain};

const NAME: &str = "capability_manifest";

/// A manifest that keeps its format's rules.
#[derive(Clone, Debug)]
pub struct Checked {
    pub manifest: Manifest,
    pub canonical: Canonical,
    pub(super) extensions: Extensions,
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

impl Warning {
    fn new(rule: &str, pointer: &str, message: impl Into<String>) -> Self {
        Self { rule: rule.into(), pointer: pointer.into(), message: message.into() }
    }
}

impl Checked {
    /// Reads and checks what a caller submits.
    pub fn read(text: &str) -> Result<Self, Failure> {
        let (value, canonical) = Canonical::read(NAME, text)?;
        let bytes = canonical.text.len();
        if bytes > MANIFEST_BYTES_MAX {
            return Err(Failure::too_large(Rule::ManifestTooLarge, NAME, bytes, MANIFEST_BYTES_MAX));
        }
        let mut problems = Problems::default();
        misfits(&value, &mut |pointer, message| problems.add(invalid(&pointer, message)));
        if !problems.is_empty() {
            check_parts(&value, &mut problems);
            return Err(problems.into_failure());
        }
        let (manifest, rest) = shape(value, &canonical.text)?;
        let mut warnings = vec![];
        if bytes >= MANIFEST_BYTES_WARN {
            let message = format!("{bytes} bytes; the limit is {MANIFEST_BYTES_MAX}");
            warnings.push(Warning::new("manifest-large", "", message));
        }
        check(&manifest, &mut warnings, &mut problems);
        Failure::check_all(problems.0)?;
        let extensions = Extensions::of(&rest);
        warnings.extend(extensions.pointers().map(unknown_field));
        Ok(Self { manifest, canonical, extensions, warnings })
    }

    /// Warnings about the unknown fields of a text that [`Self::read`] rejects: a misspelt name is often why a field is
    /// missing. None if the text is not JSON.
    pub fn unknown_fields(text: &str) -> Vec<Warning> {
        let Ok((value, _)) = Canonical::read(NAME, text) else { return vec![] };
        Extensions::of(&value).pointers().take(PROBLEMS_MAX).map(unknown_field).collect()
    }

    /// Reads a manifest as a server returns it, which has checked it. It may have been reformatted on its way.
    pub fn reformatted(text: &str) -> Result<Self, Failure> {
        let value: Value = serde_json::from_str(text).map_err(Failure::internal)?;
        let canonical = Canonical::of(&value);
        Self::stored(canonical)
    }

    /// Reads a manifest that was checked when it was stored, in its canonical form.
    pub fn stored(canonical: Canonical) -> Result<Self, Failure> {
        let value = serde_json::from_str(&canonical.text).map_err(Failure::internal)?;
        let (manifest, rest) = shape(value, &canonical.text)?;
        Ok(Self { manifest, canonical, extensions: Extensions::of(&rest), warnings: vec![] })
    }

    /// About how much memory it takes.
    pub fn bytes(&self) -> usize {
        let schemas = self.manifest.tools.iter().map(|tool| weight(&tool.input_schema));
        // The text is there once as it is, and once in parts.
        2 * self.canonical.text.len() + schemas.sum::<usize>() + size_of::<Self>()
    }

    /// Whether it is near the limit.
    pub fn is_large(&self) -> bool {
        self.canonical.text.len() >= MANIFEST_BYTES_WARN
    }
}

fn unknown_field(pointer: &str) -> Warning {
    Warning::new("field-unknown", pointer, "this format has no such field")
}

/// What is wrong with a manifest, up to the number that is reported.
#[derive(Default)]
struct Problems(Vec<Failure>);

impl Problems {
    /// Returns whether there is room for another one.
    fn add(&mut self, problem: Failure) -> bool {
        self.0.push(problem);
        !self.is_full()
    }

    fn add_all(&mut self, checks: impl IntoIterator<Item = Result<(), Failure>>) {
        self.0.extend(checks.into_iter().filter_map(Result::err));
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One more than is listed, so that the list can be marked as cut off.
    fn is_full(&self) -> bool {
        self.0.len() > PROBLEMS_MAX
    }

    fn into_failure(self) -> Failure {
        Failure::check_all(self.0).err().unwrap_or_else(|| invalid("", "is not a manifest"))
    }
}

/// Gives a manifest its type, and hands back what was read, without the schemas: they are most of it, and are moved.
fn shape(mut value: Value, text: &str) -> Result<(Manifest, Value), Failure> {
    let tools = value.get_mut("tools").and_then(Value::as_array_mut).into_iter().flatten();
    let schemas: Vec<_> = tools.map(|tool| tool.get_mut("input_schema").map(Value::take)).collect();
    // A misfit is parsed again, to report where it is.
    let Ok(mut manifest) = Manifest::deserialize(&value) else {
        return read_shape(Rule::ManifestInvalid, NAME, text).map(|manifest| (manifest, value));
    };
    for (tool, schema) in manifest.tools.iter_mut().zip(schemas) {
        tool.input_schema = schema.unwrap_or_default();
    }
    Ok((manifest, value))
}

fn check(manifest: &Manifest, warnings: &mut Vec<Warning>, problems: &mut Problems) {
    check_versions(Some(&manifest.schema_version), Some(&manifest.agent_version), problems);
    // What is in a list that is too long is not looked at.
    if !check_counts(manifest.permission_scopes.len(), manifest.tools.len(), problems) {
        return;
    }
    let ids = manifest.permission_scopes.iter().map(|scope| scope.id.as_str()).collect();
    check_scopes(manifest.permission_scopes.iter().enumerate(), warnings, problems);
    check_tools(manifest.tools.iter().enumerate(), &ids, warnings, problems);
}

/// Returns whether both lists are short enough.
fn check_counts(scopes: usize, tools: usize, problems: &mut Problems) -> bool {
    let lists = [("permission_scopes", scopes, SCOPES_MAX), ("tools", tools, TOOLS_MAX)];
    for (list, count, max) in lists.into_iter().filter(|(_, count, max)| count > max) {
        problems.add(invalid(&format!("/{list}"), format!("there are {count}; at most {max} may be declared")));
    }
    scopes <= SCOPES_MAX && tools <= TOOLS_MAX
}

/// Checks the fields that do fit of a manifest that has misfits, so that one answer names all problems. A misfit is replaced by a
/// stand-in, and what is found at its place is left out: the misfit was reported.
fn check_parts(value: &Value, problems: &mut Problems) {
    let misfits: HashSet<_> = problems.0.iter().filter_map(pointer_of).map(str::to_owned).collect();
    let text = |field: &str| value.get(field).and_then(Value::as_str);
    let mut found = Problems::default();
    check_versions(text("schema_version"), text("agent_version"), &mut found);
    let count = |list: &str| value.get(list).and_then(Value::as_array).map_or(0, Vec::len);
    check_counts(count("permission_scopes"), count("tools"), &mut found);
    let items = |list: &str, max| value.get(list).and_then(Value::as_array).into_iter().flatten().take(max);
    let scopes: Vec<_> = items("permission_scopes", SCOPES_MAX).map(scope_with_stand_ins).collect();
    let tools: Vec<_> = items("tools", TOOLS_MAX).map(tool_with_stand_ins).collect();
    // A scope with another problem counts as declared, so that tools that use it are not reported, too.
    let ids = items("permission_scopes", SCOPES_MAX).filter_map(|scope| scope.get("id")?.as_str()).collect();
    let mut warnings = vec![];
    check_scopes(numbered(&scopes), &mut warnings, &mut found);
    check_tools(numbered(&tools), &ids, &mut warnings, &mut found);
    let is_new = |problem: &Failure| pointer_of(problem).is_none_or(|pointer| !misfits.contains(pointer));
    problems.0.extend(found.0.into_iter().filter(is_new));
}

fn pointer_of(problem: &Failure) -> Option<&str> {
    problem.details.as_ref()?.get("pointer")?.as_str()
}

/// `None` if it is not an object.
fn tool_with_stand_ins(tool: &Value) -> Option<Tool> {
    Tool::deserialize(with_stand_ins(tool, fields::TOOL)?).ok()
}

/// A scope without a readable id is checked as a preset one, which needs no texts.
fn scope_with_stand_ins(scope: &Value) -> Option<Scope> {
    let mut read = Scope::deserialize(with_stand_ins(scope, fields::SCOPE)?).ok()?;
    if !scope.get("id").is_some_and(Value::is_string) {
        PRESETS[0].id.clone_into(&mut read.id);
    }
    Some(read)
}

fn numbered<T>(items: &[Option<T>]) -> impl Iterator<Item = (usize, &T)> {
    items.iter().enumerate().filter_map(|(index, item)| Some((index, item.as_ref()?)))
}

fn check_versions(schema_version: Option<&str>, agent_version: Option<&str>, problems: &mut Problems) {
    if schema_version.is_some_and(|version| version != SCHEMA_VERSION) {
        problems.add(invalid("/schema_version", format!("must be {SCHEMA_VERSION:?}")));
    }
    if agent_version.is_some_and(|version| semver::Version::parse(version).is_err()) {
        problems.add(invalid("/agent_version", "must be a semantic version such as 1.0.0"));
    }
}

fn check_scopes<'a>(
    scopes: impl Iterator<Item = (usize, &'a Scope)>,
    warnings: &mut Vec<Warning>,
    problems: &mut Problems,
) {
    let mut ids = HashSet::new();
    for (index, scope) in scopes {
        if problems.is_full() {
            return;
        }
        let at = format!("/permission_scopes/{index}");
        check_scope(scope, &at, problems);
        if !ids.insert(scope.id.as_str()) {
            problems.add(invalid(&format!("{at}/id"), format!("{:?} is declared twice", scope.id)));
        }
        if !scope.id.contains(':') {
            let message = "a scope is better named <domain>:<action>";
            warnings.push(Warning::new("scope-form", &format!("{at}/id"), message));
        }
    }
}

fn check_tools<'a>(
    tools: impl Iterator<Item = (usize, &'a Tool)>,
    ids: &HashSet<&str>,
    warnings: &mut Vec<Warning>,
    problems: &mut Problems,
) {
    let mut left = schema::SchemaAllowance::default();
    let mut tool_names = HashSet::new();
    for (index, tool) in tools {
        if problems.is_full() {
            return;
        }
        let at = format!("/tools/{index}");
        check_tool(tool, &at, problems);
        if !tool_names.insert(tool.name.as_str()) {
            problems.add(invalid(&format!("{at}/name"), format!("{:?} is declared twice", tool.name)));
        }
        if !ids.contains(tool.permission_scope.as_str()) {
            let message = format!("{:?} is not among permission_scopes", tool.permission_scope);
            problems.add(refused(Rule::ScopeUnknown, &format!("{at}/permission_scope"), message));
        }
        check_schema(&tool.input_schema, &format!("{at}/input_schema"), &mut left, warnings, problems);
        if preset(&tool.permission_scope).is_none() && tool.description_fallback.is_none() {
            let message = "no text of ours describes this tool; give it a description_fallback";
            warnings.push(Warning::new("tool-fallback", &format!("{at}/description_fallback"), message));
        }
    }
}

fn check_schema<'a>(
    input: &'a Value,
    at: &str,
    left: &mut schema::SchemaAllowance<'a>,
    warnings: &mut Vec<Warning>,
    problems: &mut Problems,
) {
    let faults = schema::check(input, &Pointer::from(at), left).err().unwrap_or_default();
    let type_at = format!("{at}/type");
    let is_type_reported = faults.iter().any(|fault| fault.pointer == type_at || fault.pointer == at);
    for fault in faults {
        problems.add(refused(Rule::SchemaInvalid, &fault.pointer, fault.message));
    }
    if input.get("type") != Some(&Value::from("object")) && !is_type_reported {
        problems.add(refused(Rule::SchemaInvalid, at, "arguments are an object: `type` must be \"object\""));
    }
    if input.get("additionalProperties") != Some(&Value::Bool(false)) {
        let message = "additionalProperties is not false: any argument is accepted";
        warnings.push(Warning::new("schema-open", at, message));
    }
}

fn check_scope(scope: &Scope, at: &str, problems: &mut Problems) {
    problems.add_all([check_scope_id(&scope.id, &format!("{at}/id"))]);
    problems.add_all([check_text_key(&scope.label_i18n_key, &format!("{at}/label_i18n_key"))]);
    let key = scope.description_i18n_key.as_ref();
    problems.add_all(key.map(|key| check_text_key(key, &format!("{at}/description_i18n_key"))));
    let texts = [
        ("label_fallback", &scope.label_fallback, LABEL_BYTES_MAX),
        ("description_fallback", &scope.description_fallback, DESCRIPTION_BYTES_MAX),
    ];
    let preset = preset(&scope.id);
    for (field, text, bytes_max) in texts {
        let at = format!("{at}/{field}");
        problems.add_all([check_fallback(text.as_deref(), bytes_max, preset.is_none(), &at)]);
    }
    if let Some(preset) = preset.filter(|preset| scope.sensitivity < preset.floor) {
        let message = format!("{} is at least {}", scope.id, preset.floor.as_str());
        problems.add(invalid(&format!("{at}/sensitivity"), message));
    }
}

fn check_scope_id(id: &str, at: &str) -> Result<(), Failure> {
    if is_reserved(id) {
        return Err(refused(Rule::ScopeReserved, at, format!("{id:?} is the platform's")));
    }
    let fits = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b":_.-".contains(&c);
    let begins = id.bytes().next().is_some_and(|c| c.is_ascii_lowercase());
    if !begins || id.len() > SCOPE_ID_BYTES_MAX || !id.bytes().all(fits) {
        let message = format!("1 to {SCOPE_ID_BYTES_MAX} of a-z 0-9 : _ . - beginning with a letter");
        return Err(invalid(at, message));
    }
    Ok(())
}

fn check_tool(tool: &Tool, at: &str, problems: &mut Problems) {
    let fits = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
    let begins = tool.name.bytes().next().is_some_and(|c| c.is_ascii_lowercase());
    if !begins || !(2..=32).contains(&tool.name.len()) || !tool.name.bytes().all(fits) {
        problems.add(invalid(&format!("{at}/name"), "must match ^[a-z][a-z0-9_]{1,31}$"));
    }
    let fallback = tool.description_fallback.as_deref();
    problems.add_all([
        check_text_key(&tool.description_i18n_key, &format!("{at}/description_i18n_key")),
        check_fallback(fallback, DESCRIPTION_BYTES_MAX, false, &format!("{at}/description_fallback")),
    ]);
    if !(1..=TOOL_TIMEOUT_MS_MAX).contains(&tool.timeout_ms) {
        problems.add(invalid(&format!("{at}/timeout_ms"), format!("must be 1 to {TOOL_TIMEOUT_MS_MAX}")));
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
    if text.len() > bytes_max || !is_plain(text) {
        let message = format!("1 to {bytes_max} bytes of text that can be seen, and nothing that cannot");
        return Err(invalid(at, message));
    }
    Ok(())
}

fn invalid(pointer: &str, message: impl Into<String>) -> Failure {
    refused(Rule::ManifestInvalid, pointer, message)
}

fn refused(rule: Rule, pointer: &str, message: impl Into<String>) -> Failure {
    let message = message.into();
    Failure::invalid(rule, format!("{NAME}{pointer}: {message}")).detail("pointer", pointer)
}
