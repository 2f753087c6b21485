//! The message of an automation's runs, with places for values.

use jiff::Zoned;

use crate::run_input::agui::input::USER_TEXT_CHARS_MAX;

/// For a person whose template has another place.
pub(super) const PLACES_HINT: &str = "the places are {{date}}, {{time}}, {{timezone}} and {{title}}";

/// The names of the places.
const PLACES: [&str; 4] = ["date", "time", "timezone", "title"];

/// The first place in the template that has no value, as it is written. `None` if there is none. Braces around anything but a name are
/// text.
pub(super) fn unknown_place(template: &str) -> Option<&str> {
    let mut rest = template;
    while let Some(at) = rest.find("{{") {
        let after = &rest[at + 2..];
        let length = after.find("}}")?;
        let name = &after[..length];
        if is_name(name.trim()) && !PLACES.contains(&name) {
            return Some(&rest[at..at + length + 4]);
        }
        rest = &rest[at + 1..];
    }
    None
}

fn is_name(text: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    !text.is_empty() && text.bytes().all(is_of_name)
}

/// The message of a run that starts at this time.
pub(super) fn fill(template: &str, title: &str, timezone: &str, local: &Zoned) -> String {
    let values = PLACES.map(|place| match place {
        "date" => local.strftime("%F").to_string(),
        "time" => local.strftime("%H:%M").to_string(),
        "timezone" => timezone.to_owned(),
        _ => title.to_owned(),
    });
    let places = PLACES.iter().zip(values);
    let text =
        places.fold(template.to_owned(), |text, (place, value)| text.replace(&format!("{{{{{place}}}}}"), &value));
    // Values may be longer than their places.
    text.chars().take(USER_TEXT_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_without_a_value_is_found_and_other_braces_are_text() {
        for known in ["", "no place", "{{date}} {{time}}{{timezone}} {{title}}", "{{", "{{}}", "{{a b}}", "{\"a\": {}}"]
        {
            assert_eq!(unknown_place(known), None, "{known}");
        }
        for (template, place) in
            [("at {{nope}}", "{{nope}}"), ("{{date}} {{ date }}", "{{ date }}"), ("{{{x}}", "{{x}}")]
        {
            assert_eq!(unknown_place(template), Some(place), "{template}");
        }
    }
}
