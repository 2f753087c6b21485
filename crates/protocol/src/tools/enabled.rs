//! The tools to which a command restricts its run.

use serde::Deserialize;

use crate::RawJson;

/// The field of `runtimeConfig` that names the tools.
const ENABLED_TOOLS: &str = "enabledTools";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RestrictedPayload {
    runtime_config: Option<ToolRestriction>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ToolRestriction {
    enabled_tools: Option<Vec<String>>,
}

/// The names in `runtimeConfig.enabledTools` of a command's payload: its run is offered no other tools while it works on the
/// command. `None` if the payload has no such list.
pub fn enabled_tools(payload: &RawJson) -> Option<Vec<String>> {
    // Most payloads have none, and need not be parsed.
    if !payload.as_str().contains(ENABLED_TOOLS) {
        return None;
    }
    payload.view::<RestrictedPayload>()?.runtime_config?.enabled_tools
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::kernel::stages::RuntimeConfig;

    #[test]
    fn only_a_list_restricts() {
        let of = |payload: Value| enabled_tools(&RawJson::of(&payload));
        assert_eq!(of(json!({"prompt": "enabledTools"})), None);
        assert_eq!(of(json!({"runtimeConfig": {"mode": "automation"}})), None);
        assert_eq!(of(json!({"runtimeConfig": {"enabledTools": null}})), None);
        assert_eq!(of(json!({"runtimeConfig": {"enabledTools": []}})), Some(vec![]));
        assert_eq!(of(json!({"runtimeConfig": {"enabledTools": ["time_now"]}})), Some(vec!["time_now".to_owned()]));
        // As the dialects write it.
        for enabled_tools in [None, Some(vec![]), Some(vec!["time_now".to_owned()])] {
            let config = RuntimeConfig { enabled_tools: enabled_tools.clone(), ..RuntimeConfig::default() };
            assert_eq!(of(json!({"runtimeConfig": config})), enabled_tools);
        }
    }
}
