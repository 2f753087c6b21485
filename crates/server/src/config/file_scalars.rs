//! Finds values of the file whose type is not that of their key. The reader of the configuration converts text to numbers and
//! Booleans, which the environment needs, because its values are always text. In the file such a value is a typing error.

use ostler_protocol::Failure;

use super::{
    Key, SectionType,
    places::{FileScalar, KeyPlaces},
};

/// One problem for each number and Boolean of the file that is written as another type.
pub(super) fn wrong_types(places: &KeyPlaces, keys: &[Key], sections: &[SectionType]) -> Vec<Failure> {
    let problem = |(name, scalar): (&str, &FileScalar)| {
        let current = sections.iter().find_map(|section| section.current_key(name));
        let expected = expected_type(keys, current.as_deref().unwrap_or(name))?;
        let found = match (expected, scalar) {
            (SCALAR_BOOLEAN, FileScalar::Boolean)
            | (SCALAR_INTEGER, FileScalar::Integer)
            | (SCALAR_NUMBER, FileScalar::Integer | FileScalar::Float) => return None,
            (_, FileScalar::Text(text)) => format!("the text {text:?}"),
            (_, FileScalar::Integer) => "a whole number".to_owned(),
            (_, FileScalar::Float) => "a number with a fraction".to_owned(),
            (_, FileScalar::Boolean) => "true or false".to_owned(),
        };
        Some(places.problem_in_file(name, &format!("{name}: must be {expected}, not {found}")))
    };
    places.scalars_of_file().filter_map(problem).collect()
}

const SCALAR_BOOLEAN: &str = "true or false";
const SCALAR_INTEGER: &str = "a whole number";
const SCALAR_NUMBER: &str = "a number";

/// The type of a key that is a number or a Boolean. In tables whose names the operator chooses, durations are whole numbers.
fn expected_type(keys: &[Key], name: &str) -> Option<&'static str> {
    let Some(key) = keys.iter().find(|key| key.name == name) else {
        let is_inside = |key: &Key| name.strip_prefix(&key.name).is_some_and(|rest| rest.starts_with('.'));
        let is_duration = name.ends_with("_ms") && keys.iter().any(|key| key.is_table() && is_inside(key));
        return is_duration.then_some(SCALAR_INTEGER);
    };
    let has_type = |wanted: &str| match &key.schema["type"] {
        serde_json::Value::Array(all) => all.iter().any(|one| one == wanted),
        one => one == wanted,
    };
    match () {
        () if has_type("boolean") => Some(SCALAR_BOOLEAN),
        () if has_type("integer") => Some(SCALAR_INTEGER),
        () if has_type("number") => Some(SCALAR_NUMBER),
        () => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::keys;

    fn messages(file: &str) -> Vec<String> {
        let places = KeyPlaces::read(Path::new("bad.toml"), file).unwrap();
        wrong_types(&places, &keys(&[]), &[]).into_iter().map(|failure| failure.message).collect()
    }

    #[test]
    fn a_number_or_a_boolean_of_the_file_is_not_text() {
        let file = "[server]\ndrain_ms = \"5\"\nopen_loopback = \"yes\"\nrequire_auth = 1\n[retention]\nevents_ms = 1.5\n\
                    [retention.tenants.local]\nstorage_ms = \"7\"\n";
        assert_eq!(
            messages(file),
            [
                "bad.toml, line 6: retention.events_ms: must be a whole number, not a number with a fraction",
                "bad.toml, line 8: retention.tenants.local.storage_ms: must be a whole number, not the text \"7\"",
                "bad.toml, line 2: server.drain_ms: must be a whole number, not the text \"5\"",
                "bad.toml, line 3: server.open_loopback: must be true or false, not the text \"yes\"",
                "bad.toml, line 4: server.require_auth: must be true or false, not a whole number",
            ]
        );
    }

    #[test]
    fn values_of_the_right_type_are_no_problem() {
        let file = "[server]\nlisten = \"127.0.0.1:1\"\ndrain_ms = 5\nopen_loopback = true\n[retention]\nevents_ms = 1\n\
                    [log]\nformat = \"json\"\n";
        assert_eq!(messages(file), [""; 0]);
    }
}
