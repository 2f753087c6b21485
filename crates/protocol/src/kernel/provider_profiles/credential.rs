//! A profile's secret: a few files by name. Rules over it are pure: what a put makes of it, what is missing, what belongs
//! into the agent's home, and which values must never be seen. Nothing here prints a value.

use std::collections::BTreeMap;

use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;

use super::{AgentConfig, Destination, ProfileConfig, ProfileOwner, PutCredential, config::fill, unavailable};
use crate::{
    Failure, Rule,
    json::hex,
    kernel::backends::secret_keys,
    limits::{API_KEY_BYTES_MAX, PROFILE_FILE_BYTES_MAX},
    problems::Problems,
    redaction::is_secret_field,
    sha256::sha256,
};

pub const AUTH: &str = "auth.json";
pub const CONFIG: &str = "config.toml";
pub const MODEL_CATALOG: &str = "model-catalog.json";
/// The field of `auth.json` that a key alone becomes.
const KEY_FIELD: &str = "OPENAI_API_KEY";
/// What Codex gets for its own provider when only a key is given. It would else ask for a catalogue of plugins.
const CODEX_CONFIG: &str = "[features]\nplugins = false\napps = false\n";
/// A value of `auth.json` of this length and one word is taken for a secret, whatever its field is called.
const VALUE_BYTES_MIN: usize = 16;
/// Shorter ones would be found everywhere.
const NAMED_VALUE_BYTES_MIN: usize = 12;
const HASH_SUFFIX_DIGITS: usize = 8;

#[derive(Clone, Debug, Default)]
pub struct Credential {
    files: BTreeMap<String, SecretString>,
}

impl Credential {
    pub fn new(files: BTreeMap<String, SecretString>) -> Self {
        Self { files }
    }

    pub fn files(&self) -> &BTreeMap<String, SecretString> {
        &self.files
    }

    pub fn keys(&self) -> Vec<String> {
        self.files.keys().cloned().collect()
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        self.files.get(name).map(ExposeSecret::expose_secret)
    }

    /// What a put makes of it. Every file is checked before any is changed.
    pub fn put(mut self, profile: &str, request: &PutCredential) -> Result<Self, Failure> {
        let mut problems = Problems::default();
        let mut files = request.files.clone().unwrap_or_default();
        match (&request.api_key, files.contains_key(AUTH)) {
            (Some(key), false) => files.extend(problems.note(auth_of(key)).map(|auth| (AUTH.to_owned(), auth))),
            (None, true) => {}
            (Some(_), true) => {
                problems.note(Err::<(), _>(refused("give either apiKey or auth.json: the one becomes the other")));
            }
            (None, false) => {
                let message = "give apiKey or auth.json; the config alone has a path of its own";
                problems.note(Err::<(), _>(refused(message)));
            }
        }
        let known = secret_keys(profile);
        if files.keys().any(|name| !known.contains(&name.as_str())) {
            let message = format!("the files of this profile are {}", known.join(", "));
            problems.note(Err::<(), _>(refused(&message)));
        }
        for (name, text) in files.iter().filter(|(name, _)| known.contains(&name.as_str())) {
            problems.note(check_file(name, text.expose_secret()));
        }
        problems.check()?;
        self.files.extend(files);
        if profile == "codex" && !self.files.contains_key(CONFIG) {
            self.files.insert(CONFIG.to_owned(), CODEX_CONFIG.to_owned().into());
        }
        Ok(self)
    }

    /// Replaces `config.toml`. A stored credential was given for the destination that the config named when it was set;
    /// under another destination it is removed. Returns whether it was.
    pub fn put_config(mut self, text: &str) -> Result<(Self, bool), Failure> {
        check_file(CONFIG, text)?;
        let destination = |text: &str| ProfileConfig::read(text).ok().map(|config| Destination::of(&config));
        let same = self.text(CONFIG).is_some_and(|before| destination(before) == destination(text));
        let dropped = !same && self.files.remove(AUTH).is_some();
        self.files.insert(CONFIG.to_owned(), text.to_owned().into());
        Ok((self, dropped))
    }

