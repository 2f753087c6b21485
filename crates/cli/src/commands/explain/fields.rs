//! The fields of a format, read from its JSON Schema: their types, meanings, limits and children.

use std::fmt;

use serde_json::Value;

/// The name of an entry whose name the user chooses, in the paths of its fields.
pub(crate) const ANY_NAME: &str = "NAME";
/// References that are followed from one field.
const REFERENCES_MAX: usize = 16;

/// A field of a format, or the format as a whole.
#[derive(Clone, Copy)]
pub(crate) struct FormatField<'a> {
    document: &'a Value,
    /// The field's own schema: its description is that of the field.
    own: &'a Value,
    /// The schema of its value, with references followed.
    value: &'a Value,
    is_required: bool,
}

/// What the values of a field contain.
enum FieldContent<'a> {
    Plain,
    /// A list of such values.
    List(FormatField<'a>),
    /// Such values under names of the user's choice.
    Names(FormatField<'a>),
}

/// The type of a field's values, in words.
struct TypeWords<'a> {
    field: FormatField<'a>,
    is_plural: bool,
}

impl<'a> FormatField<'a> {
    /// The whole format.
    pub(crate) fn whole(document: &'a Value) -> Self {
        Self::new(document, document, true)
    }

    fn new(document: &'a Value, own: &'a Value, is_required: bool) -> Self {
        let value = chain(document, own).last().unwrap_or(own);
        Self { document, own, value, is_required }
    }

    pub(crate) fn is_required(self) -> bool {
        self.is_required
    }

    /// The type of its values, such as `list of objects`.
    pub(crate) fn type_words(self) -> String {
        TypeWords { field: self, is_plural: false }.to_string()
    }

    /// What the field is for. Empty if the format does not say it.
    pub(crate) fn description(self) -> String {
        let inner = self.inner();
        // The nearest text: that of the field, then that of its type, then that of the items.
        let mut schemas = chain(self.document, self.own).chain(chain(inner.document, inner.own));
        let text = schemas.find_map(|schema| schema["description"].as_str()).unwrap_or_default();
        // The lines of the source are no paragraphs.
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The rules for its values that a schema can express, each with its name.
    pub(crate) fn rules(self) -> Vec<(&'static str, String)> {
        let schema = self.value;
        let mut rules = vec![];
        if let Some(values) = schema["enum"].as_array() {
            let values: Vec<_> = values.iter().filter_map(Value::as_str).collect();
            rules.push(("values", values.join(", ")));
        }
        rules.extend(schema["pattern"].as_str().map(|pattern| ("pattern", pattern.to_owned())));
        rules.extend(range(schema, "minimum", "maximum").map(|range| ("range", range)));
        rules.extend(range(schema, "minLength", "maxLength").map(|range| ("length", range)));
        rules.extend(range(schema, "minItems", "maxItems").map(|range| ("items", range)));
        // An empty list or object is what every field has that is left out.
        let default = Some(&self.own["default"]).filter(|default| default.is_string() || default.is_number());
        rules.extend(default.map(|default| ("default", default.as_str().map_or(default.to_string(), str::to_owned))));
        rules
    }

    /// Its fields, those that are required first. The fields of a list are those of its items.
    pub(crate) fn children(self) -> Vec<(&'a str, Self)> {
        let inner = self.inner();
        let required: Vec<_> =
            inner.value["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let properties = inner.value["properties"].as_object().into_iter().flatten();
        let child = |(name, own): (&'a String, &'a Value)| {
            (name.as_str(), Self::new(self.document, own, required.contains(&name.as_str())))
        };
        let mut children: Vec<_> = properties.map(child).collect();
        children.sort_by_key(|(name, field)| (!field.is_required, *name));
        children
    }

    /// Whether its entries have names of the user's choice.
    pub(crate) fn has_names(self) -> bool {
        matches!(self.content(), FieldContent::Names(_))
    }

    pub(crate) fn is_list(self) -> bool {
        matches!(self.content(), FieldContent::List(_))
    }

    /// A value below lists and names of the user's choice.
    fn inner(self) -> Self {
        match self.content() {
            FieldContent::Plain => self,
            FieldContent::List(inner) | FieldContent::Names(inner) => inner.inner(),
        }
    }

    fn content(self) -> FieldContent<'a> {
        if self.value["items"].is_object() {
            return FieldContent::List(Self::new(self.document, &self.value["items"], false));
        }
        match &self.value["additionalProperties"] {
            inner @ Value::Object(_) => FieldContent::Names(Self::new(self.document, inner, false)),
            _ => FieldContent::Plain,
        }
    }
}

impl fmt::Display for TypeWords<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = if self.is_plural { "s" } else { "" };
        let inner = |field| TypeWords { field, is_plural: true };
        match self.field.content() {
            FieldContent::List(items) => write!(f, "list{plural} of {}", inner(items)),
            FieldContent::Names(entries) => write!(f, "{} by name", inner(entries)),
            FieldContent::Plain => write!(f, "{}{plural}", plain_type(self.field.value)),
        }
    }
}

