//! Which keywords are compared together.

/// Keywords that are compared together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::trust::manifest) enum Group {
    Values,
    Objects,
    Arrays,
    Branches,
    References,
    Unevaluated,
    /// They refuse nothing.
    Annotations,
    /// Looked at only where something refers to them.
    Definitions,
}

impl Group {
    pub(crate) fn refuses(self) -> bool {
        !matches!(self, Self::Annotations | Self::Definitions)
    }
}

macro_rules! keywords {
    ($($group:ident: $($keyword:literal)*;)*) => {
        pub(in crate::trust::manifest) fn group(keyword: &str) -> Group {
            match keyword {
                $($($keyword)|* => Group::$group,)*
                _ => Group::Annotations,
            }
        }

        /// Every keyword that is not an annotation.
        #[cfg(test)]
        pub(in crate::trust::manifest) const KEYWORDS: &[&str] = &[$($($keyword,)*)*];
    };
}

keywords! {
    Values: "type" "enum" "const" "multipleOf" "minimum" "maximum" "exclusiveMinimum" "exclusiveMaximum"
        "minLength" "maxLength" "pattern" "format" "contentEncoding" "contentMediaType" "contentSchema"
        "minItems" "maxItems" "uniqueItems" "minProperties" "maxProperties";
    Objects: "required" "dependentRequired" "dependentSchemas" "properties" "patternProperties"
        "additionalProperties" "propertyNames";
    Arrays: "prefixItems" "items" "contains" "minContains" "maxContains";
    Branches: "allOf" "anyOf" "oneOf" "not" "if" "then" "else";
    References: "$ref" "$dynamicRef";
    Unevaluated: "unevaluatedProperties" "unevaluatedItems";
    Definitions: "$defs" "definitions";
}
