//! The consent screen: the scopes an agent asks for, the most sensitive first, and a person who chooses among them. Nothing
//! is chosen beforehand but what is in force already.

use std::{
    collections::BTreeMap,
    io::{BufRead, IsTerminal},
};

use ostler_protocol::{
    Failure, Timestamp,
    i18n::{Language, scope_text},
    manifest::{Manifest, Scope, Sensitivity},
    relations::{Answers, RelationView, ScopeStanding, ScopeState, Terms},
};

use super::words::{Words, words};
use crate::{
    errors,
    output::{self, line},
    paint::Paint,
    times::{age_ms, parse_ms},
};

const TEXT_CHARS_MAX: usize = 400;

/// What is said about one scope on the screen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Said {
    #[default]
    Nothing,
    Granted(Terms),
    Never,
}

struct Row<'a> {
    scope: &'a Scope,
    state: ScopeState,
    is_new: bool,
    said: Said,
}

pub struct Choice<'a> {
    agent: &'a str,
    manifest: &'a Manifest,
    language: Language,
    rows: Vec<Row<'a>>,
}

impl<'a> Choice<'a> {
    /// With a relation, what is in force in it is chosen beforehand.
    pub fn new(
        agent: &'a str,
        manifest: &'a Manifest,
        relation: Option<&RelationView>,
        language: Language,
        now: Timestamp,
    ) -> Self {
        let row = |scope: &'a Scope| {
            let standing = relation.and_then(|relation| relation.scopes.iter().find(|known| known.id == scope.id));
            let state = standing.map_or(ScopeState::Unanswered, |known| known.state);
            let asked = relation.is_some_and(|relation| relation.scopes_requiring_reauth.contains(&scope.id));
            let said = match state {
                ScopeState::Granted => Said::Granted(standing.map(|known| limits(known, now)).unwrap_or_default()),
                ScopeState::Denied => Said::Never,
                _ => Said::Nothing,
            };
            Row { scope, state, is_new: asked && state == ScopeState::Unanswered, said }
        };
        let mut rows: Vec<_> = manifest.permission_scopes.iter().map(row).collect();
        // By the level that an answer agrees to, which may be lower than the one still in force.
        rows.sort_by_key(|row| std::cmp::Reverse(row.scope.sensitivity));
        Self { agent, manifest, language, rows }
    }

    fn words(&self) -> &'static Words {
        words(self.language)
    }

    pub fn say(&mut self, scope: &str, said: Said) -> Result<(), Failure> {
        let known = self.rows.iter_mut().find(|row| row.scope.id == scope);
        let known = known.ok_or_else(|| {
            let ids: Vec<_> = self.manifest.permission_scopes.iter().map(|scope| scope.id.as_str()).collect();
            errors::usage(format!("the agent asks for no scope {scope:?}"), format!("it asks for {}", ids.join(", ")))
        })?;
        known.said = said;
        Ok(())
    }

    pub fn clear(&mut self) {
        self.rows.iter_mut().for_each(|row| row.said = Said::Nothing);
    }

    /// Lets a person choose, until they are done. `None`: they left everything as it is.
    pub fn ask(&mut self) -> Result<Option<()>, Failure> {
        if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            let message = "nobody is here to choose";
            return Err(errors::usage(message, "name the scopes with `--grant`, or `--none`, and say `--yes`"));
        }
        let mut lines = std::io::stdin().lock().lines();
        output::words(&self.render(Paint::stderr()));
        output::words(&format!("\n{}\n", self.words().help));
        loop {
            output::words("> ");
            let Some(typed) = lines.next().transpose().map_err(Failure::internal)? else { return Ok(None) };
            match self.take(&typed) {
                Typed::Shown => output::words(&self.render(Paint::stderr())),
                Typed::Unknown => output::words(&format!("{}\n", (self.words().not_understood)(&line(&typed, 80)))),
                Typed::Done => return Ok(Some(())),
                Typed::Left => return Ok(None),
            }
        }
    }

    fn take(&mut self, typed: &str) -> Typed {
        let parts: Vec<_> = typed.split_whitespace().collect();
        match parts.as_slice() {
            [] => return Typed::Done,
            ["q"] => return Typed::Left,
            ["all"] => self.rows.iter_mut().for_each(|row| row.said = Said::Granted(Terms::default())),
            ["none"] => self.clear(),
            [number, how] if self.row(number).is_some() && how.parse::<usize>().is_err() => {
                let said = match *how {
                    "once" => Said::Granted(Terms { once: true, expires_in_ms: None }),
                    "never" => Said::Never,
                    time => match parse_ms(time) {
                        Ok(ms) => Said::Granted(Terms { once: false, expires_in_ms: Some(ms) }),
                        Err(_) => return Typed::Unknown,
                    },
                };
                self.row(number).expect("it was found").said = said;
            }
            numbers if numbers.iter().all(|number| self.row(number).is_some()) => {
                for number in numbers {
                    let row = self.row(number).expect("it was found");
                    let granted = matches!(row.said, Said::Granted(_));
                    row.said = if granted { Said::Nothing } else { Said::Granted(Terms::default()) };
                }
            }
            _ => return Typed::Unknown,
        }
        Typed::Shown
    }

    fn row(&mut self, number: &str) -> Option<&mut Row<'a>> {
        let number: usize = number.parse().ok()?;
        self.rows.get_mut(number.checked_sub(1)?)
    }

    pub fn render(&self, paint: Paint) -> String {
        let words = self.words();
        let asks = match self.rows.len() {
            0 => words.asks_for_nothing.to_owned(),
            count => (words.asks_for)(count),
        };
        let mut out = format!("\n{} {asks}\n", paint.bold(&line(self.agent, 200)));
        let mut level = None;
        for (index, row) in self.rows.iter().enumerate() {
            let sensitivity = row.scope.sensitivity;
            if level.replace(sensitivity) != Some(sensitivity) {
                let head = format!("{} {}", icon(sensitivity), words.level(sensitivity));
                let painted = match sensitivity {
                    Sensitivity::High => paint.red(&head),
                    Sensitivity::Medium => paint.yellow(&head),
                    Sensitivity::Low => paint.bold(&head),
                };
                out += &format!("\n{painted}\n");
            }
            out += &self.show(index + 1, row, paint);
        }
        out
    }

    fn show(&self, number: usize, row: &Row<'_>, paint: Paint) -> String {
        let words = self.words();
        let (mark, how) = match row.said {
            Said::Nothing => ("[ ]", None),
            Said::Never => ("[-]", Some(words.never.to_owned())),
            Said::Granted(Terms { once: true, .. }) => ("[x]", Some(words.once.to_owned())),
            Said::Granted(Terms { expires_in_ms: Some(ms), .. }) => ("[x]", Some((words.for_time)(&age_ms(ms)))),
            Said::Granted(_) => ("[x]", None),
        };
        // The id stands beside the words in any case: words are the agent's own, ids are what is granted.
        let text = scope_text(row.scope, self.language);
        let label = text.as_ref().map_or_else(String::new, |text| format!("{}  ", line(&text.label, TEXT_CHARS_MAX)));
        let known = row.is_new.then_some(words.is_new).or(words.state(row.state));
        let notes: Vec<_> = known.map(str::to_owned).into_iter().chain(how).collect();
        let notes = if notes.is_empty() { String::new() } else { format!("  ({})", notes.join(", ")) };
        let mut out = format!("  {mark} {number}  {label}{}{notes}\n", paint.dim(&row.scope.id));
        if let Some(text) = text.filter(|text| !text.description.is_empty()) {
            out += &format!("         {}\n", line(&text.description, TEXT_CHARS_MAX));
        }
        let tools: Vec<_> = self.manifest.tools.iter().filter(|tool| tool.permission_scope == row.scope.id).collect();
        if !tools.is_empty() {
            let names: Vec<_> = tools.iter().map(|tool| tool.name.as_str()).collect();
            out += &format!("         {} {}\n", words.tools, line(&names.join(", "), TEXT_CHARS_MAX));
        }
        if tools.iter().any(|tool| tool.required) {
            out += &format!("         {}\n", words.needed);
        }
        out
    }

    /// What was chosen, as the server takes it, for the manifest that was shown.
    pub fn answers(&self, manifest_hash: &str) -> Answers {
        let (mut granted, mut denied_scopes, mut terms) = (vec![], vec![], BTreeMap::new());
        for row in &self.rows {
            let id = row.scope.id.clone();
            match row.said {
                Said::Nothing => continue,
                Said::Never => denied_scopes.push(id),
                Said::Granted(limits) => {
                    if limits != Terms::default() {
                        terms.insert(id.clone(), limits);
                    }
                    granted.push(id);
                }
            }
        }
        let (manifest_hash, language) = (Some(manifest_hash.to_owned()), self.language);
        Answers { granted_scopes: Some(granted), denied_scopes, terms, manifest_hash, language }
    }

    pub fn question(&self) -> String {
        let granted = self.rows.iter().filter(|row| matches!(row.said, Said::Granted(_))).count();
        (self.words().confirm)(granted, self.rows.len(), &line(self.agent, 200))
    }
}

