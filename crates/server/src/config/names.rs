//! Finds names that are no settings, and the setting that each was probably meant to be.

use ostler_protocol::Failure;

use super::{Key, SectionType, places::KeyPlaces};

/// One problem for each unknown key of the file and the environment. Of an unknown section only its own name is reported.
pub(super) fn unknown_names(places: &KeyPlaces, keys: &[Key], sections: &[SectionType]) -> Vec<Failure> {
    let known = KnownNames { keys, sections };
    let mut problems = vec![];
    let mut unknown: Option<String> = None;
    for name in places.keys_of_file() {
        let is_below = |above: &String| name.strip_prefix(above.as_str()).is_some_and(|rest| rest.starts_with('.'));
        if known.is_known(name) || unknown.as_ref().is_some_and(is_below) {
            continue;
        }
        problems.push(places.problem_in_file(name, &known.message(name, |name| name.to_owned())));
        unknown = Some(name.to_owned());
    }
    for (name, _) in places.keys_of_environment().filter(|(name, _)| !known.is_setting(name)) {
        problems.push(places.problem(name, &known.message(name, variable)));
    }
    problems
}

/// The variable that sets a key.
pub(super) fn variable(key: &str) -> String {
    format!("OSTLER_{}", key.replace('.', "__").to_uppercase())
}

struct KnownNames<'a> {
    keys: &'a [Key],
    sections: &'a [SectionType],
}

impl KnownNames<'_> {
    /// Whether this is a key, one inside a key whose value is a table, or the name of a section.
    fn is_known(&self, name: &str) -> bool {
        let current = self.current(name);
        let is_section = self.keys.iter().any(|key| is_inside(&key.name, &current));
        // A value of the wrong type is reported as such, and not by the names in it.
        is_section || self.is_setting(name) || self.keys.iter().any(|key| is_inside(&current, &key.name))
    }

    fn is_setting(&self, name: &str) -> bool {
        let current = self.current(name);
        self.keys.iter().any(|key| key.name == current)
    }

    /// The name under its section's current name.
    fn current(&self, name: &str) -> String {
        let current = self.sections.iter().find_map(|section| section.current_key(&format!("{name}.")));
        current.map_or_else(|| name.to_owned(), |current| current.trim_end_matches('.').to_owned())
    }

    fn message(&self, name: &str, spelled: impl Fn(&str) -> String) -> String {
        let similar = self.similar(name).map(|similar| format!("; did you mean {}?", spelled(&similar)));
        format!("{name} is no setting{}", similar.unwrap_or_default())
    }

    /// The known name that differs least: a key, or a section if the name has no dot.
    fn similar(&self, name: &str) -> Option<String> {
        let is_section = !name.contains('.');
        let section = |key: &Key| key.name.split('.').next().map(str::to_owned);
        let names = self.keys.iter().filter_map(|key| if is_section { section(key) } else { Some(key.name.clone()) });
        let own_key = |known: &str| known.rsplit('.').next() == name.rsplit('.').next();
        let ranked = names.map(|known| (strsim::osa_distance(name, &known), known));
        let best = ranked.filter(|(distance, known)| is_near(*distance, name) || (!is_section && own_key(known))).min();
        best.map(|(_, known)| known)
    }
}

fn is_inside(name: &str, section: &str) -> bool {
    name.strip_prefix(section).is_some_and(|rest| rest.starts_with('.'))
}

fn is_near(distance: usize, name: &str) -> bool {
    distance <= (name.chars().count() / 5).clamp(1, 3)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::keys;

    fn messages(file: &str, variables: &[&str]) -> Vec<String> {
        let mut places = KeyPlaces::read(Path::new("bad.toml"), file).unwrap();
        variables.iter().for_each(|key| places.add_variable(key, variable(key)));
        unknown_names(&places, &keys(&[]), &[]).into_iter().map(|failure| failure.message).collect()
    }

    #[test]
    fn an_unknown_name_is_reported_with_its_place_and_the_nearest_setting() {
        assert_eq!(
            messages(
                "[server]\nlisen = \"x\"\n[servr]\nlisten = \"y\"\n[runner]\nzzz = 1\n",
                &["runner.leese_ms", "servr.listen"]
            ),
            [
                "bad.toml, line 6: runner.zzz is no setting",
                "bad.toml, line 2: server.lisen is no setting; did you mean server.listen?",
                "bad.toml, line 3: servr is no setting; did you mean server?",
                "OSTLER_RUNNER__LEESE_MS: runner.leese_ms is no setting; did you mean OSTLER_RUNNER__LEASE_MS?",
                "OSTLER_SERVR__LISTEN: servr.listen is no setting; did you mean OSTLER_SERVER__LISTEN?",
            ]
        );
    }

    #[test]
    fn a_setting_in_the_wrong_section_is_found() {
        assert_eq!(
            messages("[store]\nlisten = \"x\"\n", &[]),
            ["bad.toml, line 2: store.listen is no setting; did you mean server.listen?"]
        );
    }

    #[test]
    fn known_names_are_no_problem() {
        let file = "[server]\nlisten = \"x\"\n[policy.ceiling]\nmax_turns = 1\n[[auth.issuers]]\nissuer = \"x\"\n";
        assert_eq!(messages(file, &["server.drain_ms"]), [""; 0]);
    }
}
