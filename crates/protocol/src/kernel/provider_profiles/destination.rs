//! Where a profile's credential goes: every setting of a config that names a program, a server, or what is sent to it.
//! A credential belongs to the destination it was set for; under another one it must be set again.
//!
//! For Codex the harmless settings are listed, not the dangerous ones: a setting that a later Codex adds counts as
//! dangerous until it is listed here.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::{AgentConfig, ProfileConfig};
use crate::{Failure, Rule};

/// Settings of Codex that only control how the model responds.
const HARMLESS: [&str; 14] = [
    "model",
    "model_reasoning_effort",
    "model_reasoning_summary",
    "model_supports_reasoning_summaries",
    "model_verbosity",
    "model_context_window",
    "model_max_output_tokens",
    "model_auto_compact_token_limit",
    "plan_mode_reasoning_effort",
    "review_model",
    "personality",
    "service_tier",
    "hide_agent_reasoning",
    "show_raw_agent_reasoning",
];
/// Other settings of Codex, so that a refusal can name them.
const CODEX_SETTINGS: [&str; 36] = [
    "agents",
    "approval_policy",
    "apps",
    "chatgpt_base_url",
    "cli_auth_credentials_store",
    "compact_prompt",
    "default_permissions",
    "developer_instructions",
    "experimental_compact_prompt_file",
    "experimental_instructions_file",
    "features",
    "file_opener",
    "history",
    "hooks",
    "instructions",
    "log_dir",
    "mcp_oauth_credentials_store",
    "mcp_servers",
    "model_catalog_json",
    "model_instructions_file",
    "model_provider",
    "notify",
    "openai_base_url",
    "otel",
    "permissions",
    "plugins",
    "profile",
    "profiles",
    "project_doc_fallback_filenames",
    "projects",
    "sandbox_mode",
    "sandbox_workspace_write",
    "shell_environment_policy",
    "skills",
    "tools",
    "web_search",
];
const PROVIDERS: &str = "model_providers";
/// Settings of one of Codex's model providers that only control its timeouts and retries.
const PROVIDER_HARMLESS: [&str; 4] =
    ["request_max_retries", "stream_max_retries", "stream_idle_timeout_ms", "websocket_connect_timeout_ms"];
/// Settings of a model provider that decide where the owner's own credential goes. They name no program, and read
/// nothing of the server: `env_key` and `env_http_headers` would send variables of the server's environment, and
/// `auth` runs a command.
const PROVIDER_ROUTING: [&str; 8] = [
    "name",
    "base_url",
    "wire_api",
    "requires_openai_auth",
    "supports_websockets",
    "http_headers",
    "query_params",
    "experimental_bearer_token",
];

/// What a credential was given for. Two configs with equal destinations send it to the same place.
#[derive(Clone, Debug, PartialEq)]
pub enum Destination {
    Scripted,
    /// Codex's config without its harmless settings.
    Codex(Table),
    /// The program, and the files of its home: their templates determine which server gets the key.
    Acp {
        command: Vec<String>,
        files: BTreeMap<String, String>,
    },
    Model {
        base_url: String,
    },
}

impl Destination {
    pub fn of(config: &ProfileConfig) -> Self {
        match &config.agent {
            AgentConfig::Scripted => Self::Scripted,
            AgentConfig::Codex => Self::Codex(routing(&config.own)),
            AgentConfig::Acp { command, .. } => Self::Acp { command: command.clone(), files: config.files.clone() },
            AgentConfig::Model { base_url, .. } => Self::Model { base_url: base_url.clone() },
        }
    }
}

fn routing(own: &Table) -> Table {
    let mut routing: Table =
        own.iter().filter(|(key, _)| !HARMLESS.contains(&key.as_str())).map(|(k, v)| (k.clone(), v.clone())).collect();
    let providers = routing.get_mut(PROVIDERS).and_then(Value::as_table_mut);
    for (_, provider) in providers.into_iter().flat_map(Table::iter_mut) {
        if let Some(provider) = provider.as_table_mut() {
            provider.retain(|key, _| !PROVIDER_HARMLESS.contains(&key));
        }
    }
    routing
}