    /// The stored config; without one, the default that the profile's name implies.
    pub fn config(&self, profile: &str) -> Result<ProfileConfig, Failure> {
        if let Some(text) = self.text(CONFIG) {
            return ProfileConfig::read(text);
        }
        let agent = AgentConfig::of_profile(profile).ok_or_else(|| {
            let message = format!("the profile {profile:?} has no config that names its model server");
            unavailable(Rule::ProfileConfigMissing, profile, message)
        })?;
        Ok(ProfileConfig::of(agent, toml::Table::new()))
    }

    /// What its agent needs and lacks. Only Codex has fixed needs; the configs of others name what they need.
    pub fn missing(&self, profile: &str) -> Vec<&'static str> {
        let needed = match self.config(profile).map(|config| config.agent) {
            Ok(AgentConfig::Codex) => secret_keys(profile),
            Ok(_) => vec![],
            Err(_) => vec![CONFIG],
        };
        needed.into_iter().filter(|name| !self.files.contains_key(*name)).collect()
    }

    /// The files of the agent's home, by relative path. Each agent finds what it reads, and nothing else.
    pub fn home(
        &self,
        owner: &ProfileOwner,
        profile: &str,
    ) -> Result<(ProfileConfig, BTreeMap<String, SecretString>), Failure> {
        let missing = self.missing(profile);
        if !missing.is_empty() {
            let message = format!("the profile {profile:?} is not set up: {}", next_command(owner, profile, &missing));
            return Err(owner.unavailable(Rule::ProfileSecretMissing, profile, message));
        }
        let config = self.config(profile)?;
        let mut files = BTreeMap::new();
        match &config.agent {
            AgentConfig::Codex => {
                files.clone_from(&self.files);
                let own = toml::to_string(&config.own).map_err(Failure::internal)?;
                files.insert(CONFIG.to_owned(), own.into());
            }
            AgentConfig::Model { .. } => files.extend(self.files.get(AUTH).map(|text| (AUTH.to_owned(), text.clone()))),
            AgentConfig::Acp { .. } => {
                for (path, template) in &config.files {
                    let filled = fill(template, |name| self.field(name)).ok_or_else(|| {
                        let message = format!("{path} needs a field that auth.json of {profile:?} does not have");
                        owner.unavailable(Rule::ProfileTemplate, profile, message)
                    })?;
                    files.insert(path.clone(), filled.into());
                }
            }
            AgentConfig::Scripted => {}
        }
        Ok((config, files))
    }

    /// A field of `auth.json`, escaped as it is inside a JSON string.
    fn field(&self, name: &str) -> Option<String> {
        let auth: Value = serde_json::from_str(self.text(AUTH)?).ok()?;
        let quoted = serde_json::to_string(auth.get(name)?.as_str()?).ok()?;
        Some(quoted[1..quoted.len() - 1].to_owned())
    }

    /// The end of a file's hash.
    pub fn hash_suffix(&self, name: &str) -> Option<String> {
        let hash = hex(&sha256(self.text(name)?.as_bytes()));
        Some(hash[hash.len() - HASH_SUFFIX_DIGITS..].to_owned())
    }

    /// The values that must be seen nowhere.
    pub fn values(&self) -> Vec<SecretString> {
        let mut values = vec![];
        if let Some(auth) = self.text(AUTH).and_then(|text| serde_json::from_str::<Value>(text).ok()) {
            each_text(&auth, "", &mut |field, text| {
                let one_word = text.len() >= VALUE_BYTES_MIN && !text.contains(char::is_whitespace);
                if one_word || (text.len() >= NAMED_VALUE_BYTES_MIN && is_named(field, text)) {
                    values.push(text.to_owned().into());
                }
            });
        }
        let config = self.text(CONFIG).and_then(|text| text.parse::<toml::Table>().ok());
        if let Some(config) = config.and_then(|table| serde_json::to_value(table).ok()) {
            each_text(&config, "", &mut |field, text| {
                if text.len() >= NAMED_VALUE_BYTES_MIN && (field == "http_headers" || is_named(field, text)) {
                    values.push(text.to_owned().into());
                }
            });
        }
        values
    }
}

