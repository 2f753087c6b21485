//! A profile's `config.toml`. The table `[ostler]` names the agent and is ours; everything else is Codex's own and
//! reaches its home as it is. What is refused is named by its place, never quoted: a user may have written a key there.

use std::collections::BTreeMap;

use serde::Deserialize;
use utoipa::ToSchema;

use super::{AgentConfig, AgentExtensions, Prices};
use crate::{
    Failure, Rule,
    limits::{NAME_BYTES_MAX, PROFILE_COMMAND_WORDS_MAX, PROFILE_FILE_BYTES_MAX, PROFILE_FILES_MAX},
    schema_documents::schema_document,
};

pub(super) const OUR_TABLE: &str = "ostler";

#[derive(Clone, Debug, PartialEq)]
pub struct ProfileConfig {
    pub agent: AgentConfig,
    /// Of the models it calls, for whichever agent.
    pub prices: Prices,
    /// Tokens that the model can take in at once, its input and its output together. `None` if it is not stated.
    pub context_window: Option<u64>,
    /// Codex's own config.
    pub own: toml::Table,
    /// Files for the agent's home, by relative path, with `${NAME}` where a field of `auth.json` goes.
    pub files: BTreeMap<String, String>,
}

/// The backend of the profile and what Ostler knows about it. The table does not reach the backend.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = OstlerSettings)]
pub(super) struct OurTable {
    /// The backend: `codex`, `acp` (a program that speaks the Agent Client Protocol) or `model` (a model server that Ostler
    /// calls itself).
    #[serde(default)]
    #[schema(pattern = "^(codex|acp|model)$", default = "codex")]
    agent: Option<String>,
    /// Needed for `model`: the address of the model server, the part before `/chat/completions`.
    pub base_url: Option<String>,
    /// Needed for `model`: the name of the model.
    pub model: Option<String>,
    /// Needed for `acp`: the program and its arguments.
    #[schema(max_items = 64)]
    command: Option<Vec<String>>,
    /// For `acp`: folders of its home with its sessions. They outlive the runner.
    #[serde(default)]
    keep: Vec<String>,
    /// For `acp`: the requests beyond the protocol that the program answers. Left out: as its program is known to.
    extensions: Option<AgentExtensions>,
    /// For `acp`: files of its home by their paths. `${NAME}` in a text is a field of `auth.json`, escaped as in a JSON string.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// Prices by the model's name, for costs and budgets; `*` is every model that is not named.
    #[serde(default)]
    pub prices: Prices,
    /// The context window of the model, in tokens.
    #[schema(minimum = 1, maximum = 1_000_000_000)]
    pub context_window: Option<u64>,
}

/// A profile's `config.toml`: the table `ostler`, and beside it the settings of Codex, which Ostler passes on unchanged and does
/// not describe.
#[derive(ToSchema)]
#[schema(as = ProfileConfig)]
pub struct ProfileConfigFile {
    #[schema(value_type = Option<OurTable>)]
    pub ostler: Option<toml::Table>,
}

/// The JSON Schema of [`ProfileConfigFile`] in one document. It has the rules that a schema can express; the rest is checked by
/// [`ProfileConfig::read_new`].
pub fn config_schema() -> serde_json::Value {
    schema_document::<ProfileConfigFile>("Configuration of a provider profile")
}

/// The names of all fields of [`OurTable`].
pub(super) const SETTINGS: [&str; 9] =
    ["agent", "base_url", "command", "context_window", "extensions", "files", "keep", "model", "prices"];

impl OurTable {
    /// Reads the table. The failure names the first field that does not fit.
    pub(super) fn read(table: toml::Value) -> Result<Self, Failure> {
        serde_path_to_error::deserialize(table).map_err(|error| {
            let place = format!("{OUR_TABLE}.{}", error.path());
            refused(&format!("{place} is not a setting we know, or not of its type")).detail("field", place)
        })
    }
}

/// The largest context window that a config can state, in tokens.
const CONTEXT_WINDOW_MAX: u64 = 1_000_000_000;
/// Codex's own name of the setting.
const CODEX_CONTEXT_WINDOW: &str = "model_context_window";