impl ProfileConfig {
    /// Refuses whatever could run a program of the config's choice, or read what is the server's: a tenant's profile
    /// may hold neither unless the operator allows it.
    pub fn check_no_command(&self) -> Result<(), Failure> {
        match &self.agent {
            AgentConfig::Acp { .. } => Err(commands_denied("ostler.command")),
            AgentConfig::Scripted | AgentConfig::Model { .. } => Ok(()),
            AgentConfig::Codex => self.own.iter().try_for_each(|(key, value)| check_setting(key, value)),
        }
    }

    /// The servers that the config sends its credential to, as far as the config names them.
    pub fn base_urls(&self) -> Vec<&str> {
        match &self.agent {
            AgentConfig::Model { base_url, .. } => vec![base_url],
            AgentConfig::Codex => {
                let providers = self.own.get(PROVIDERS).and_then(Value::as_table).into_iter().flatten();
                providers.filter_map(|(_, provider)| provider.get("base_url")?.as_str()).collect()
            }
            AgentConfig::Acp { .. } | AgentConfig::Scripted => vec![],
        }
    }
}

fn check_setting(key: &str, value: &Value) -> Result<(), Failure> {
    match (key, value) {
        ("model_provider", Value::String(_)) => Ok(()),
        // A feature can be turned off, and not on: some of them run programs.
        ("features", Value::Table(features)) if features.values().all(|on| on.as_bool() == Some(false)) => Ok(()),
        (PROVIDERS, Value::Table(providers)) => providers.values().try_for_each(check_provider),
        (_, Value::String(_) | Value::Integer(_) | Value::Boolean(_)) if HARMLESS.contains(&key) => Ok(()),
        _ => Err(commands_denied(known_name(key))),
    }
}

fn check_provider(provider: &Value) -> Result<(), Failure> {
    let Value::Table(settings) = provider else { return Err(commands_denied(PROVIDERS)) };
    for (key, value) in settings {
        let fits = match key.as_str() {
            "http_headers" | "query_params" => value.as_table().is_some_and(|all| all.values().all(Value::is_str)),
            key if PROVIDER_ROUTING.contains(&key) => value.is_str() || value.is_bool(),
            key => PROVIDER_HARMLESS.contains(&key) && value.is_integer(),
        };
        if !fits {
            return Err(commands_denied("a setting of model_providers"));
        }
    }
    Ok(())
}

/// A key of the config may be a mistyped secret, so only names of Codex's own are repeated.
fn known_name(key: &str) -> &str {
    let known = CODEX_SETTINGS.iter().chain(&HARMLESS);
    known.into_iter().find(|name| **name == key).unwrap_or(&"a setting of config.toml")
}

