//! Labels: short texts by which people sort and find runs and sessions. No rule depends on them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    Failure, Rule,
    limits::{LABEL_KEY_BYTES_MAX, LABEL_VALUE_BYTES_MAX, LABELS_MAX},
};

/// The labels of a run or session.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Labels(BTreeMap<String, String>);

/// A change of labels, as a JSON merge patch: a text replaces the label of that key, null removes it, and keys that are
/// not named stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LabelPatch(BTreeMap<String, Option<String>>);

impl Labels {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Fails with all labels that break a rule.
    pub fn check(&self) -> Result<(), Failure> {
        check_count(self.0.len())?;
        let problems = self.0.iter().flat_map(|(key, value)| [check_key(key).err(), check_value(key, value).err()]);
        Failure::check_all(problems.flatten().collect())
    }

    /// Reads a filter: `key=value`, or several of them between commas, all of which must match.
    pub fn parse_filter(text: &str) -> Result<Self, Failure> {
        let mut labels = BTreeMap::new();
        for pair in text.split(',') {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(Failure::invalid(
                    Rule::LabelFilter,
                    format!("label {pair:?} is not of the form key=value, for example team=search"),
                ));
            };
            if labels.insert(key.to_owned(), value.to_owned()).is_some_and(|other| other != value) {
                let message = format!("label {key:?} is given twice, with different values");
                return Err(Failure::invalid(Rule::LabelFilter, message));
            }
        }
        let labels = Self(labels);
        labels.check()?;
        Ok(labels)
    }

    /// The labels after a change. Fails if there are too many then.
    pub fn patched(&self, patch: &LabelPatch) -> Result<Self, Failure> {
        let mut labels = self.clone();
        for (key, value) in &patch.0 {
            match value {
                Some(value) => drop(labels.0.insert(key.clone(), value.clone())),
                None => drop(labels.0.remove(key)),
            }
        }
        check_count(labels.0.len())?;
        Ok(labels)
    }
}

impl FromIterator<(String, String)> for Labels {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(labels: I) -> Self {
        Self(labels.into_iter().collect())
    }
}

impl LabelPatch {
    /// Fails with all labels that break a rule. Keys that are removed are checked, too, and at most twice as many may
    /// be named as a noun can have: all of its labels removed, and all replaced.
    pub fn check(&self) -> Result<(), Failure> {
        if self.0.len() > 2 * LABELS_MAX {
            return Err(too_many(2 * LABELS_MAX));
        }
        let value_problem = |key: &str, value: &Option<String>| check_value(key, value.as_deref()?).err();
        let problems = self.0.iter().flat_map(|(key, value)| [check_key(key).err(), value_problem(key, value)]);
        Failure::check_all(problems.flatten().collect())
    }
}

impl FromIterator<(String, Option<String>)> for LabelPatch {
    fn from_iter<I: IntoIterator<Item = (String, Option<String>)>>(changes: I) -> Self {
        Self(changes.into_iter().collect())
    }
}

fn check_count(count: usize) -> Result<(), Failure> {
    if count > LABELS_MAX { Err(too_many(LABELS_MAX)) } else { Ok(()) }
}

fn too_many(max: usize) -> Failure {
    Failure::invalid(Rule::LabelsCount, format!("there are more than {max} labels"))
}

fn check_key(key: &str) -> Result<(), Failure> {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._/-".contains(&byte);
    let bytes = key.as_bytes();
    let is_first = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let fits = bytes.first().is_some_and(is_first) && bytes.iter().copied().all(is_inner);
    if !fits || key.len() > LABEL_KEY_BYTES_MAX {
        let message = format!(
            "{key:?} cannot be the key of a label: a key starts with a lower-case letter or a digit, then has lower-case \
             letters, digits, dots, underscores, slashes or hyphens, at most {LABEL_KEY_BYTES_MAX} characters in all; for example \
             team or app/stage"
        );
        return Err(Failure::invalid(Rule::LabelKey, message).detail("field", "labels"));
    }
    Ok(())
}

