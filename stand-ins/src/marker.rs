//! Markers: they select what a stand-in does.

/// `[[name]]`, or `[[name:argument]]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker<'a> {
    pub name: &'a str,
    pub argument: &'a str,
}

/// The markers of a text, in order.
pub fn markers(text: &str) -> impl Iterator<Item = Marker<'_>> {
    text.split("[[").skip(1).filter_map(|rest| {
        let (inside, _) = rest.split_once("]]")?;
        let (name, argument) = inside.split_once(':').unwrap_or((inside, ""));
        Some(Marker { name, argument })
    })
}

/// The argument of the first marker of this name.
pub fn find<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    markers(text).find(|marker| marker.name == name).map(|marker| marker.argument)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marker_has_a_name_and_an_optional_argument() {
        let text = "please [[tool:echo a:b]] and [[tokens:7]] but [[ not";
        let found: Vec<_> = markers(text).map(|marker| (marker.name, marker.argument)).collect();
        assert_eq!(found, [("tool", "echo a:b"), ("tokens", "7")]);
        assert_eq!(find(text, "tokens"), Some("7"));
        assert_eq!(find("plain", "tokens"), None);
    }
}