/// The command that adds the missing files. A key alone is enough for `codex`: its config is written with it.
fn next_command(owner: &ProfileOwner, profile: &str, missing: &[&str]) -> String {
    let tenant = owner.command_option();
    if missing == [CONFIG] {
        let contents = match profile {
            "model" => "write base_url and model to FILE",
            _ => "it needs a config.toml",
        };
        return format!("{contents}: ostler profiles config {profile}{tenant} --file FILE");
    }
    let config = if missing.contains(&CONFIG) && profile != "codex" { " --config FILE" } else { "" };
    let catalog = if missing.contains(&MODEL_CATALOG) { " --model-catalog FILE" } else { "" };
    format!("ostler profiles set {profile}{tenant}{config}{catalog} < key.txt")
}

fn is_named(field: &str, text: &str) -> bool {
    is_secret_field(field, &serde_json::to_string(text).unwrap_or_default())
}

/// Every text in a value, with the name of its field; in a table of headers, with the table's.
fn each_text(value: &Value, field: &str, see: &mut impl FnMut(&str, &str)) {
    match value {
        Value::String(text) => see(field, text),
        Value::Array(items) => items.iter().for_each(|item| each_text(item, field, see)),
        Value::Object(fields) => {
            for (name, inner) in fields {
                each_text(inner, if field == "http_headers" { field } else { name }, see);
            }
        }
        _ => {}
    }
}

fn auth_of(key: &SecretString) -> Result<SecretString, Failure> {
    let key = key.expose_secret().trim();
    let fits = !key.is_empty() && key.bytes().all(|b| b.is_ascii_graphic());
    if key.len() > API_KEY_BYTES_MAX {
        return Err(Failure::too_large(Rule::ApiKeySize, "apiKey", key.len(), API_KEY_BYTES_MAX));
    }
    if !fits {
        return Err(refused("apiKey must be one printable word"));
    }
    Ok(format!("{}\n", serde_json::json!({KEY_FIELD: key})).into())
}

fn check_file(name: &str, text: &str) -> Result<(), Failure> {
    if text.len() > PROFILE_FILE_BYTES_MAX {
        return Err(Failure::too_large(Rule::ProfileFileSize, name, text.len(), PROFILE_FILE_BYTES_MAX));
    }
    if name == CONFIG {
        return ProfileConfig::read_new(text).map(drop);
    }
    match serde_json::from_str::<serde_json::Map<String, Value>>(text) {
        Ok(_) => Ok(()),
        Err(_) => {
            Err(Failure::invalid(Rule::CredentialJson, format!("{name} must be a JSON object")).detail("file", name))
        }
    }
}

