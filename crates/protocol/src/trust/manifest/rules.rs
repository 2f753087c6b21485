//! Every rule the diff engine knows, in one table: a stable id, what it does to the values a schema accepts, and whose
//! rule it is. Whether a change breaks follows from its effect and from its position.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a change does, all else being equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Breaks in any position: a row of the specification demands it, or the effect cannot be determined.
    Breaks,
    /// Accepts less: nothing that was refused is accepted now.
    Narrows,
    /// Accepts more: nothing that was accepted is refused now.
    Widens,
    /// Does not affect what is accepted or allowed.
    Notes,
}

/// Whose rule it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleOrigin {
    /// A row of the specification's table.
    Specified,
    /// Completes the table: less accepted or more power breaks, more accepted is silent.
    Completed,
}

#[derive(Debug)]
pub struct DiffRuleRow {
    pub rule: DiffRule,
    pub id: &'static str,
    pub effect: Effect,
    pub origin: RuleOrigin,
    pub meaning: &'static str,
}

// An id is a bare token here: as a `literal` it would reach the schema's derive wrapped, and be overlooked.
macro_rules! rules {
    ($($rule:ident $id:tt $effect:ident $origin:ident $meaning:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
        #[schema(as = Rule)]
        pub enum DiffRule {
            $(#[doc = $meaning] #[serde(rename = $id)] $rule,)*
        }

        impl DiffRule {
            /// The one table.
            pub const ALL: &'static [DiffRuleRow] = &[
                $(DiffRuleRow { rule: DiffRule::$rule, id: $id, effect: Effect::$effect, origin: RuleOrigin::$origin,
                    meaning: $meaning },)*
            ];
        }
    };
}

impl DiffRule {
    pub fn row(self) -> &'static DiffRuleRow {
        &Self::ALL[self as usize]
    }

    pub fn as_str(self) -> &'static str {
        self.row().id
    }
}

