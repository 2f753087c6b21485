//! What has changed about an agent since somebody consented, in words. What breaks comes first; where it stands in the
//! manifest is told as well, for whoever wants to look.

use ostler_protocol::trust::{
    i18n::{Language, scope_text},
    manifest::{Change, Manifest},
    relations::RelationChanges,
};

use super::words::{change, words};
use crate::{
    output::{line, moved},
    paint::Paint,
};

const SHOWN_CHARS_MAX: usize = 200;

pub fn render(agent: &str, manifest: &Manifest, changes: &RelationChanges, language: Language, paint: Paint) -> String {
    let words = words(language);
    let agent = paint.bold(&line(agent, SHOWN_CHARS_MAX));
    if changes.changes.is_empty() {
        return format!("\n{agent} {}\n", words.unchanged);
    }
    let head = (words.changed)(changes.consented_manifest_version, changes.manifest_version);
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

/// What it means, and of which scope or tool.
fn describe(manifest: &Manifest, found: &Change, language: Language) -> String {
    let subject = found.tool.clone().unwrap_or_else(|| scope(manifest, found, language));
    line(&change(language, found.rule, found.breaking, &subject), 2 * SHOWN_CHARS_MAX)
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
    let moved = moved(&found.old, &found.new, SHOWN_CHARS_MAX);
    format!("{} {} {moved}", found.rule.as_str(), line(&found.pointer, SHOWN_CHARS_MAX)).trim_end().to_owned()
}