fn refused(message: &str) -> Failure {
    Failure::invalid(Rule::CredentialShape, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "hunter2-\"quoted\"-key";
    const MODEL: &str = "[ostler]\nagent = \"model\"\nbase_url = \"http://127.0.0.1:1/v1\"\nmodel = \"m\"\n";

    fn key(text: &str) -> PutCredential {
        PutCredential { api_key: Some(text.to_owned().into()), ..PutCredential::default() }
    }

    fn files(files: &[(&str, &str)]) -> PutCredential {
        let files = files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned().into())).collect();
        PutCredential { files: Some(files), ..PutCredential::default() }
    }

    fn rule(result: Result<Credential, Failure>) -> String {
        let failure = result.expect_err("refused");
        assert!(!format!("{failure:?}").contains("pl4nted"), "{failure:?}");
        failure.rule_name().unwrap().to_owned()
    }

    #[test]
    fn a_key_alone_is_enough_for_codex_and_for_no_other_profile() {
        let codex = Credential::default().put("codex", &key(" sk-1\n")).unwrap();
        assert_eq!(codex.text(AUTH), Some("{\"OPENAI_API_KEY\":\"sk-1\"}\n"));
        assert_eq!(codex.missing("codex"), [""; 0]);
        // Without a config of its own Codex would carry this key to another provider.
        let deepseek = Credential::default().put("deepseek", &key("sk-1")).unwrap();
        assert_eq!(deepseek.missing("deepseek"), [CONFIG]);
        assert_eq!(Credential::default().missing("dsflash-go"), ["auth.json", "config.toml", "model-catalog.json"]);
        assert_eq!(Credential::default().missing("model"), [CONFIG]);
    }

    #[test]
    fn the_message_about_a_missing_file_is_the_command_that_adds_it() {
        let message =
            |credential: Credential, profile| credential.home(&ProfileOwner::Operator, profile).unwrap_err().message;
        let none = Credential::default;
        for (credential, profile, command) in [
            (none(), "codex", "not set up: ostler profiles set codex < key.txt"),
            (none(), "deepseek", "ostler profiles set deepseek --config FILE < key.txt"),
            (none(), "dsflash-go", "ostler profiles set dsflash-go --config FILE --model-catalog FILE < key.txt"),
            (none(), "model", "write base_url and model to FILE: ostler profiles config model --file FILE"),
            (none().put("deepseek", &key("k")).unwrap(), "deepseek", "ostler profiles config deepseek --file FILE"),
        ] {
            assert!(message(credential, profile).ends_with(command), "{profile}");
        }
        let tenants = none().home(&ProfileOwner::of(Some("acme")), "mine").unwrap_err();
        assert!(
            tenants.message.ends_with("ostler profiles set mine --tenant acme --config FILE < key.txt"),
            "{tenants}"
        );
        assert_eq!(tenants.details.unwrap()["tenantId"], "acme");
    }

    #[test]
    fn a_new_config_keeps_the_credential_and_a_new_credential_the_config() {
        let both =
            Credential::default().put("deepseek", &files(&[(AUTH, "{\"A\":\"1\"}"), (CONFIG, "a = 1")])).unwrap();
        let (configured, dropped) = both.clone().put_config("model = \"m\"\na = 1").unwrap();
        assert_eq!((configured.text(AUTH), dropped), (Some("{\"A\":\"1\"}"), false));
        assert_eq!(configured.text(CONFIG), Some("model = \"m\"\na = 1"));
        let keyed = both.put("deepseek", &key("k")).unwrap();
        assert_eq!((keyed.text(AUTH), keyed.text(CONFIG)), (Some("{\"OPENAI_API_KEY\":\"k\"}\n"), Some("a = 1")));
        let with_config = PutCredential { api_key: key("l").api_key, ..files(&[(CONFIG, "a = 3")]) };
        let at_once = keyed.put("deepseek", &with_config).unwrap();
        assert_eq!((at_once.text(AUTH), at_once.text(CONFIG)), (Some("{\"OPENAI_API_KEY\":\"l\"}\n"), Some("a = 3")));
    }

    #[test]
    fn another_destination_drops_the_credential() {
        let set = |config: &str| Credential::default().put("mine", &files(&[(AUTH, "{}"), (CONFIG, config)])).unwrap();
        for (before, after) in [
            (MODEL, MODEL.replace("127.0.0.1:1", "evil.example")),
            (MODEL, MODEL.replace("http:", "https:")),
            (MODEL, "[ostler]\nagent = \"acp\"\ncommand = [\"sh\"]".to_owned()),
            (MODEL, "model = \"m\"".to_owned()),
            ("model = \"m\"", "model_provider = \"evil\"".to_owned()),
        ] {
            let (changed, dropped) = set(before).put_config(&after).unwrap();
            assert_eq!((changed.text(AUTH), dropped), (None, true), "{after}");
            assert!(!set(before).put_config(before).unwrap().1, "{before}");
            let (again, dropped) = changed.put_config(before).unwrap();
            assert_eq!((again.text(AUTH), dropped), (None, false), "what is gone does not come back");
        }
        // A key that was set before there was a config was given for no destination.
        let keyed = Credential::default().put("mine", &key("k")).unwrap();
        assert_eq!(keyed.put_config(MODEL).unwrap().0.text(AUTH), None);
        let at_once = set(MODEL).put("mine", &files(&[(AUTH, "{\"B\":\"2\"}"), (CONFIG, "model = \"m\"")])).unwrap();
        assert_eq!(at_once.text(AUTH), Some("{\"B\":\"2\"}"), "one that comes with the config is for it");
    }

    #[test]
    fn what_is_no_credential_is_refused_without_being_quoted() {
        let both = PutCredential { api_key: key("pl4nted").api_key, ..files(&[(AUTH, "{}")]) };
        let long = "x".repeat(API_KEY_BYTES_MAX + 1);
        for (request, wanted) in [
            (PutCredential::default(), "credential-shape"),
            (both, "credential-shape"),
            (key(""), "credential-shape"),
            (key("pl4nted two words"), "credential-shape"),
            (key(&long), "api-key-size"),
            (files(&[(CONFIG, "a = 1")]), "credential-shape"),
            (files(&[(AUTH, "pl4nted")]), "credential-json"),
            (files(&[(AUTH, "[\"pl4nted\"]")]), "credential-json"),
            (files(&[(AUTH, "{}"), (CONFIG, "pl4nted")]), "config-toml"),
            (files(&[(AUTH, "{}"), ("id_rsa", "pl4nted")]), "credential-shape"),
            (files(&[(AUTH, "{}"), ("model-catalog.json", "{}")]), "credential-shape"),
            (files(&[(AUTH, &format!("{{\"a\":\"{}\"}}", "x".repeat(PROFILE_FILE_BYTES_MAX)))]), "profile-file-size"),
        ] {
            assert_eq!(rule(Credential::default().put("codex", &request)), wanted);
        }
    }

    #[test]
    fn each_agent_finds_in_its_home_what_it_reads_and_nothing_else() {
        let auth = serde_json::json!({"OPENAI_API_KEY": KEY}).to_string();
        let names = |config: &str| {
            let credential = Credential::default().put("mine", &files(&[(AUTH, &auth), (CONFIG, config)])).unwrap();
            credential.home(&ProfileOwner::Operator, "mine").unwrap().1
        };
        let codex = names("model = \"m\"\n[ostler]\nagent = \"codex\"\n");
        assert_eq!(codex.keys().collect::<Vec<_>>(), [AUTH, CONFIG]);
        assert_eq!(codex[CONFIG].expose_secret(), "model = \"m\"\n");
        assert_eq!(names(MODEL).keys().collect::<Vec<_>>(), [AUTH]);
        let acp = "[ostler]\nagent = \"acp\"\ncommand = [\"q\"]\n[ostler.files]\n\".q/s.json\" = '{\"k\":\"${OPENAI_API_KEY}\"}'\n";
        let acp = names(acp);
        let settings: Value = serde_json::from_str(acp[".q/s.json"].expose_secret()).unwrap();
        assert_eq!((acp.len(), settings["k"].as_str()), (1, Some(KEY)));
    }

    #[test]
    fn a_home_that_would_lack_something_is_not_made() {
        let rule = |credential: Credential, profile| {
            credential.home(&ProfileOwner::Operator, profile).unwrap_err().rule_name().unwrap().to_owned()
        };
        assert_eq!(rule(Credential::default(), "codex"), "profile-secret-missing");
        assert_eq!(rule(Credential::default(), "model"), "profile-secret-missing");
        let acp = "[ostler]\nagent = \"acp\"\ncommand = [\"q\"]\n[ostler.files]\nx = '${A}'\n";
        assert_eq!(rule(Credential::default().put_config(acp).unwrap().0, "mine"), "profile-template");
        let local = Credential::default().put_config(MODEL).unwrap().0;
        assert_eq!(
            local.home(&ProfileOwner::Operator, "model").unwrap().1.len(),
            0,
            "a local model server wants no key"
        );
    }

    #[test]
    fn the_values_of_a_secret_are_known() {
        let auth = serde_json::json!({"auth_mode": "chatgpt", "OPENAI_API_KEY": "short1", "tokens": {"access_token": "a".repeat(20)},
            "other": "0123456789abcdef", "note": "a sentence of several words"});
        let config = "model = \"a-model-with-a-long-name\"\n[model_providers.x]\nexperimental_bearer_token = \"0123456789abcdefX\"\n\
            base_url = \"http://127.0.0.1/a-long-path\"\n[model_providers.x.http_headers]\nX-Org = \"org-123\"\n";
        let credential =
            Credential::default().put("deepseek", &files(&[(AUTH, &auth.to_string()), (CONFIG, config)])).unwrap();
        let mut values: Vec<_> = credential.values().iter().map(|value| value.expose_secret().to_owned()).collect();
        values.sort();
        assert_eq!(
            values,
            ["0123456789abcdef", "0123456789abcdefX", &"a".repeat(20)],
            "short ones are words of every text"
        );
        assert!(!format!("{credential:?}").contains("short1"));
    }
}
