//! Constraints on an array's items: those at the front by their index, the rest by one rule, and how many must be of a
//! kind.

use serde_json::Value;

use super::{Comparison, SchemaPair, SchemaPosition};
use crate::trust::manifest::rules::DiffRule;

impl<'a> Comparison<'a, '_> {
    pub(super) fn arrays(&mut self, pair: SchemaPair<'a, '_>) {
        let (old, new) = pair.get("prefixItems");
        let (first_old, first_new) = (list(old), list(new));
        if first_old.len() != first_new.len() {
            self.report(DiffRule::TupleLengthChanged, pair.position, &pair.place("prefixItems"), old, new);
        }
        for (index, (old, new)) in first_old.iter().zip(first_new).enumerate() {
            let spot = pair.spot.key("prefixItems");
            self.schemas(old, new, &spot.indices(index, index), pair.position);
        }
        let (old, new) = pair.schemas("items");
        self.report_presence(pair, "items", DiffRule::EvaluationChanged, DiffRule::EvaluationChanged);
        self.schemas(old, new, &pair.spot.key("items"), pair.position);
        self.contains(pair);
    }

    fn contains(&mut self, pair: SchemaPair<'a, '_>) {
        let (Some(old), Some(new)) = pair.get("contains") else {
            return self.report_presence(pair, "contains", DiffRule::ContainsAdded, DiffRule::ContainsDropped);
        };
        // With an upper bound, more items of the kind may be too many.
        let has_upper = pair.old.contains_key("maxContains") || pair.new.contains_key("maxContains");
        let position = if has_upper { SchemaPosition::Fixed } else { pair.position };
        self.schemas(old, new, &pair.spot.key("contains"), position);
        self.contains_bounds(pair);
    }
}

pub(super) fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
