//! The consent screen: lists the scopes that an agent requests, the most sensitive first, and lets a person choose. Only
//! scopes that are already in force are preselected.

use std::{
    collections::BTreeMap,
    io::{BufRead, IsTerminal},
};

use ostler_protocol::{
    Failure, Timestamp,
    trust::{
        agents::Agent,
        i18n::{Language, scope_text},
        manifest::{Manifest, Scope, Sensitivity},
        relations::{Answers, GRANT_LIFE_MS_MAX, RelationView, ScopeStanding, ScopeState, Terms},
    },
};

use super::texts::{Texts, texts};
use crate::{
    errors,
    terminal::{
        output::{self, line, wrapped},
        paint::Paint,
        times::{age_ms, parse_ms},
    },
};

/// The column at which descriptions of scopes begin, and the default width of the screen.
const INDENT: usize = 9;
const WIDTH_DEFAULT: usize = 100;

/// The choice for one scope.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) enum ScopeChoice {
    #[default]
    Nothing,
    Granted(Terms),
    Never,
}

struct Row<'a> {
    scope: &'a Scope,
    state: ScopeState,
    is_new: bool,
    /// The limits of the existing grant, in force or suspended.
    existing: Option<Terms>,
    choice: ScopeChoice,
}

impl Row<'_> {
    /// Granted with its existing limits.
    fn granted(&self) -> ScopeChoice {
        ScopeChoice::Granted(self.existing.unwrap_or_default())
    }
}

pub(crate) struct ConsentScreen<'a> {
    agent: &'a Agent,
    manifest: &'a Manifest,
    language: Language,
    rows: Vec<Row<'a>>,
}

