//! Labels on the command line: `KEY=VALUE` sets one, `KEY-` removes it.

use ostler_protocol::kernel::labels::{LabelPatch, Labels};

use crate::terminal::output::line;

/// Reads `KEY=VALUE`. The server checks the rest.
pub(crate) fn parse(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write a label as KEY=VALUE, for example team=search".to_owned()),
    }
}

/// Reads `KEY=VALUE` or `KEY-`.
fn parse_change(text: &str) -> Result<(String, Option<String>), String> {
    match (parse(text), text.strip_suffix('-')) {
        (Ok((key, value)), _) => Ok((key, Some(value))),
        (Err(_), Some(key)) if !key.is_empty() => Ok((key.to_owned(), None)),
        _ => Err("write KEY=VALUE to set a label, or KEY- to remove it, for example team=search or team-".to_owned()),
    }
}

/// The labels of a new noun. `None` if there are none.
pub(crate) fn of_new(labels: &[(String, String)]) -> Option<Labels> {
    (!labels.is_empty()).then(|| labels.iter().cloned().collect())
}

/// A filter that all of these labels must match.
pub(crate) fn filter(labels: &[(String, String)]) -> Option<String> {
    let pairs: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    (!pairs.is_empty()).then(|| pairs.join(","))
}

/// The changes of `ostler runs label` and `ostler sessions label`.
#[derive(clap::Args, Debug)]
pub(crate) struct LabelChanges {
    /// KEY=VALUE sets a label, KEY- removes it
    #[arg(required = true, value_name = "KEY=VALUE|KEY-", value_parser = parse_change)]
    changes: Vec<(String, Option<String>)>,
}

impl LabelChanges {
    pub(crate) fn patch(&self) -> LabelPatch {
        self.changes.iter().cloned().collect()
    }
}

/// What a noun is labelled with now, as a sentence.
pub(crate) fn sentence(id: &str, labels: &Labels) -> String {
    match pairs(labels) {
        None => format!("{} has no labels\n", line(id, 200)),
        Some(pairs) => format!("{} has the labels {pairs}\n", line(id, 200)),
    }
}

/// `stage=live, team=search`. `None` if there are no labels.
pub(crate) fn pairs(labels: &Labels) -> Option<String> {
    let pairs: Vec<_> = labels.iter().map(|(key, value)| line(&format!("{key}={value}"), 200)).collect();
    (!pairs.is_empty()).then(|| pairs.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_set_or_removed() {
        assert_eq!(parse_change("a=b-"), Ok(("a".into(), Some("b-".into()))));
        assert_eq!(parse_change("a="), Ok(("a".into(), Some(String::new()))));
        assert_eq!(parse_change("a-b-"), Ok(("a-b".into(), None)));
        for wrong in ["", "a", "=b", "-"] {
            assert!(parse_change(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn several_labels_are_one_filter() {
        let labels = ["team=search", "stage=live"].map(|text| parse(text).unwrap());
        assert_eq!(filter(&labels).as_deref(), Some("team=search,stage=live"));
        assert_eq!(filter(&[]), None);
    }
}
