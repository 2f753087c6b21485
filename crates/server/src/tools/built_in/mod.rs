//! Tools of the server itself. Each file has one: its definition, and what a call does.

mod definitions;
mod fetching;
mod http_request;
mod page_text;
mod run_agent;
mod time_now;
mod web_fetch;

pub(crate) use run_agent::{SettlingCommands, StartLocks, settle_lost_runs};

use std::sync::Arc;

use futures_util::future::BoxFuture;
use ostler_protocol::{Failure, tools::ToolDefinition};
use serde_json::{Map, Value};

use super::source::{Invocation, ToolContext, ToolError, ToolSource};
use crate::{app::App, config::Config};

type Call = for<'a> fn(&'a App, &'a Invocation) -> BoxFuture<'a, Result<String, ToolError>>;
/// Checks arguments beyond their schema. The error is the message for the model.
type Check = fn(&App, &Map<String, Value>) -> Result<(), String>;

/// A tool of the server itself.
struct OwnTool {
    definition: Arc<ToolDefinition>,
    call: Call,
    /// `None` if the schema has every rule.
    check: Option<Check>,
}

/// The tools of the server itself, as far as they are configured.
pub(super) struct BuiltIn {
    tools: Vec<OwnTool>,
}

impl BuiltIn {
    pub(super) fn new(config: &Config) -> Self {
        let section = &config.tools;
        let tools = [
            Some((time_now::definition(), time_now::call as Call, None)),
            // It connects to anything that a model chooses, so the operator has to name it.
            section
                .names(web_fetch::NAME)
                .then(|| (web_fetch::definition(), web_fetch::call as Call, Some(web_fetch::check as Check))),
            (!section.http_request.hosts.is_empty()).then(|| {
                let definition = http_request::definition(&section.http_request.hosts);
                (definition, http_request::call as Call, Some(http_request::check as Check))
            }),
            (!section.run_agent.profiles.is_empty())
                .then(|| (run_agent::definition(&section.run_agent.profiles), run_agent::call as Call, None)),
        ];
        let tools = tools.into_iter().flatten().filter_map(|(definition, call, check)| {
            // The definitions are ours, and a test makes each of them.
            Some(OwnTool { definition: Arc::new(definition?), call, check })
        });
        Self { tools: tools.collect() }
    }

    fn get(&self, name: &str) -> Option<&OwnTool> {
        self.tools.iter().find(|tool| tool.definition.name == name)
    }
}

impl ToolSource for BuiltIn {
    fn list<'a>(&'a self, _: &'a App, _: &'a ToolContext) -> BoxFuture<'a, Result<Vec<Arc<ToolDefinition>>, Failure>> {
        Box::pin(async { Ok(self.tools.iter().map(|tool| tool.definition.clone()).collect()) })
    }

    fn find<'a>(
        &'a self,
        _: &'a App,
        _: &'a ToolContext,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<ToolDefinition>>, Failure>> {
        Box::pin(async move { Ok(self.get(name).map(|tool| tool.definition.clone())) })
    }

    fn check<'a>(
        &'a self,
        app: &'a App,
        _: &'a ToolContext,
        tool: &'a ToolDefinition,
        arguments: &'a Map<String, Value>,
    ) -> BoxFuture<'a, Result<Result<(), String>, Failure>> {
        let check = self.get(&tool.name).and_then(|own| own.check);
        Box::pin(async move { Ok(check.map_or(Ok(()), |check| check(app, arguments))) })
    }

    /// The run that `run_agent` has started has to be cancelled.
    fn ends_with_command(&self, tool: &ToolDefinition) -> bool {
        tool.name == run_agent::NAME
    }

    fn call<'a>(&'a self, app: &'a App, invocation: &'a Invocation) -> BoxFuture<'a, Result<String, ToolError>> {
        match self.get(&invocation.tool.name) {
            Some(tool) => (tool.call)(app, invocation),
            None => Box::pin(async { Err(ToolError::failed("there is no such tool")) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_can_be_defined_and_only_harmless_ones_are_offered_by_default() {
        let names = |config: &Config| -> Vec<String> {
            BuiltIn::new(config).tools.iter().map(|tool| tool.definition.name.clone()).collect()
        };
        let mut config = Config::default();
        assert_eq!(names(&config), ["time_now"]);
        config.tools.enabled = vec!["web_fetch".into()];
        config.tools.http_request.hosts = vec!["api.example".into()];
        config.tools.run_agent.profiles = vec!["scripted".into()];
        assert_eq!(names(&config), ["time_now", "web_fetch", "http_request", "run_agent"]);
        for OwnTool { definition, .. } in BuiltIn::new(&config).tools {
            let schema = serde_json::Value::Object(definition.parameters.clone());
            assert!(jsonschema::meta::is_valid(&schema), "{}", definition.name);
        }
    }
}