/// The limits of a grant that is in force, for as long as is left of it.
fn limits(known: &ScopeStanding, now: Timestamp) -> Terms {
    let left = |end: Timestamp| (end.duration_since(now).as_millis() as i64).max(1);
    Terms { once: known.once, expires_in_ms: known.expires_at.map(left) }
}

enum Typed {
    Shown,
    Unknown,
    Done,
    Left,
}

fn icon(sensitivity: Sensitivity) -> &'static str {
    match sensitivity {
        Sensitivity::High => "▲",
        Sensitivity::Medium => "●",
        Sensitivity::Low => "○",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn manifest() -> Manifest {
        serde_json::from_value(json!({"schema_version": "1.0", "agent_version": "1.0.0",
            "tools": [{"name": "where_am_i", "description_i18n_key": "a.b", "input_schema": {"type": "object"},
                "permission_scope": "location:read", "required": true}],
            "permission_scopes": [
                {"id": "notes:write", "label_i18n_key": "a.b", "label_fallback": "Write\u{1b}[2J notes",
                    "description_fallback": "Change your notes.", "sensitivity": "low"},
                {"id": "location:read", "label_i18n_key": "a.b", "sensitivity": "high"}]}))
        .unwrap()
    }

    #[test]
    fn the_most_sensitive_comes_first_and_nothing_is_chosen() {
        let manifest = manifest();
        let choice = Choice::new("notes", &manifest, None, Language::En, Timestamp::UNIX_EPOCH);
        assert_eq!(
            choice.render(Paint::PLAIN),
            "\nnotes asks for 2 scopes. Nothing is granted unless you say so.\n\n▲ High: asks you every time\n  \
             [ ] 1  Read your location  location:read\n         Learn where this device is.\n         used by where_am_i\n         \
             the agent says it is of no use without it\n\n○ Low: used without asking you\n  \
             [ ] 2  Write[2J notes  notes:write\n         Change your notes.\n"
        );
        assert_eq!(choice.answers("h").granted_scopes, Some(vec![]));
    }

    #[test]
    fn what_is_typed_is_what_is_granted() {
        let manifest = manifest();
        let mut choice = Choice::new("notes", &manifest, None, Language::Zh, Timestamp::UNIX_EPOCH);
        for typed in ["1 once", "2"] {
            assert!(matches!(choice.take(typed), Typed::Shown), "{typed}");
        }
        for typed in ["3", "0", "1 twice", "x", "1 2 x", "-1"] {
            assert!(matches!(choice.take(typed), Typed::Unknown), "{typed}");
        }
        let answers = choice.answers("h");
        assert_eq!(answers.granted(), ["location:read", "notes:write"]);
        assert!(answers.terms["location:read"].once && answers.terms.len() == 1);
        assert_eq!((answers.language, answers.manifest_hash.as_deref()), (Language::Zh, Some("h")));
        choice.take("2 never");
        choice.take("1");
        let answers = choice.answers("h");
        assert_eq!((answers.granted().len(), &answers.denied_scopes), (0, &vec!["notes:write".to_owned()]));
        choice.take("1 2h");
        assert_eq!(choice.answers("h").terms["location:read"].expires_in_ms, Some(7_200_000));
        assert!(choice.render(Paint::PLAIN).contains("[x] 1  读取位置  location:read  (限时 2h)"));
        assert!(choice.render(Paint::PLAIN).contains("(始终拒绝)"));
    }
}
