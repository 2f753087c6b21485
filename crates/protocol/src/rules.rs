//! One closed table of the rules that failures name in `details.rule`: the name on the wire, the usual kind, the meaning, a
//! hint for people, and the codes by which a dialect reports it. The rows are in `rules/`, by the part that reports them.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::FailureKind;

#[macro_use]
mod kernel;
#[macro_use]
mod engine;
#[macro_use]
mod run_input;
#[macro_use]
mod mesh;
#[macro_use]
mod trust;
#[macro_use]
mod daemon;
#[macro_use]
mod mcp_server;
#[macro_use]
mod client;
#[macro_use]
mod tools;

/// Makes the enum and the table. Each file of rows is a macro that adds its rows and calls the next one of the list in
/// brackets, so that the rows of all files reach this macro in one piece.
macro_rules! rules {
    ([] $($rule:ident $name:literal $kind:ident $meaning:literal $(, $column:ident: $value:expr)*;)*) => {
        /// The exact rule that was broken.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Rule {
            $(#[doc = $meaning] $rule,)*
        }

        impl Rule {
            /// The one table.
            pub const ALL: &'static [RuleRow] = &[
                $(RuleRow {
                    $($column: $value,)*
                    ..RuleRow::new(Rule::$rule, $name, FailureKind::$kind, $meaning)
                },)*
            ];
        }
    };
}

#[derive(Debug)]
pub struct RuleRow {
    pub rule: Rule,
    /// The name on every wire.
    pub name: &'static str,
    /// The kind of its failures, unless a failure is given another one.
    pub kind: FailureKind,
    pub meaning: &'static str,
    /// What a person at a terminal can do about it. `None` if the message or the hint of the kind is enough.
    pub hint: Option<&'static str>,
    /// Hints for failures of this rule with another kind.
    pub hints_by_kind: &'static [(FailureKind, &'static str)],
    /// The HTTP status, where it depends on the rule and not on the kind.
    pub status: Option<u16>,
    /// The code of run input, where it depends on the rule and not on the kind.
    pub run_input_code: Option<&'static str>,
    /// It is about interrupts and their answers: a stream of run input reports it by an event, as AG-UI requires.
    pub is_of_interrupts: bool,
    /// The mesh's JSON-RPC code, where it depends on the rule and not on the kind: by it clients decide whether to
    /// reconnect.
    pub rpc_code: Option<i64>,
    /// The store could not carry out a request, and may do so once it works again.
    pub is_store_fault: bool,
}

impl RuleRow {
    const fn new(rule: Rule, name: &'static str, kind: FailureKind, meaning: &'static str) -> Self {
        Self {
            rule,
            name,
            kind,
            meaning,
            hint: None,
            hints_by_kind: &[],
            status: None,
            run_input_code: None,
            is_of_interrupts: false,
            rpc_code: None,
            is_store_fault: false,
        }
    }
}

kernel_rules! { [engine_rules run_input_rules mesh_rules trust_rules daemon_rules mcp_server_rules client_rules tools_rules rules] }