fn commands_denied(what: &str) -> Failure {
    let message = format!(
        "{what} could run a program or send what is not the tenant's own; a tenant's profile takes it only if the operator \
         sets profiles.tenant_commands"
    );
    Failure::rule(Rule::ProfileCommand, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> ProfileConfig {
        ProfileConfig::read(text).unwrap()
    }

    const PROVIDER: &str = "model_provider = \"x\"\n[model_providers.x]\nbase_url = \"https://a.example/v1\"\n";

    #[test]
    fn only_settings_that_send_nothing_elsewhere_keep_the_destination() {
        let of = |text: &str| Destination::of(&read(text));
        assert_eq!(of("model = \"a\""), of("model = \"b\"\nmodel_reasoning_effort = \"high\""));
        assert_eq!(of(PROVIDER), of(&format!("{PROVIDER}request_max_retries = 3\n")));
        for other in [
            "model_provider = \"y\"",
            "notify = [\"sh\"]",
            "openai_base_url = \"https://b.example\"",
            "chatgpt_base_url = \"https://b.example\"",
            "profile = \"p\"\n[profiles.p]\nmodel_provider = \"y\"",
            "[mcp_servers.x]\ncommand = \"sh\"",
            "[shell_environment_policy]\ninherit = \"all\"",
            "[features]\nplugins = true",
            "[otel.exporter.otlp-http]\nendpoint = \"https://b.example\"",
            "some_setting_of_a_later_codex = 1",
        ] {
            assert_ne!(of(""), of(other), "{other}");
        }
        for change in ["name = \"n\"", "env_key = \"K\"", "experimental_bearer_token = \"t\"", "auth.command = \"sh\""]
        {
            assert_ne!(of(PROVIDER), of(&format!("{PROVIDER}{change}\n")), "{change}");
        }
        assert_ne!(of(PROVIDER), of(&PROVIDER.replace("a.example", "b.example")));
        let model = |url: &str, model: &str| {
            of(&format!("[ostler]\nagent = \"model\"\nbase_url = \"{url}\"\nmodel = \"{model}\""))
        };
        assert_eq!(model("https://a.example", "m"), model("https://a.example", "n"));
        assert_ne!(model("https://a.example", "m"), model("https://a.example:8443", "m"));
        assert_ne!(model("https://a.example", "m"), model("http://a.example", "m"));
        let acp = |command: &str, file: &str| {
            of(&format!("[ostler]\nagent = \"acp\"\ncommand = [\"{command}\"]\n[ostler.files]\nf = \"{file}\""))
        };
        assert_eq!(acp("q", "${K}"), acp("q", "${K}"));
        assert_ne!(acp("q", "${K}"), acp("sh", "${K}"));
        assert_ne!(acp("q", "https://a.example ${K}"), acp("q", "https://b.example ${K}"));
        assert_ne!(of("model = \"a\""), model("https://a.example", "m"));
    }

    #[test]
    fn a_config_without_commands_names_no_program_at_any_depth() {
        for good in [
            "",
            "model = \"m\"",
            PROVIDER,
            &format!(
                "{PROVIDER}requires_openai_auth = true\nquery_params = {{ v = \"1\" }}\nhttp_headers = {{ A = \"b\" }}"
            ),
            "[features]\nplugins = false",
            "[ostler]\nagent = \"model\"\nbase_url = \"https://a.example\"\nmodel = \"m\"",
        ] {
            assert!(read(good).check_no_command().is_ok(), "{good}");
        }
        for bad in [
            "[ostler]\nagent = \"acp\"\ncommand = [\"sh\"]",
            "notify = [\"sh\", \"-c\", \"id\"]",
            "[mcp_servers.x]\ncommand = \"sh\"",
            "[mcp_servers.x]\nurl = \"https://a.example\"",
            "[shell_environment_policy]\ninherit = \"all\"",
            "[shell_environment_policy.set]\nLD_PRELOAD = \"x\"",
            "profile = \"p\"\n[profiles.p]\nmodel = \"m\"",
            "[features]\nplugins = true",
            "sandbox_mode = \"danger-full-access\"",
            "approval_policy = \"never\"",
            "openai_base_url = \"https://a.example\"",
            "chatgpt_base_url = \"https://a.example\"",
            "model_instructions_file = \"/etc/passwd\"",
            "log_dir = \"/tmp\"",
            "[hooks]\nstart = [\"sh\"]",
            "[otel]\nexporter = \"otlp-http\"",
            "[model]\ncommand = \"sh\"",
            "[model_providers.x]\nenv_key = \"OSTLER_SECRETS__KEY\"",
            "[model_providers.x]\nenv_http_headers = { A = \"HOME\" }",
            "[model_providers.x.auth]\ncommand = \"sh\"",
            "[model_providers.x.http_headers]\nA = [\"b\"]",
            "[model_providers.x.base_url]\ncommand = \"sh\"",
            "[model_providers]\nx = \"sh\"",
            "some_setting_of_a_later_codex = \"sh\"",
        ] {
            let failure = read(bad).check_no_command().expect_err(bad);
            assert_eq!(failure.rule_name(), Some("profile-command"), "{bad}");
        }
        for named in ["model_instructions_file", "sandbox_mode", "chatgpt_base_url", "approval_policy"] {
            let failure = read(&format!("{named} = \"x\"")).check_no_command().unwrap_err();
            assert!(failure.message.starts_with(&format!("{named} could run")), "{failure:?}");
        }
        let mistyped = read("sk-pl4nted = 1").check_no_command().unwrap_err();
        assert!(!format!("{mistyped:?}").contains("pl4nted"));
    }

    #[test]
    fn every_server_that_a_config_names_is_found() {
        assert_eq!(read(PROVIDER).base_urls(), ["https://a.example/v1"]);
        let model = read("[ostler]\nagent = \"model\"\nbase_url = \"https://b.example\"\nmodel = \"m\"");
        assert_eq!(model.base_urls(), ["https://b.example"]);
        assert!(read("model = \"m\"").base_urls().is_empty());
    }
}
