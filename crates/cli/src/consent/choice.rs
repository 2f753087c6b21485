//! The consent screen: the scopes an agent asks for, the most sensitive first, and a person who chooses among them. Nothing
//! is chosen beforehand but what is in force already.

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

use super::words::{Words, words};
use crate::{
    errors,
    output::{self, line, wrapped},
    paint::Paint,
    times::{age_ms, parse_ms},
};

/// Where the words about a scope begin, and how wide the screen is where nobody can tell.
const INDENT: usize = 9;
const WIDTH_DEFAULT: usize = 100;

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
    /// The limits of the grant that is there, in force or paused.
    had: Option<Terms>,
    said: Said,
}

impl Row<'_> {
    /// A grant that says nothing about its limits keeps those that it has.
    fn granted(&self) -> Said {
        Said::Granted(self.had.unwrap_or_default())
    }
}

pub struct Choice<'a> {
    agent: &'a Agent,
    manifest: &'a Manifest,
    language: Language,
    rows: Vec<Row<'a>>,
}

impl<'a> Choice<'a> {
    /// With a relation, what is in force in it is chosen beforehand.
    pub fn new(
        agent: &'a Agent,
        manifest: &'a Manifest,
        relation: Option<&RelationView>,
        language: Language,
        now: Timestamp,
    ) -> Self {
        let row = |scope: &'a Scope| {
            let standing = relation.and_then(|relation| relation.scopes.iter().find(|known| known.id == scope.id));
            let state = standing.map_or(ScopeState::Unanswered, |known| known.state);
            let asked = relation.is_some_and(|relation| relation.scopes_requiring_reauth.contains(&scope.id));
            let is_held = matches!(state, ScopeState::Granted | ScopeState::Suspended);
            let had = standing.filter(|_| is_held).map(|known| limits(known, now));
            let said = match state {
                ScopeState::Granted => Said::Granted(had.unwrap_or_default()),
                ScopeState::Denied => Said::Never,
                _ => Said::Nothing,
            };
            Row { scope, state, is_new: asked && state == ScopeState::Unanswered, had, said }
        };
        let mut rows: Vec<_> = manifest.permission_scopes.iter().map(row).collect();
        // By the level that an answer agrees to, which may be lower than the one still in force.
        rows.sort_by_key(|row| std::cmp::Reverse(row.scope.sensitivity));
        Self { agent, manifest, language, rows }
    }

    fn words(&self) -> &'static Words {
        words(self.language)
    }

    /// `None`: it is granted, and nothing is said about its limits.
    pub fn say(&mut self, scope: &str, said: Option<Said>) -> Result<(), Failure> {
        let known = self.rows.iter_mut().find(|row| row.scope.id == scope);
        let known = known.ok_or_else(|| {
            let ids: Vec<_> = self.manifest.permission_scopes.iter().map(|scope| scope.id.as_str()).collect();
            errors::usage(format!("the agent asks for no scope {scope:?}"), format!("it asks for {}", ids.join(", ")))
        })?;
        known.said = said.unwrap_or_else(|| known.granted());
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
                Typed::Help => output::words(&format!("{}\n", self.words().help)),
                Typed::TooLong => {
                    output::words(&format!("{}\n", (self.words().too_long)(&age_ms(GRANT_LIFE_MS_MAX))));
                }
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
            ["?"] => return Typed::Help,
            ["all"] => self.rows.iter_mut().for_each(|row| row.said = row.granted()),
            ["none"] => self.clear(),
            [number, how] if self.row(number).is_some() && how.parse::<usize>().is_err() => {
                let said = match *how {
                    "once" => Said::Granted(Terms { once: true, expires_in_ms: None }),
                    "always" => Said::Granted(Terms::default()),
                    "never" => Said::Never,
                    time => match parse_ms(time) {
                        Ok(ms) if ms > GRANT_LIFE_MS_MAX => return Typed::TooLong,
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
                    row.said = if granted { Said::Nothing } else { row.granted() };
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
        let who = (words.who)(&self.agent.id.to_string(), &line(&self.agent.owner_id, 200));
        let mut out = format!("\n{} {asks}\n{}\n", paint.bold(&line(&self.agent.name, 200)), paint.dim(&who));
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
        let label = text.as_ref().map_or_else(String::new, |text| format!("{}  ", line(&text.label, usize::MAX)));
        let notes = match (words.state(row.state), how) {
            // It stays as it was.
            (Some(before), _) if matches!((row.state, row.said), (ScopeState::Denied, Said::Never)) => {
                Some(before.to_owned())
            }
            (Some(before), Some(now)) => Some((words.now)(before, &now)),
            (Some(before), None) if mark == "[x]" => Some((words.now)(before, words.without_limits)),
            (Some(before), None) => Some(before.to_owned()),
            (None, how) => {
                let known: Vec<_> = row.is_new.then(|| words.is_new.to_owned()).into_iter().chain(how).collect();
                (!known.is_empty()).then(|| known.join(", "))
            }
        };
        let notes = notes.map_or_else(String::new, |notes| format!("  ({notes})"));
        let mut out = format!("  {mark} {number}  {label}{}{notes}\n", paint.dim(&row.scope.id));
        if let Some(text) = text.filter(|text| !text.description.is_empty()) {
            // All of it: whoever consents has read what they consent to.
            out += &told(&text.description);
        }
        let tools: Vec<_> = self.manifest.tools.iter().filter(|tool| tool.permission_scope == row.scope.id).collect();
        if !tools.is_empty() {
            let names: Vec<_> = tools.iter().map(|tool| tool.name.as_str()).collect();
            out += &told(&format!("{} {}", words.tools, names.join(", ")));
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
                    // What is not said stays as it is; what was shown otherwise is said, even if it is "without limits".
                    if limits != row.had.unwrap_or_default() {
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
        let agent = line(&self.agent.name, 200);
        let is_lost = |row: &&Row<'_>| row.had.is_some() && !matches!(row.said, Said::Granted(_));
        let lost: Vec<_> = self.rows.iter().filter(is_lost).map(|row| row.scope.id.as_str()).collect();
        match lost.as_slice() {
            [] => (self.words().confirm)(granted, self.rows.len(), &agent),
            lost => (self.words().confirm_loss)(granted, self.rows.len(), &agent, &lost.join(", ")),
        }
    }
}

/// Words about a scope, on as many lines as they need.
fn told(text: &str) -> String {
    let width = output::width().unwrap_or(WIDTH_DEFAULT).saturating_sub(INDENT);
    let lines = wrapped(&line(text, usize::MAX), width);
    lines.iter().map(|line| format!("{:INDENT$}{line}\n", "")).collect()
}

/// The limits of a grant that is there, for as long as is left of it.
fn limits(known: &ScopeStanding, now: Timestamp) -> Terms {
    let left = |end: Timestamp| (end.duration_since(now).as_millis() as i64).max(1);
    Terms { once: known.once, expires_in_ms: known.expires_at.map(left) }
}

enum Typed {
    Shown,
    Help,
    TooLong,
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
    fn the_most_sensitive_comes_first_and_nothing_is_chosen() {
        let manifest = manifest();
        let agent = agent();
        let choice = Choice::new(&agent, &manifest, None, Language::En, Timestamp::UNIX_EPOCH);
        assert_eq!(
            choice.render(Paint::PLAIN),
            "\nnotes asks for 2 scopes. Nothing is granted unless you say so.\n\
             agt_00000000000000000000000000000007, owned by usr_1\n\n▲ High: asks you every time\n  \
             [ ] 1  Read your location  location:read\n         Learn where this device is.\n         used by where_am_i\n         \
             the agent says it is of no use without it\n\n○ Low: used without asking you\n  \
             [ ] 2  Write[2J notes  notes:write\n         Change your notes.\n"
        );
        assert_eq!(choice.answers("h").granted_scopes, Some(vec![]));
    }

    #[test]
    fn what_is_typed_is_what_is_granted() {
        let manifest = manifest();
        let agent = agent();
        let mut choice = Choice::new(&agent, &manifest, None, Language::Zh, Timestamp::UNIX_EPOCH);
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

    #[test]
    fn a_long_text_is_shown_to_its_end() {
        let (agent, mut manifest) = (agent(), manifest());
        let words: Vec<_> = (0..300).map(|number| format!("word{number}")).collect();
        manifest.permission_scopes[0].description_fallback = Some(words.join(" "));
        let screen = Choice::new(&agent, &manifest, None, Language::En, Timestamp::UNIX_EPOCH).render(Paint::PLAIN);
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
        let mut choice = Choice::new(&agent, &manifest, Some(&relation), Language::En, Timestamp::UNIX_EPOCH);
        choice.take("all");
        assert_eq!(
            choice.render(Paint::PLAIN).matches("(once)").count()
                + choice.render(Paint::PLAIN).matches("; now: once)").count(),
            2
        );
        assert!(choice.answers("h").terms.is_empty(), "the server keeps them");
        choice.take("1 always");
        assert_eq!(choice.answers("h").terms, BTreeMap::from([("location:read".to_owned(), Terms::default())]));
        assert_eq!(choice.question(), "Grant 2 of 2 scopes to notes?");
        // What is taken back is named, whether it was in force or paused.
        choice.take("none");
        assert_eq!(choice.question(), "Grant 0 of 2 scopes to notes, and take back location:read, notes:write?");
    }

    #[test]
    fn what_was_and_what_is_chosen_are_told_apart() {
        let (agent, manifest) = (agent(), manifest());
        for (language, before, once, granted) in [
            (Language::En, "(refused before)", "(refused before; now: once)", "(refused before; now: granted)"),
            (Language::Zh, "(此前已拒绝)", "(此前已拒绝；现在：仅一次)", "(此前已拒绝；现在：授予)"),
        ] {
            let mut choice = Choice::new(&agent, &manifest, None, language, Timestamp::UNIX_EPOCH);
            (choice.rows[0].state, choice.rows[0].said) = (ScopeState::Denied, Said::Never);
            for (typed, shown) in [("2", before), ("1 once", once), ("1 always", granted)] {
                choice.take(typed);
                assert!(choice.render(Paint::PLAIN).contains(shown), "{shown}: {}", choice.render(Paint::PLAIN));
            }
        }
    }

    #[test]
    fn what_is_too_long_is_refused_and_loses_no_choice() {
        let (agent, manifest) = (agent(), manifest());
        let mut choice = Choice::new(&agent, &manifest, None, Language::En, Timestamp::UNIX_EPOCH);
        choice.take("1 once");
        assert!(matches!(choice.take("1 99999d"), Typed::TooLong));
        assert!(matches!(choice.take("?"), Typed::Help));
        assert!(choice.answers("h").terms["location:read"].once);
        assert!(matches!(choice.take("1 3660d"), Typed::Shown));
    }
}