impl ProfileConfig {
    /// An agent without any other settings.
    pub fn of(agent: AgentConfig, own: toml::Table) -> Self {
        let context_window = own.get(CODEX_CONTEXT_WINDOW).and_then(|value| value.as_integer()?.try_into().ok());
        Self { agent, prices: Prices::default(), context_window, own, files: BTreeMap::new() }
    }

    pub fn read(text: &str) -> Result<Self, Failure> {
        let mut own = parse(text)?;
        let Some(ours) = own.remove(OUR_TABLE).map(OurTable::read).transpose()? else {
            return Ok(Self::of(AgentConfig::Codex, own));
        };
        let (files, prices) = (ours.files.clone(), ours.prices.clone());
        check_files(&files)?;
        prices.check()?;
        let stated = ours.context_window;
        check_window(stated)?;
        let config = Self::of(agent(ours)?, own);
        Ok(Self { prices, files, context_window: stated.or(config.context_window), ..config })
    }
}

pub(super) fn parse(text: &str) -> Result<toml::Table, Failure> {
    text.parse().map_err(|error: toml::de::Error| {
        let line = error.span().map_or(0, |span| line_of(text, span.start));
        Failure::invalid(Rule::ConfigToml, format!("config.toml is not TOML; see line {line}")).detail("line", line)
    })
}

/// The number of the line at this byte.
pub(super) fn line_of(text: &str, at: usize) -> usize {
    text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1
}

pub(super) fn check_window(tokens: Option<u64>) -> Result<(), Failure> {
    match tokens.is_none_or(|tokens| (1..=CONTEXT_WINDOW_MAX).contains(&tokens)) {
        true => Ok(()),
        false => Err(refused(&format!("ostler.context_window must be 1 to {CONTEXT_WINDOW_MAX} tokens"))),
    }
}

/// Each agent takes its own settings; one of another agent's is a mistake that would change nothing.
pub(super) fn agent(ours: OurTable) -> Result<AgentConfig, Failure> {
    let OurTable { agent, base_url, model, command, keep, extensions, files, prices: _, context_window: _ } = ours;
    if extensions.is_some() && agent.as_deref() != Some("acp") {
        return Err(refused("ostler.extensions is for acp only"));
    }
    match (agent.as_deref().unwrap_or("codex"), base_url, model, command) {
        ("codex", None, None, None) if files.is_empty() && keep.is_empty() => Ok(AgentConfig::Codex),
        ("codex", ..) => Err(refused("for codex the table [ostler] names the agent and prices, and nothing else")),
        ("acp", None, None, Some(command)) => {
            check_paths("ostler.keep", keep.iter().map(String::as_str))?;
            Ok(AgentConfig::Acp { command: checked_command(command)?, keep, extensions })
        }
        ("acp", _, _, Some(_)) => {
            Err(refused("for acp the table [ostler] takes no base_url or model: those are model's"))
        }
        ("acp", ..) => Err(refused("for acp the table [ostler] needs command, and takes files, keep and extensions")),
        ("model", Some(base_url), Some(model), None) if files.is_empty() && keep.is_empty() => {
            check_url(&base_url)?;
            crate::ids::name("ostler.model", &model)?;
            Ok(AgentConfig::Model { base_url, model })
        }
        ("model", Some(_), Some(_), _) => {
            Err(refused("for model the table [ostler] takes no command, files or keep: those are acp's"))
        }
        ("model", ..) => Err(refused("for model the table [ostler] needs base_url and model")),
        _ => Err(refused("ostler.agent must be codex, acp or model")),
    }
}

fn checked_command(command: Vec<String>) -> Result<Vec<String>, Failure> {
    let fits = |word: &String| !word.is_empty() && word.len() <= 4 * 1024 && !word.contains('\0');
    let enough = (1..=PROFILE_COMMAND_WORDS_MAX).contains(&command.len());
    if enough && command.iter().all(fits) {
        return Ok(command);
    }
    Err(refused(&format!("ostler.command must be 1 to {PROFILE_COMMAND_WORDS_MAX} words, none of them empty")))
}

pub(super) fn check_url(text: &str) -> Result<(), Failure> {
    if text.contains('#') {
        return Err(refused("ostler.base_url must not have a fragment (what begins with #): it is never sent"));
    }
    let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    let authority = host.map(|rest| rest.split(['/', '?', '#']).next().unwrap_or_default()).unwrap_or_default();
    let graphic = text.bytes().all(|b| b.is_ascii_graphic());
    if !authority.is_empty() && !authority.contains('@') && graphic && text.len() <= 10 * NAME_BYTES_MAX {
        return Ok(());
    }
    Err(refused("ostler.base_url must be an http or https URL without a user or password"))
}

