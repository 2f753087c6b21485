//! Label and field selectors.

use serde_json::Value;

use super::failures::ApiFailure;
use super::resources::ApiResource;
use super::store::text;

/// Which objects a list or a watch returns.
#[derive(Clone, Debug, Default)]
pub(super) struct ObjectSelector {
    labels: Vec<LabelTerm>,
    /// Field, value, and whether the value is the one to exclude.
    fields: Vec<(String, String, bool)>,
}

#[derive(Clone, Debug)]
enum LabelTerm {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
}

impl ObjectSelector {
    pub(super) fn parse(resource: &ApiResource, labels: &str, fields: &str) -> Result<Self, ApiFailure> {
        let labels = split_terms(labels).into_iter().map(label_term).collect::<Result<_, _>>()?;
        let fields = fields.split(',').filter(|term| !term.is_empty()).map(|term| field_term(resource, term));
        Ok(Self { labels, fields: fields.collect::<Result<_, _>>()? })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let label = |key: &str| object["metadata"]["labels"][key].as_str();
        let by_labels = self.labels.iter().all(|term| match term {
            LabelTerm::In(key, values) => label(key).is_some_and(|value| values.iter().any(|one| one == value)),
            LabelTerm::NotIn(key, values) => label(key).is_none_or(|value| values.iter().all(|one| one != value)),
            LabelTerm::Exists(key) => label(key).is_some(),
            LabelTerm::Missing(key) => label(key).is_none(),
        });
        let has = |field: &str, value: &str| text(object, &format!("/{}", field.replace('.', "/"))) == value;
        by_labels && self.fields.iter().all(|(field, value, excludes)| has(field, value) != *excludes)
    }
}

/// Splits at commas, except inside the brackets of a set.
fn split_terms(selector: &str) -> Vec<&str> {
    let (mut terms, mut start, mut depth) = (vec![], 0, 0_i32);
    for (at, c) in selector.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                terms.push(&selector[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&selector[start..]);
    terms.into_iter().map(str::trim).filter(|term| !term.is_empty()).collect()
}

fn label_term(term: &str) -> Result<LabelTerm, ApiFailure> {
    let key = |key: &str| {
        let key = key.trim();
        let is_valid = !key.is_empty() && key.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c));
        let refuse = || ApiFailure::bad_request(format!("unable to parse requirement: invalid label key \"{key}\""));
        is_valid.then(|| key.to_owned()).ok_or_else(refuse)
    };
    let set = |values: &str| {
        let values = values.trim().trim_start_matches('(').trim_end_matches(')');
        values.split(',').map(|value| value.trim().to_owned()).collect()
    };
    if let Some(missing) = term.strip_prefix('!') {
        return Ok(LabelTerm::Missing(key(missing)?));
    }
    if let Some((name, values)) = term.split_once(" notin ") {
        return Ok(LabelTerm::NotIn(key(name)?, set(values)));
    }
    if let Some((name, values)) = term.split_once(" in ") {
        return Ok(LabelTerm::In(key(name)?, set(values)));
    }
    if let Some((name, value)) = term.split_once("!=") {
        return Ok(LabelTerm::NotIn(key(name)?, vec![value.trim().to_owned()]));
    }
    if let Some((name, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        return Ok(LabelTerm::In(key(name)?, vec![value.trim().to_owned()]));
    }
    Ok(LabelTerm::Exists(key(term)?))
}

fn field_term(resource: &ApiResource, term: &str) -> Result<(String, String, bool), ApiFailure> {
    let (field, value, excludes) = match term.split_once("!=") {
        Some((field, value)) => (field, value, true),
        None => {
            let parts = term.split_once("==").or_else(|| term.split_once('='));
            let refuse = || ApiFailure::bad_request(format!("invalid selector: '{term}'; can't understand '{term}'"));
            let (field, value) = parts.ok_or_else(refuse)?;
            (field, value, false)
        }
    };
    let supported: &[&str] = match resource.plural {
        "pods" => &["spec.nodeName", "spec.restartPolicy", "spec.serviceAccountName", "status.phase"],
        "secrets" => &["type"],
        "namespaces" => &["status.phase"],
        "events" => &[
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.uid",
            "reason",
            "type",
        ],
        _ => &[],
    };
    if !supported.contains(&field) && !["metadata.name", "metadata.namespace"].contains(&field) {
        return Err(ApiFailure::bad_request(format!("field label not supported: {field}")));
    }
    Ok((field.to_owned(), value.to_owned(), excludes))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kube::resources::PODS;

    #[test]
    fn selectors_combine_labels_and_fields() {
        let pod = json!({"metadata": {"name": "p", "labels": {"a": "b", "c": "d"}}, "status": {"phase": "Running"}});
        for (labels, fields, expected) in [
            ("a=b,c==d", "", true),
            ("a in (x, b),!e", "status.phase=Running,metadata.name!=q", true),
            ("a notin (b)", "", false),
            ("a,c!=d", "", false),
            ("e!=f", "", true),
            ("", "spec.nodeName=", true),
        ] {
            let selector = ObjectSelector::parse(&PODS, labels, fields).unwrap();
            assert_eq!(selector.matches(&pod), expected, "{labels} {fields}");
        }
        assert!(ObjectSelector::parse(&PODS, "", "spec.unknown=1").is_err());
        assert!(ObjectSelector::parse(&PODS, "==", "").is_err());
    }
}
