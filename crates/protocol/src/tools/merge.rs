//! The tools of several sources under one namespace. A name is offered once: to a model, two tools of one name are one.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    sync::Arc,
};

use super::definition::{ToolDefinition, ToolOrigin};

/// Most tools that one run is offered. Those of the server itself come first.
pub const OFFERED_MAX: usize = 256;

/// A tool that was left out, because another source has one of the same name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub name: String,
    pub offered: ToolOrigin,
    pub left_out: ToolOrigin,
}

/// The tools by their names. If two have the same name, that of the server itself is offered, then that of a dialect, then that of
/// the first MCP server by name: no MCP server can take the place of a tool that people know.
pub fn merge(
    tools: impl IntoIterator<Item = Arc<ToolDefinition>>,
) -> (BTreeMap<String, Arc<ToolDefinition>>, Vec<Conflict>) {
    let mut tools: Vec<_> = tools.into_iter().collect();
    tools.sort_by(|a, b| a.origin.cmp(&b.origin));
    let (mut offered, mut conflicts) = (BTreeMap::<String, Arc<ToolDefinition>>::new(), vec![]);
    for tool in tools {
        let is_full = offered.len() >= OFFERED_MAX;
        match offered.entry(tool.name.clone()) {
            Entry::Occupied(taken) => conflicts.push(Conflict {
                name: tool.name.clone(),
                offered: taken.get().origin.clone(),
                left_out: tool.origin.clone(),
            }),
            Entry::Vacant(_) if is_full => {}
            Entry::Vacant(place) => drop(place.insert(tool)),
        }
    }
    (offered, conflicts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Map;

    use super::*;

    fn tool(name: &str, origin: ToolOrigin) -> Arc<ToolDefinition> {
        Arc::new(ToolDefinition::new(origin, name, "d", Map::new()).unwrap())
    }

    #[test]
    fn the_servers_own_tool_is_offered_and_the_other_one_reported() {
        let mcp = |name: &str| ToolOrigin::Mcp(name.into());
        let tools = [
            tool("a", mcp("z")),
            tool("a", mcp("b")),
            tool("time_now", mcp("b")),
            tool("time_now", ToolOrigin::BuiltIn),
            tool("calendar_write", ToolOrigin::Dialect("run_input")),
        ];
        let (offered, conflicts) = merge(tools);
        let origins: Vec<_> = offered.values().map(|tool| tool.origin.to_string()).collect();
        assert_eq!(origins, ["mcp:b", "dialect:run_input", "built-in"]);
        let left_out: Vec<_> =
            conflicts.iter().map(|conflict| (&*conflict.name, conflict.left_out.to_string())).collect();
        assert_eq!(left_out, [("time_now", "mcp:b".to_owned()), ("a", "mcp:z".to_owned())]);
    }

    proptest! {
        #[test]
        fn each_name_is_offered_once_and_in_any_order_by_the_same_source(order in Just((0..12_usize).collect::<Vec<_>>()).prop_shuffle()) {
            let all: Vec<_> = (0..12).map(|number| {
                let origin = match number / 3 {
                    0 => ToolOrigin::BuiltIn,
                    1 => ToolOrigin::Dialect("d"),
                    source => ToolOrigin::Mcp(format!("s{source}")),
                };
                tool(&format!("t{}", number % 3 + number / 6), origin)
            }).collect();
            let shuffled = order.iter().map(|index| all[*index].clone());
            let of = |merged: &BTreeMap<String, Arc<ToolDefinition>>| -> Vec<_> {
                merged.iter().map(|(name, tool)| (name.clone(), tool.origin.clone())).collect()
            };
            let (expected, conflicts) = merge(all.clone());
            prop_assert_eq!(of(&merge(shuffled).0), of(&expected));
            prop_assert_eq!(expected.len() + conflicts.len(), all.len());
        }
    }
}