/// Paths inside the agent's home.
fn check_paths<'a>(field: &str, mut paths: impl Iterator<Item = &'a str>) -> Result<(), Failure> {
    let inside = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(['\0', '\\']);
    match paths.all(|path| path.len() <= NAME_BYTES_MAX && path.split('/').all(inside)) {
        true => Ok(()),
        false => Err(refused(&format!("a path of {field} must be relative and stay inside the home"))),
    }
}

pub(super) fn check_files(files: &BTreeMap<String, String>) -> Result<(), Failure> {
    if files.len() > PROFILE_FILES_MAX {
        return Err(refused(&format!("ostler.files holds at most {PROFILE_FILES_MAX} files")));
    }
    check_paths("ostler.files", files.keys().map(String::as_str))?;
    for text in files.values() {
        if text.len() > PROFILE_FILE_BYTES_MAX {
            return Err(Failure::too_large(Rule::ProfileFileSize, "ostler.files", text.len(), PROFILE_FILE_BYTES_MAX));
        }
        fill(text, |_| Some(String::new())).ok_or_else(|| {
            refused(
                "in ostler.files, ${NAME} must be closed and name a field of auth.json: letters, digits, underscores",
            )
        })?;
    }
    Ok(())
}

/// Puts values where the template names them. `None` if a name is malformed or unknown.
pub(super) fn fill(template: &str, value: impl Fn(&str) -> Option<String>) -> Option<String> {
    let (mut out, mut rest) = (String::with_capacity(template.len()), template);
    while let Some(start) = rest.find("${") {
        let (name, after) = rest[start + 2..].split_once('}')?;
        let fits = !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        out.push_str(&rest[..start]);
        out.push_str(&value(name).filter(|_| fits)?);
        rest = after;
    }
    out.push_str(rest);
    Some(out)
}

