//! Keywords of JSON Schema that refer to, name or contain other schemas.

pub(super) const REFERENCES: [&str; 2] = ["$ref", "$dynamicRef"];
pub(super) const ANCHORS: [&str; 2] = ["$anchor", "$dynamicAnchor"];

/// What a keyword's value holds.
#[derive(Clone, Copy)]
pub(super) enum SubschemaShape {
    Schema,
    List,
    Map,
}

/// Whether a subschema applies to the same value as the schema that contains it.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum About {
    Same,
    Part,
    /// It is only kept for others to refer to.
    Nothing,
}

/// What a keyword with subschemas holds, and how they relate to the schema that contains it.
pub(super) fn applicator(keyword: &str) -> Option<(SubschemaShape, About)> {
    Some(match keyword {
        "allOf" | "anyOf" | "oneOf" => (SubschemaShape::List, About::Same),
        "not" | "if" | "then" | "else" => (SubschemaShape::Schema, About::Same),
        "dependentSchemas" => (SubschemaShape::Map, About::Same),
        "properties" | "patternProperties" => (SubschemaShape::Map, About::Part),
        "prefixItems" => (SubschemaShape::List, About::Part),
        "additionalProperties"
        | "unevaluatedProperties"
        | "propertyNames"
        | "items"
        | "unevaluatedItems"
        | "contains"
        | "contentSchema" => (SubschemaShape::Schema, About::Part),
        "$defs" | "definitions" => (SubschemaShape::Map, About::Nothing),
        _ => return None,
    })
}
