//! The name that was probably meant by one that does not exist.

/// How many characters may differ, for names of four characters each.
const CHARS_PER_DIFFERENCE: usize = 4;
const DIFFERENCES_MAX: usize = 3;

/// The most similar of the known names. `None` if none is similar.
pub(crate) fn similar<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let word = word.to_lowercase();
    let ranked = known.into_iter().map(|name| (strsim::osa_distance(&word, &name.to_lowercase()), name));
    let (distance, name) = ranked.min()?;
    let differences_max = (name.chars().count() / CHARS_PER_DIFFERENCE).clamp(1, DIFFERENCES_MAX);
    (distance <= differences_max).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_similar_name_is_suggested() {
        let known = ["config", "config_file", "credential_env", "tenant"];
        assert_eq!(similar("confg", known), Some("config"));
        assert_eq!(similar("Config_Flie", known), Some("config_file"));
        assert_eq!(similar("credentail_env", known), Some("credential_env"));
        for other in ["key", "", "manifest"] {
            assert_eq!(similar(other, known), None, "{other}");
        }
    }
}