/// A comma separates labels in filters, so no value has one.
fn check_value(key: &str, value: &str) -> Result<(), Failure> {
    if value.len() > LABEL_VALUE_BYTES_MAX || value.chars().any(|c| c.is_control() || c == ',') {
        let message = format!(
            "the value of label {key:?} is not allowed: a value has at most {LABEL_VALUE_BYTES_MAX} bytes, and neither a comma \
             nor a control character such as a line break; for example search"
        );
        return Err(Failure::invalid(Rule::LabelValue, message).detail("field", format!("labels.{key}")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn rule(result: Result<(), Failure>) -> Option<String> {
        result.err().and_then(|failure| failure.rule_name().map(str::to_owned))
    }

    #[test]
    fn each_bound_of_a_label_holds_at_its_value_and_not_one_past_it() {
        let key = "k".repeat(LABEL_KEY_BYTES_MAX);
        let value = "v".repeat(LABEL_VALUE_BYTES_MAX);
        assert_eq!(rule(labels(&[(&key, &value), ("a.b/c-d_e", ""), ("0", "ü=")]).check()), None);
        for wrong in ["", "A", "-a", "a b", "ä", &format!("{key}k")] {
            assert_eq!(rule(labels(&[(wrong, "")]).check()).as_deref(), Some("label-key"), "{wrong:?}");
        }
        for wrong in ["a,b", "a\nb", "\u{7f}", &format!("{value}v")] {
            assert_eq!(rule(labels(&[("k", wrong)]).check()).as_deref(), Some("label-value"), "{wrong:?}");
        }
        let many = |count: usize| (0..count).map(|n| (format!("k{n}"), String::new())).collect::<Labels>();
        assert_eq!(rule(many(LABELS_MAX).check()), None);
        assert_eq!(rule(many(LABELS_MAX + 1).check()).as_deref(), Some("labels-count"));
    }

    #[test]
    fn a_message_about_a_label_describes_what_is_allowed() {
        let message = |pairs: &[(&str, &str)]| labels(pairs).check().unwrap_err().message;
        assert_eq!(
            message(&[("Team", "x")]),
            "\"Team\" cannot be the key of a label: a key starts with a lower-case letter or a digit, then has lower-case letters, \
             digits, dots, underscores, slashes or hyphens, at most 63 characters in all; for example team or app/stage"
        );
        assert_eq!(
            message(&[("team", "a,b")]),
            "the value of label \"team\" is not allowed: a value has at most 128 bytes, and neither a comma nor a control \
             character such as a line break; for example search"
        );
        assert_eq!(
            Labels::parse_filter("team").unwrap_err().message,
            "label \"team\" is not of the form key=value, for example team=search"
        );
    }

    #[test]
    fn a_patch_replaces_named_keys_removes_nulls_and_leaves_the_rest() {
        let patch: LabelPatch = serde_json::from_value(json!({"a": "2", "b": null, "d": null, "e": "5"})).unwrap();
        let patched = labels(&[("a", "1"), ("b", "1"), ("c", "1")]).patched(&patch).unwrap();
        assert_eq!(patched, labels(&[("a", "2"), ("c", "1"), ("e", "5")]));
        let full: Labels = (0..LABELS_MAX).map(|n| (format!("k{n}"), String::new())).collect();
        let more: LabelPatch = serde_json::from_value(json!({"one": "more"})).unwrap();
        assert_eq!(rule(full.patched(&more).map(drop)).as_deref(), Some("labels-count"));
        let swapped: LabelPatch = serde_json::from_value(json!({"one": "more", "k0": null})).unwrap();
        assert!(full.patched(&swapped).is_ok());
    }

    #[test]
    fn a_filter_is_read_pair_by_pair() {
        assert_eq!(Labels::parse_filter("a=1,b=x=y,c=").unwrap(), labels(&[("a", "1"), ("b", "x=y"), ("c", "")]));
        assert_eq!(Labels::parse_filter("a=1,a=1").unwrap(), labels(&[("a", "1")]));
        for wrong in ["", "a", "a=1,", "a=1,a=2"] {
            assert_eq!(rule(Labels::parse_filter(wrong).map(drop)).as_deref(), Some("label-filter"), "{wrong:?}");
        }
        assert_eq!(rule(Labels::parse_filter("=1").map(drop)).as_deref(), Some("label-key"));
    }
}
