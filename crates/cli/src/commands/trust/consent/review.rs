//! Describes what changed in an agent since a person consented. Breaking changes come first; each line also names the place
//! in the manifest.

use ostler_protocol::trust::{
    i18n::{Language, scope_text},
    manifest::{Change, Manifest},
    relations::RelationChanges,
};

use super::texts::{describe_change, texts};
use crate::terminal::{
    output::{line, value_change},
    paint::Paint,
};

const TEXT_CHARS_MAX: usize = 200;

pub(crate) fn render(
    agent: &str,
    manifest: &Manifest,
    changes: &RelationChanges,
    language: Language,
    paint: Paint,
) -> String {
    let texts = texts(language);
    let agent = paint.bold(&line(agent, TEXT_CHARS_MAX));
    if changes.changes.is_empty() {
        return format!("\n{agent} {}\n", texts.unchanged);
    }
    let head = (texts.changed)(changes.consented_manifest_version, changes.manifest_version);
    let mut out = format!("\n{agent} {head}\n");
    let (breaking, silent): (Vec<_>, Vec<_>) = changes.changes.iter().partition(|change| change.breaking);
    for (mark, list) in [(paint.red("!"), breaking), ("·".to_owned(), silent)] {
        for found in list {
            out += &format!("  {mark} {}\n", describe(manifest, found, language));
            out += &format!("      {}\n", paint.dim(&detail(found)));
        }
    }
    out
}

/// The meaning of a change, with its scope or tool.
fn describe(manifest: &Manifest, found: &Change, language: Language) -> String {
    let subject = found.tool.clone().unwrap_or_else(|| scope(manifest, found, language));
    line(&describe_change(language, found.rule, found.breaking, &subject), 2 * TEXT_CHARS_MAX)
}

fn scope(manifest: &Manifest, found: &Change, language: Language) -> String {
    let Some(id) = &found.scope else { return found.pointer.clone() };
    let declared = manifest.permission_scopes.iter().find(|scope| scope.id == *id);
    match declared.and_then(|scope| scope_text(scope, language)) {
        Some(text) => format!("{} ({id})", text.label),
        None => id.clone(),
    }
}

/// `scope-sensitivity-raised /permission_scopes/0/sensitivity "low" → "high"`.
fn detail(found: &Change) -> String {
    let values = value_change(&found.old, &found.new, TEXT_CHARS_MAX);
    format!("{} {} {values}", found.rule.as_str(), line(&found.pointer, TEXT_CHARS_MAX)).trim_end().to_owned()
}