impl<'a> ConsentScreen<'a> {
    /// With a relation, the scopes in force are preselected.
    pub(crate) fn new(
        agent: &'a Agent,
        manifest: &'a Manifest,
        relation: Option<&RelationView>,
        language: Language,
        now: Timestamp,
    ) -> Self {
        let row = |scope: &'a Scope| {
            let current = relation.and_then(|relation| relation.scopes.iter().find(|current| current.id == scope.id));
            let state = current.map_or(ScopeState::Unanswered, |current| current.state);
            let needs_answer = relation.is_some_and(|relation| relation.scopes_requiring_reauth.contains(&scope.id));
            let is_held = matches!(state, ScopeState::Granted | ScopeState::Suspended);
            let existing = current.filter(|_| is_held).map(|current| limits(current, now));
            let choice = match state {
                ScopeState::Granted => ScopeChoice::Granted(existing.unwrap_or_default()),
                ScopeState::Denied => ScopeChoice::Never,
                _ => ScopeChoice::Nothing,
            };
            Row { scope, state, is_new: needs_answer && state == ScopeState::Unanswered, existing, choice }
        };
        let mut rows: Vec<_> = manifest.permission_scopes.iter().map(row).collect();
        // Sorted by the level in the new manifest, which may be lower than the one still in force.
        rows.sort_by_key(|row| std::cmp::Reverse(row.scope.sensitivity));
        Self { agent, manifest, language, rows }
    }

    /// Marks scopes that were refused in an earlier relation.
    pub(crate) fn mark_refused(&mut self, scopes: &[String]) {
        for row in self.rows.iter_mut().filter(|row| scopes.contains(&row.scope.id)) {
            (row.state, row.choice) = (ScopeState::Denied, ScopeChoice::Never);
        }
    }

    fn texts(&self) -> &'static Texts {
        texts(self.language)
    }

    /// Sets the choice for a scope. `None` grants it with its existing limits.
    pub(crate) fn choose(&mut self, scope: &str, choice: Option<ScopeChoice>) -> Result<(), Failure> {
        let row = self.rows.iter_mut().find(|row| row.scope.id == scope);
        let row = row.ok_or_else(|| {
            let ids: Vec<_> = self.manifest.permission_scopes.iter().map(|scope| scope.id.as_str()).collect();
            errors::usage(
                format!("the agent does not request the scope {scope:?}"),
                format!("it requests {}", ids.join(", ")),
            )
        })?;
        row.choice = choice.unwrap_or_else(|| row.granted());
        Ok(())
    }

    pub(crate) fn clear(&mut self) {
        self.rows.iter_mut().for_each(|row| row.choice = ScopeChoice::Nothing);
    }

    /// Lets a person choose. `None` if they quit without changes.
    pub(crate) fn ask(&mut self) -> Result<Option<()>, Failure> {
        if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            return Err(errors::usage("there is no terminal to choose at", self.flags_hint()));
        }
        let mut lines = std::io::stdin().lock().lines();
        output::message(&self.render(Paint::stderr()));
        let help = (self.texts().help)(self.rows.len());
        output::message(&format!("\n{help}\n"));
        loop {
            output::message("> ");
            let Some(typed) = lines.next().transpose().map_err(Failure::internal)? else { return Ok(None) };
            match self.take(&typed) {
                InputOutcome::Changed => output::message(&self.render(Paint::stderr())),
                InputOutcome::Help => output::message(&format!("{help}\n")),
                InputOutcome::TooLong => {
                    output::message(&format!("{}\n", (self.texts().too_long)(&age_ms(GRANT_LIFE_MS_MAX))));
                }
                InputOutcome::Unknown => {
                    output::message(&format!("{}\n", (self.texts().not_understood)(&line(&typed, 80))))
                }
                InputOutcome::Done => return Ok(Some(())),
                InputOutcome::Quit => return Ok(None),
            }
        }
    }

    /// The flags that answer without a screen. `--yes` alone only confirms what other flags choose.
    fn flags_hint(&self) -> String {
        let ids: Vec<_> = self.manifest.permission_scopes.iter().map(|scope| line(&scope.id, 64)).collect();
        let Some(first) = ids.first() else { return "pass `--none --yes`".to_owned() };
        format!(
            "name what to grant, as in `--grant {first} --yes`, or grant nothing with `--none --yes`; \
             the agent requests {}",
            line(&ids.join(", "), 400)
        )
    }

    fn take(&mut self, typed: &str) -> InputOutcome {
        let parts: Vec<_> = typed.split_whitespace().collect();
        match parts.as_slice() {
            [] => return InputOutcome::Done,
            ["q"] => return InputOutcome::Quit,
            ["?"] => return InputOutcome::Help,
            ["all"] => self.rows.iter_mut().for_each(|row| row.choice = row.granted()),
            ["none"] => self.clear(),
            [number, how] if self.row(number).is_some() && how.parse::<usize>().is_err() => {
                let choice = match *how {
                    "once" => ScopeChoice::Granted(Terms { once: true, expires_in_ms: None }),
                    "always" => ScopeChoice::Granted(Terms::default()),
                    "never" => ScopeChoice::Never,
                    time => match parse_ms(time) {
                        Ok(ms) if ms > GRANT_LIFE_MS_MAX => return InputOutcome::TooLong,
                        Ok(ms) => ScopeChoice::Granted(Terms { once: false, expires_in_ms: Some(ms) }),
                        Err(_) => return InputOutcome::Unknown,
                    },
                };
                if let Some(row) = self.row(number) {
                    row.choice = choice;
                }
            }
            numbers if numbers.iter().all(|number| self.row(number).is_some()) => {
                for number in numbers {
                    if let Some(row) = self.row(number) {
                        let granted = matches!(row.choice, ScopeChoice::Granted(_));
                        row.choice = if granted { ScopeChoice::Nothing } else { row.granted() };
                    }
                }
            }
            _ => return InputOutcome::Unknown,
        }
        InputOutcome::Changed
    }

    fn row(&mut self, number: &str) -> Option<&mut Row<'a>> {
        let number: usize = number.parse().ok()?;
        self.rows.get_mut(number.checked_sub(1)?)
    }

    pub(crate) fn render(&self, paint: Paint) -> String {
        let texts = self.texts();
        let asks = match self.rows.len() {
            0 => texts.asks_for_nothing.to_owned(),
            count => (texts.asks_for)(count),
        };
        let who = (texts.who)(&self.agent.id.to_string(), &line(&self.agent.owner_id, 200));
        let mut out = format!("\n{} {asks}\n{}\n", paint.bold(&line(&self.agent.name, 200)), paint.dim(&who));
        let mut level = None;
        for (index, row) in self.rows.iter().enumerate() {
            let sensitivity = row.scope.sensitivity;
            if level.replace(sensitivity) != Some(sensitivity) {
                let head = format!("{} {}", icon(sensitivity), texts.level(sensitivity));
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
        let texts = self.texts();
        let (mark, how) = match row.choice {
            ScopeChoice::Nothing => ("[ ]", None),
            ScopeChoice::Never => ("[-]", Some(texts.never.to_owned())),
            ScopeChoice::Granted(Terms { once: true, .. }) => ("[x]", Some(texts.once.to_owned())),
            ScopeChoice::Granted(Terms { expires_in_ms: Some(ms), .. }) => ("[x]", Some((texts.for_time)(&age_ms(ms)))),
            ScopeChoice::Granted(_) => ("[x]", None),
        };
        // The id is always shown beside the label: the label is the agent's own text, the id is what is granted.
        let text = scope_text(row.scope, self.language);
        let label = text.as_ref().map_or_else(String::new, |text| format!("{}  ", line(&text.label, usize::MAX)));
        let notes = match (texts.state(row.state), how) {
            // Unchanged.
            (Some(before), _) if matches!((row.state, row.choice), (ScopeState::Denied, ScopeChoice::Never)) => {
                Some(before.to_owned())
            }
            (Some(before), Some(now)) => Some((texts.now)(before, &now)),
            (Some(before), None) if mark == "[x]" => Some((texts.now)(before, texts.without_limits)),
            (Some(before), None) => Some(before.to_owned()),
            (None, how) => {
                let notes: Vec<_> = row.is_new.then(|| texts.is_new.to_owned()).into_iter().chain(how).collect();
                (!notes.is_empty()).then(|| notes.join(", "))
            }
        };
        let notes = notes.map_or_else(String::new, |notes| format!("  ({notes})"));
        let mut out = format!("  {mark} {number}  {label}{}{notes}\n", paint.dim(&row.scope.id));
        if let Some(text) = text.filter(|text| !text.description.is_empty()) {
            // The whole text: a person must be able to read what they consent to.
            out += &paragraph(&text.description);
        }
        let tools: Vec<_> = self.manifest.tools.iter().filter(|tool| tool.permission_scope == row.scope.id).collect();
        if !tools.is_empty() {
            let names: Vec<_> = tools.iter().map(|tool| tool.name.as_str()).collect();
            out += &paragraph(&format!("{} {}", texts.tools, names.join(", ")));
        }
        if tools.iter().any(|tool| tool.required) {
            out += &format!("         {}\n", texts.needed);
        }
        out
    }

    /// The choices as a request, for the displayed manifest.
    pub(crate) fn answers(&self, manifest_hash: &str) -> Answers {
        let (mut granted, mut denied_scopes, mut terms) = (vec![], vec![], BTreeMap::new());
        for row in &self.rows {
            let id = row.scope.id.clone();
            match row.choice {
                ScopeChoice::Nothing => continue,
                ScopeChoice::Never => denied_scopes.push(id),
                ScopeChoice::Granted(limits) => {
                    // The server keeps limits that are not sent; changed limits are sent, even "without limits".
                    if limits != row.existing.unwrap_or_default() {
                        terms.insert(id.clone(), limits);
                    }
                    granted.push(id);
                }
            }
        }
        let (manifest_hash, language) = (Some(manifest_hash.to_owned()), self.language);
        Answers { granted_scopes: Some(granted), denied_scopes, terms, manifest_hash, language }
    }

    pub(crate) fn question(&self) -> String {
        let granted = self.rows.iter().filter(|row| matches!(row.choice, ScopeChoice::Granted(_))).count();
        let agent = line(&self.agent.name, 200);
        let is_lost = |row: &&Row<'_>| row.existing.is_some() && !matches!(row.choice, ScopeChoice::Granted(_));
        let lost: Vec<_> = self.rows.iter().filter(is_lost).map(|row| row.scope.id.as_str()).collect();
        match lost.as_slice() {
            [] => (self.texts().confirm)(granted, self.rows.len(), &agent),
            lost => (self.texts().confirm_loss)(granted, self.rows.len(), &agent, &lost.join(", ")),
        }
    }
}

/// An indented and wrapped text about a scope.
fn paragraph(text: &str) -> String {
    let width = output::width().unwrap_or(WIDTH_DEFAULT).saturating_sub(INDENT);
    let lines = wrapped(&line(text, usize::MAX), width);
    lines.iter().map(|line| format!("{:INDENT$}{line}\n", "")).collect()
}

/// The limits of an existing grant, with its remaining time.
fn limits(current: &ScopeStanding, now: Timestamp) -> Terms {
    let left = |end: Timestamp| (end.duration_since(now).as_millis() as i64).max(1);
    Terms { once: current.once, expires_in_ms: current.expires_at.map(left) }
}

enum InputOutcome {
    Changed,
    Help,
    TooLong,
    Unknown,
    Done,
    Quit,
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

    fn agent() -> Agent {
        serde_json::from_value(json!({"id": "agt_00000000000000000000000000000007", "name": "notes",
            "owner_id": "usr_1", "capability_manifest_version": 1, "capability_manifest_hash": "h",
            "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z"}))
        .unwrap()
    }

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
    fn the_most_sensitive_scope_comes_first_and_nothing_is_preselected() {
        let manifest = manifest();
        let agent = agent();
        let screen = ConsentScreen::new(&agent, &manifest, None, Language::En, Timestamp::UNIX_EPOCH);
        assert_eq!(
            screen.render(Paint::PLAIN),
            "\nnotes asks for 2 scopes. Nothing is granted unless you say so.\n\
             agt_00000000000000000000000000000007, owned by usr_1\n\n▲ High: asks you every time\n  \
             [ ] 1  Read your location  location:read\n         Learn where this device is.\n         used by where_am_i\n         \
             the agent states that it does not work without this\n\n○ Low: used without asking you\n  \
             [ ] 2  Write[2J notes  notes:write\n         Change your notes.\n"
        );
        assert_eq!(screen.answers("h").granted_scopes, Some(vec![]));
    }

    #[test]
    fn the_typed_choices_are_granted() {
        let manifest = manifest();
        let agent = agent();
        let mut screen = ConsentScreen::new(&agent, &manifest, None, Language::Zh, Timestamp::UNIX_EPOCH);
        for typed in ["1 once", "2"] {
            assert!(matches!(screen.take(typed), InputOutcome::Changed), "{typed}");
        }
        for typed in ["3", "0", "1 twice", "x", "1 2 x", "-1"] {
            assert!(matches!(screen.take(typed), InputOutcome::Unknown), "{typed}");
        }
        let answers = screen.answers("h");
        assert_eq!(answers.granted(), ["location:read", "notes:write"]);
        assert!(answers.terms["location:read"].once && answers.terms.len() == 1);
        assert_eq!((answers.language, answers.manifest_hash.as_deref()), (Language::Zh, Some("h")));
        screen.take("2 never");
        screen.take("1");
        let answers = screen.answers("h");
        assert_eq!((answers.granted().len(), &answers.denied_scopes), (0, &vec!["notes:write".to_owned()]));
        screen.take("1 2h");
        assert_eq!(screen.answers("h").terms["location:read"].expires_in_ms, Some(7_200_000));
        assert!(screen.render(Paint::PLAIN).contains("[x] 1  读取位置  location:read  (限时 2h)"));
        assert!(screen.render(Paint::PLAIN).contains("(始终拒绝)"));
    }

    #[test]
    fn a_long_text_is_displayed_whole() {
        let (agent, mut manifest) = (agent(), manifest());
        let words: Vec<_> = (0..300).map(|number| format!("word{number}")).collect();
        manifest.permission_scopes[0].description_fallback = Some(words.join(" "));
        let screen =
            ConsentScreen::new(&agent, &manifest, None, Language::En, Timestamp::UNIX_EPOCH).render(Paint::PLAIN);
        assert!(words.iter().all(|word| screen.contains(word)), "{screen}");
        assert!(screen.lines().all(|line| line.len() <= WIDTH_DEFAULT), "{screen}");
    }

    #[test]
    fn limits_stay_unless_they_are_lifted() {
        let (agent, manifest) = (agent(), manifest());
        let standing = |id: &str, state: &str, once: bool| {
            json!({"id": id, "state": state, "sensitivity": "low",
            "once": once, "expires_at": null})
        };
        let relation: RelationView = serde_json::from_value(json!({"id": "rel_00000000000000000000000000000007",
            "agent_id": agent.id, "agent_name": "notes", "agent_owner_id": "usr_1", "user_id": "local",
            "granted_scopes": ["location:read"], "suspended_scopes": ["notes:write"], "denied_scopes": [],
            "scopes": [standing("location:read", "granted", true), standing("notes:write", "suspended", true)],
            "consented_manifest_version": 1, "consented_manifest_hash": "h", "manifest_version": 1,
            "manifest_hash": "h", "reauth_required": true, "scopes_requiring_reauth": [],
            "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z", "revoked_at": null}))
        .unwrap();
        let mut screen = ConsentScreen::new(&agent, &manifest, Some(&relation), Language::En, Timestamp::UNIX_EPOCH);
        screen.take("all");
        assert_eq!(
            screen.render(Paint::PLAIN).matches("(once)").count()
                + screen.render(Paint::PLAIN).matches("; now: once)").count(),
            2
        );
        assert!(screen.answers("h").terms.is_empty(), "the server keeps them");
        screen.take("1 always");
        assert_eq!(screen.answers("h").terms, BTreeMap::from([("location:read".to_owned(), Terms::default())]));
        assert_eq!(screen.question(), "Grant 2 of 2 scopes to notes?");
        // Revoked scopes are named, whether in force or suspended.
        screen.take("none");
        assert_eq!(screen.question(), "Grant 0 of 2 scopes to notes, and take back location:read, notes:write?");
    }

    #[test]
    fn the_former_and_the_new_choice_are_both_displayed() {
        let (agent, manifest) = (agent(), manifest());
        for (language, before, once, granted) in [
            (Language::En, "(refused before)", "(refused before; now: once)", "(refused before; now: granted)"),
            (Language::Zh, "(此前已拒绝)", "(此前已拒绝；现在：仅一次)", "(此前已拒绝；现在：授予)"),
        ] {
            let mut screen = ConsentScreen::new(&agent, &manifest, None, language, Timestamp::UNIX_EPOCH);
            (screen.rows[0].state, screen.rows[0].choice) = (ScopeState::Denied, ScopeChoice::Never);
            for (typed, shown) in [("2", before), ("1 once", once), ("1 always", granted)] {
                screen.take(typed);
                assert!(screen.render(Paint::PLAIN).contains(shown), "{shown}: {}", screen.render(Paint::PLAIN));
            }
        }
    }

    #[test]
    fn a_rejected_duration_does_not_lose_choices() {
        let (agent, manifest) = (agent(), manifest());
        let mut screen = ConsentScreen::new(&agent, &manifest, None, Language::En, Timestamp::UNIX_EPOCH);
        screen.take("1 once");
        assert!(matches!(screen.take("1 99999d"), InputOutcome::TooLong));
        assert!(matches!(screen.take("?"), InputOutcome::Help));
        assert!(screen.answers("h").terms["location:read"].once);
        assert!(matches!(screen.take("1 3660d"), InputOutcome::Changed));
    }
}
