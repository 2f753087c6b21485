//! The keywords of JSON Schema that a check of arguments reads. A copy of a schema has no others, so that the validator reads no
//! part of a schema that was not counted, whatever else it knows.

/// The value of a keyword.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeywordValue {
    /// Contains no schema.
    Data,
    Schema(AppliesTo),
    /// A list of schemas. If they apply to items, each applies to the item at its own index.
    Schemas(AppliesTo),
    /// An object of schemas. Those of `properties` apply to the member of their name only.
    NamedSchemas(AppliesTo),
}

/// What the schemas of a keyword apply to, in the value that is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AppliesTo {
    /// The value itself.
    Value,
    Items,
    Members,
    MemberNames,
}

/// `None`: a check does not read the keyword.
pub(super) fn keyword_value(keyword: &str) -> Option<KeywordValue> {
    use AppliesTo::{Items, MemberNames, Members, Value};
    use KeywordValue::{Data, NamedSchemas, Schema, Schemas};
    Some(match keyword {
        "const" | "dependentRequired" | "enum" | "exclusiveMaximum" | "exclusiveMinimum" | "maxContains"
        | "maxItems" | "maxLength" | "maxProperties" | "maximum" | "minContains" | "minItems" | "minLength"
        | "minProperties" | "minimum" | "multipleOf" | "pattern" | "required" | "type" | "uniqueItems" => Data,
        "else" | "if" | "not" | "then" => Schema(Value),
        "contains" | "items" | "unevaluatedItems" => Schema(Items),
        "additionalProperties" | "unevaluatedProperties" => Schema(Members),
        "propertyNames" => Schema(MemberNames),
        "allOf" | "anyOf" | "oneOf" => Schemas(Value),
        "prefixItems" => Schemas(Items),
        "dependentSchemas" => NamedSchemas(Value),
        "patternProperties" | "properties" => NamedSchemas(Members),
        _ => return None,
    })
}