/// The name of a type, without `null`: a field that may be null may be left out, too.
fn plain_type(schema: &Value) -> &str {
    match &schema["type"] {
        Value::String(name) => name,
        Value::Array(names) => {
            let mut names = names.iter().filter_map(Value::as_str).filter(|name| *name != "null");
            names.next().unwrap_or("value")
        }
        _ => "value",
    }
}

/// The schema, and those that it leads to: by a reference, or as the one choice beside null.
fn chain<'a>(document: &'a Value, schema: &'a Value) -> impl Iterator<Item = &'a Value> {
    let next = move |found: &&'a Value| {
        let reference = found["$ref"].as_str().and_then(|text| document.pointer(text.strip_prefix('#')?));
        let choices = found["oneOf"].as_array().or_else(|| found["anyOf"].as_array());
        reference.or_else(|| choices?.iter().find(|choice| choice["type"] != "null"))
    };
    std::iter::successors(Some(schema), next).take(REFERENCES_MAX)
}

/// The lower and the upper bound in words.
fn range(schema: &Value, least: &str, most: &str) -> Option<String> {
    match (schema[least].as_u64().filter(|least| *least > 0), schema[most].as_u64()) {
        (Some(least), Some(most)) => Some(format!("{least} to {most}")),
        (Some(least), None) => Some(format!("at least {least}")),
        (None, Some(most)) => Some(format!("at most {most}")),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn document() -> Value {
        json!({
            "description": "A file.",
            "properties": {
                "items": {"type": "array", "maxItems": 3, "items": {"$ref": "#/$defs/Item"}},
                "by_name": {"type": "object", "additionalProperties": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/Item"}]}},
                "other": {"oneOf": [{"type": "null"}, {"$ref": "#/$defs/Item", "description": "Another item."}]},
                "label": {"type": ["string", "null"], "minLength": 1, "maxLength": 9, "description": "Its\nlabel.", "default": "x"},
                "level": {"$ref": "#/$defs/Level"},
                "words": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["level"],
            "$defs": {
                "Item": {"type": "object", "description": "An item.", "properties": {"id": {"type": "integer", "minimum": 1}}},
                "Level": {"type": "string", "enum": ["low", "high"], "description": "How much."},
            },
        })
    }

    #[test]
    fn fields_have_types_meanings_and_rules() {
        let document = document();
        let whole = FormatField::whole(&document);
        let children = whole.children();
        let summary: Vec<_> = children
            .iter()
            .map(|(name, field)| format!("{name}: {}: {}", field.type_words(), field.description()))
            .collect();
        assert_eq!(
            summary,
            [
                "level: string: How much.",
                "by_name: objects by name: An item.",
                "items: list of objects: An item.",
                "label: string: Its label.",
                "other: object: Another item.",
                "words: list of strings: ",
            ]
        );
        let rules: Vec<_> = children.iter().map(|(_, field)| field.rules()).collect();
        assert_eq!(rules[0], [("values", "low, high".to_owned())]);
        assert_eq!(rules[2], [("items", "at most 3".to_owned())]);
        assert_eq!(rules[3], [("length", "1 to 9".to_owned()), ("default", "x".to_owned())]);
        assert!(children[0].1.is_required() && !children[1].1.is_required());
    }

    #[test]
    fn lists_and_names_have_the_fields_of_their_entries() {
        let document = document();
        for (name, has_names) in [("items", false), ("by_name", true)] {
            let children = FormatField::whole(&document).children();
            let (_, field) = children.iter().find(|(known, _)| *known == name).unwrap();
            assert_eq!((field.children()[0].0, field.has_names(), field.is_list()), ("id", has_names, !has_names));
            assert_eq!(field.children()[0].1.rules(), [("range", "at least 1".to_owned())]);
        }
    }

    #[test]
    fn a_circle_of_references_ends() {
        let document = json!({"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}});
        assert_eq!(FormatField::whole(&document).description(), "");
    }
}