pub(super) fn refused(message: &str) -> Failure {
    Failure::invalid(Rule::ConfigShape, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codex_is_the_agent_unless_the_config_names_another() {
        let plain = ProfileConfig::read("model = \"gpt\"\n").unwrap();
        assert_eq!((&plain.agent, plain.own["model"].as_str()), (&AgentConfig::Codex, Some("gpt")));
        let named =
            ProfileConfig::read("model = \"gpt\"\n[ostler]\nagent = \"codex\"\n[features]\na = true\n").unwrap();
        assert_eq!((&named.agent, named.own.len()), (&AgentConfig::Codex, 2));
        assert!(!named.own.contains_key("ostler"));
        let model = "[ostler]\nagent = \"model\"\nbase_url = \"http://127.0.0.1:11434/v1\"\nmodel = \"m\"\n";
        let (base_url, name) = ("http://127.0.0.1:11434/v1".into(), "m".into());
        assert_eq!(ProfileConfig::read(model).unwrap().agent, AgentConfig::Model { base_url, model: name });
        let acp = "[ostler]\nagent = \"acp\"\ncommand = [\"qwen\", \"--acp\"]\n[ostler.files]\n\".q/s.json\" = '{\"k\":\"${K}\"}'\n";
        let acp = ProfileConfig::read(acp).unwrap();
        assert_eq!(
            acp.agent,
            AgentConfig::Acp { command: vec!["qwen".into(), "--acp".into()], keep: vec![], extensions: None }
        );
        assert_eq!(acp.files[".q/s.json"], r#"{"k":"${K}"}"#);
    }

    #[test]
    fn the_schema_has_every_setting_with_a_description() {
        let schema = config_schema();
        let settings = schema["$defs"]["OstlerSettings"]["properties"].as_object().unwrap();
        assert_eq!(settings.keys().collect::<Vec<_>>(), SETTINGS.iter().collect::<Vec<_>>());
        for (name, setting) in settings {
            // That of a setting with a type of its own is beside the reference to the type.
            let description = setting.get("description").unwrap_or(&setting["oneOf"][0]["description"]);
            assert!(description.is_string(), "{name}: {setting}");
        }
    }

    #[test]
    fn context_window_is_ours_or_that_of_codex() {
        let window = |text: &str| ProfileConfig::read(text).unwrap().context_window;
        assert_eq!(window("model = \"gpt\"\n"), None);
        assert_eq!(window("model_context_window = 272000\n"), Some(272_000));
        assert_eq!(window("model_context_window = 1\n[ostler]\ncontext_window = 32768\n"), Some(32_768));
        let refused = ProfileConfig::read("[ostler]\ncontext_window = 0\n").unwrap_err();
        assert!(refused.message.contains("context_window"), "{}", refused.message);
    }

    #[test]
    fn a_refusal_names_the_setting_that_does_not_fit() {
        let model = "[ostler]\nagent = \"model\"\nmodel = \"m\"\nbase_url = \"https://api.example.com";
        let message = |text: &str| ProfileConfig::read(text).expect_err(text).message;
        assert!(message(&format!("{model}#@evil\"")).contains("fragment"));
        let stray = message(&format!("{model}\"\ncommand = [\"sh\"]"));
        assert!(stray.contains("takes no command"), "{stray}");
        let stray = message("[ostler]\nagent = \"acp\"\ncommand = [\"sh\"]\nmodel = \"m\"");
        assert!(stray.contains("takes no base_url or model"), "{stray}");
    }

    #[test]
    fn what_does_not_fit_is_named_and_not_quoted() {
        for (text, rule) in [
            ("a = sk-pl4nted", "config-toml"),
            ("[ostler]\nagent = \"sk-pl4nted\"", "config-shape"),
            ("[ostler]\nagent = [\"sk-pl4nted\"]", "config-shape"),
            ("[ostler]\nkey = \"sk-pl4nted\"", "config-shape"),
            ("ostler = \"sk-pl4nted\"", "config-shape"),
            ("[ostler]\ncommand = [\"sk-pl4nted\"]", "config-shape"),
            ("[ostler]\nagent = \"acp\"", "config-shape"),
            ("[ostler]\nagent = \"acp\"\ncommand = []", "config-shape"),
            ("[ostler]\nagent = \"acp\"\ncommand = [\"a\"]\nmodel = \"m\"", "config-shape"),
            ("[ostler]\nagent = \"model\"\nmodel = \"m\"", "config-shape"),
            ("[ostler]\nagent = \"model\"\nmodel = \"m\"\nbase_url = \"ftp://x\"", "config-shape"),
            ("[ostler]\nagent = \"model\"\nmodel = \"m\"\nbase_url = \"http://u:sk-pl4nted@x\"", "config-shape"),
            ("[ostler]\nagent = \"acp\"\ncommand = [\"a\"]\n[ostler.files]\n\"../x\" = \"\"", "config-shape"),
            ("[ostler]\nagent = \"acp\"\ncommand = [\"a\"]\n[ostler.files]\n\"/x\" = \"\"", "config-shape"),
            ("[ostler]\nagent = \"acp\"\ncommand = [\"a\"]\n[ostler.files]\nx = \"${A\"", "config-shape"),
            ("[ostler.prices.m]\ninput = 1\noutput = \"sk-pl4nted\"", "config-shape"),
            ("[ostler.prices.m]\ninput = 1", "config-shape"),
            ("[ostler.prices.m]\ninput = -1\noutput = 1", "config-shape"),
            ("[ostler.prices.m]\ninput = nan\noutput = 1", "config-shape"),
            ("[ostler.prices.m]\ninput = 1\noutput = 1\nper = 5", "config-shape"),
        ] {
            let failure = ProfileConfig::read(text).expect_err(text);
            assert_eq!(failure.rule_name(), Some(rule), "{text}: {failure:?}");
            assert!(!format!("{failure:?}").contains("pl4nted"), "{failure:?}");
        }
        let failure = ProfileConfig::read("a = 1\n\nb = \n").unwrap_err();
        assert!(failure.message.contains("line 3"), "{}", failure.message);
    }

    #[test]
    fn a_template_is_filled_by_name() {
        let value = |name: &str| (name == "A_1").then(|| "x".to_owned());
        assert_eq!(fill("a ${A_1} $b ${A_1}", value).as_deref(), Some("a x $b x"));
        for bad in ["${B}", "${A_1", "${}", "${A-1}"] {
            assert_eq!(fill(bad, value), None, "{bad}");
        }
    }
}