impl Rule {
    pub fn row(self) -> &'static RuleRow {
        &Self::ALL[self as usize]
    }

    pub fn as_str(self) -> &'static str {
        self.row().name
    }

    /// The rule of this name. `None` if there is none: a newer server may have rules that this table lacks.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.iter().find(|row| row.name == text).map(|row| row.rule)
    }

    /// Reads a stored or received rule. `None` for a rule that this table lacks: a newer server may have written it.
    pub fn deserialize_known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Self>, D::Error> {
        Ok(Option::<String>::deserialize(deserializer)?.as_deref().and_then(Self::parse))
    }

    /// What a person at a terminal can do about a failure of this rule and kind.
    pub fn hint(self, kind: FailureKind) -> Option<&'static str> {
        let row = self.row();
        let by_kind = row.hints_by_kind.iter().find(|(other, _)| *other == kind);
        by_kind.map(|(_, hint)| *hint).or(row.hint)
    }

    /// The mesh's JSON-RPC code: the rule's own, else that of its kind.
    pub fn rpc_code(self) -> i64 {
        let row = self.row();
        row.rpc_code.unwrap_or(row.kind.row().rpc_code.into())
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_rule_is_in_its_own_row() {
        for (index, row) in Rule::ALL.iter().enumerate() {
            assert_eq!(row.rule as usize, index, "{}", row.name);
            assert_eq!(Rule::parse(row.name), Some(row.rule), "{} is in the table twice", row.name);
        }
        assert_eq!(Rule::parse("a-rule-of-a-newer-server"), None);
    }

    #[test]
    fn a_stored_rule_that_the_table_lacks_is_read_as_none() {
        let read = |text: &str| {
            Rule::deserialize_known(&mut serde_json::Deserializer::from_str(text)).expect("a rule, or none")
        };
        let written = serde_json::to_string(&Rule::AgentProgram).expect("JSON");
        assert_eq!(read(&written), Some(Rule::AgentProgram));
        assert_eq!((read("\"a-rule-of-a-newer-server\""), read("null")), (None, None));
    }

    #[test]
    fn the_variant_of_a_rule_is_spelled_like_its_name() {
        for row in Rule::ALL {
            let is_code = row.name.starts_with("AGENT_");
            let fits =
                |c: char| c.is_ascii_digit() || if is_code { c.is_ascii_uppercase() } else { c.is_ascii_lowercase() };
            let words: Vec<&str> = row.name.split(if is_code { '_' } else { '-' }).collect();
            assert!(words.iter().all(|word| !word.is_empty() && word.chars().all(fits)), "{}", row.name);
            let variant: String =
                words.iter().map(|word| word[..1].to_uppercase() + &word[1..].to_lowercase()).collect();
            assert_eq!(format!("{:?}", row.rule), variant);
        }
    }

    #[test]
    fn meanings_are_sentences_and_codes_are_consistent() {
        for row in Rule::ALL {
            assert!(row.meaning.ends_with('.') && row.meaning.starts_with(|c: char| !c.is_lowercase()), "{}", row.name);
            if row.name.starts_with("AGENT_") {
                assert_eq!(row.run_input_code, Some(row.name), "a code of run input is its own code");
            }
            if row.is_of_interrupts {
                assert_eq!(row.kind, FailureKind::RunInputInvalid, "{}", row.name);
            }
            if row.is_store_fault {
                assert_eq!(row.kind, FailureKind::InfraFailed, "{}", row.name);
            }
            let kinds: BTreeSet<_> = row.hints_by_kind.iter().map(|(kind, _)| kind.as_str()).collect();
            assert_eq!(kinds.len(), row.hints_by_kind.len(), "{} has two hints for one kind", row.name);
        }
    }

    /// `OSTLER_BLESS=1` writes the page again.
    #[test]
    fn the_generated_page_shows_the_table() {
        let mut page = String::from(
            "# Rules\n\nMade from the one table in `crates/protocol/src/rules.rs`. A failure names the exact rule that was \
             broken in\n`details.rule`; the kind that is listed here is the usual one ([failures.md](failures.md)). The hint is \
             what the command line\nprints; without one it prints none, or the hint of the kind if that fits every rule. A client \
             must accept rules that are\nnot listed: a newer server may have more.\n\n| rule | kind | meaning | hint |\n|---|---|---|---|\n",
        );
        let mut rows: Vec<&RuleRow> = Rule::ALL.iter().collect();
        rows.sort_by_key(|row| row.name.to_ascii_lowercase());
        for RuleRow { name, kind, meaning, hint, hints_by_kind, .. } in rows {
            let others = hints_by_kind.iter().map(|(kind, hint)| format!("`{kind}`: {hint}"));
            let hints: Vec<String> = hint.iter().map(|&hint| hint.to_owned()).chain(others).collect();
            page += &format!("| `{name}` | `{kind}` | {meaning} | {} |\n", hints.join(". "));
        }
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/generated/rules.md");
        if std::env::var_os("OSTLER_BLESS").is_some() {
            std::fs::write(path, &page).expect("the page can be written");
        }
        let stored = std::fs::read_to_string(path).unwrap_or_default();
        assert_eq!(stored, page, "run the test with OSTLER_BLESS=1");
    }
}