rules! {
    ScopeAdded "scope-added" Breaks Specified "A scope is declared that was not there.";
    ScopeRemoved "scope-removed" Notes Specified "A scope is declared no longer. Grants of it end.";
    ScopeRaised "scope-sensitivity-raised" Breaks Specified "A scope is called more sensitive.";
    ScopeLowered "scope-sensitivity-lowered" Notes Completed "A scope is called less sensitive. Who consented to the higher level keeps it.";
    ToolAdded "tool-added" Notes Specified "A tool is new. Its scope, if that is new as well, is a change of its own.";
    ToolRemoved "tool-removed" Notes Specified "A tool is gone.";
    ToolScopeRaised "tool-scope-raised" Breaks Specified "A tool moved to a more sensitive scope.";
    ToolScopeMoved "tool-scope-moved" Breaks Completed "A tool moved to another scope, no more sensitive than its last.";
    ToolMadeRequired "tool-made-required" Breaks Completed "A tool can be declined no longer.";
    ToolMadeOptional "tool-made-optional" Notes Completed "A tool can be declined now.";
    TimeoutChanged "timeout-changed" Notes Completed "A tool's time limit changed.";
    TextChanged "text-changed" Notes Completed "A text, or the key of one, that people see when they consent has changed.";
    FlagChanged "flag-changed" Notes Completed "A capability flag changed.";
    AgentVersionChanged "agent-version-changed" Notes Completed "The agent's own version changed. Nothing is decided by it.";
    ExtensionChanged "extension-changed" Notes Completed "A field changed that this format does not know.";

    RequiredAdded "required-added" Breaks Specified "A property must be given now. A default does not help.";
    RequiredRemoved "required-removed" Widens Completed "A property need not be given any more.";
    TypeChanged "type-changed" Breaks Specified "`type` changed, even to a wider one.";
    AdditionalClosed "additional-properties-closed" Breaks Specified "Properties that are not listed are refused now.";
    AdditionalOpened "additional-properties-opened" Widens Specified "Properties that are not listed are accepted now.";
    EnumValueRemoved "enum-value-removed" Breaks Specified "A value is gone from `enum`.";
    EnumValueAdded "enum-value-added" Widens Specified "A value is new in `enum`.";
    EnumAdded "enum-added" Narrows Completed "There is an `enum` now.";
    EnumDropped "enum-dropped" Widens Completed "There is no `enum` any more.";
    ConstAdded "const-added" Narrows Completed "There is a `const` now.";
    ConstChanged "const-changed" Breaks Completed "`const` is another value.";
    ConstDropped "const-dropped" Widens Completed "There is no `const` any more.";
    Respelled "respelled" Notes Completed "The same constraint in another spelling: by a `const` for an `enum` of one value, or by other bounds.";
    BoundTightened "bound-tightened" Narrows Completed "A bound is new or tighter: of numbers, lengths, items, properties, `contains`, `uniqueItems`, `multipleOf`.";
    BoundLoosened "bound-loosened" Widens Completed "A bound is gone or looser.";
    BoundChanged "bound-changed" Breaks Completed "`multipleOf` changed, and the two steps are not whole numbers of which one divides the other.";
    TextRuleAdded "text-rule-added" Narrows Completed "`pattern`, `format` or a `content…` keyword is new.";
    TextRuleChanged "text-rule-changed" Breaks Completed "`pattern`, `format` or a `content…` keyword changed. The effect cannot be determined.";
    TextRuleDropped "text-rule-dropped" Widens Completed "`pattern`, `format` or a `content…` keyword is gone.";
    PropertyAdded "property-added" Widens Completed "A property is listed now. Where others were free before, what its schema refuses is a change of its own.";
    PropertyRemoved "property-removed" Widens Completed "A property is listed no longer, and accepted like any other.";
    PropertyForbidden "property-forbidden" Breaks Completed "A property is listed no longer, and others are refused.";
    PatternPropertyAdded "pattern-property-added" Breaks Completed "`patternProperties` has a new pattern, and the object accepted properties that are not listed.";
    PatternPropertyOpened "pattern-property-opened" Widens Completed "`patternProperties` has a new pattern, and the object refused properties that are not listed. What the pattern's schema refuses of listed properties that it may match is a change of its own.";
    PatternPropertyRemoved "pattern-property-removed" Widens Completed "`patternProperties` lost a pattern. What it held falls under `additionalProperties`, and what that refuses is a change of its own.";
    PatternPropertyClosed "pattern-property-closed" Breaks Completed "`patternProperties` lost a pattern, and others are refused.";
    DependencyAdded "dependency-added" Narrows Completed "A property requires another one, or a schema, that it did not require.";
    DependencyRemoved "dependency-removed" Widens Completed "A property requires less than it did.";
    TupleLengthChanged "tuple-length-changed" Breaks Completed "`prefixItems` is longer or shorter.";
    ContainsAdded "contains-added" Narrows Completed "There is a `contains` now.";
    ContainsDropped "contains-dropped" Widens Completed "There is no `contains` any more.";
    AllOfAdded "all-of-branch-added" Narrows Completed "`allOf` has a new branch.";
    AllOfRemoved "all-of-branch-removed" Widens Completed "`allOf` lost a branch.";
    AnyOfAdded "any-of-branch-added" Widens Completed "`anyOf` has a new branch.";
    AnyOfRemoved "any-of-branch-removed" Narrows Completed "`anyOf` lost a branch.";
    OneOfAdded "one-of-branch-added" Breaks Completed "`oneOf` has a new branch that may match what another matched alone.";
    OneOfAddedDisjoint "one-of-branch-added-disjoint" Widens Completed "`oneOf` has a new branch that shares no value with the others.";
    OneOfRemoved "one-of-branch-removed" Breaks Completed "`oneOf` lost a branch.";
    OneOfRelaxed "one-of-relaxed" Widens Completed "`oneOf` became `anyOf`: several branches may match now. Branches that changed are changes of their own.";
    ChoiceAdded "choice-added" Narrows Completed "There is an `anyOf` or `oneOf` now.";
    ChoiceDropped "choice-dropped" Widens Completed "There is no `anyOf` or `oneOf` any more.";
    NotAdded "not-added" Narrows Completed "There is a `not` now.";
    NotDropped "not-dropped" Widens Completed "There is no `not` any more.";
    ConditionAdded "condition-added" Narrows Completed "There is an `if` now.";
    ConditionDropped "condition-dropped" Widens Completed "There is no `if` any more.";
    ReferenceAdded "reference-added" Narrows Completed "A `$ref` is new beside other keywords.";
    ReferenceDropped "reference-dropped" Widens Completed "A `$ref` is gone from beside other keywords.";
    UnevaluatedAdded "unevaluated-added" Narrows Completed "There is an `unevaluatedProperties` or `unevaluatedItems` now.";
    UnevaluatedDropped "unevaluated-dropped" Widens Completed "There is no `unevaluatedProperties` or `unevaluatedItems` any more.";
    EvaluationChanged "evaluation-changed" Widens Completed "`items` or `additionalProperties` is spelled out or left out. Only `unevaluated…` sees the difference.";
    SchemaOpened "schema-opened" Widens Completed "A schema is `false` no longer.";
    SchemaClosed "schema-closed" Narrows Completed "A schema is `false` now.";
    AnnotationChanged "annotation-changed" Notes Completed "A title, description, default, example or another keyword changed that refuses nothing.";
    Undecided "undecided" Breaks Completed "Too deep or too large to compare within the budget.";
}
