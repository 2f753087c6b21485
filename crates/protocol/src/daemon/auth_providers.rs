//! Providers of models that a client can set up with a key. Each model of a provider becomes a backend profile of its own.

mod catalog;

use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::ToSchema;

use catalog::CUSTOM;
pub use catalog::{AUTH_PROVIDERS, AuthProvider, AuthProviderGroup};

use crate::{
    Failure, FailureKind, Rule,
    ids::name,
    json::hex,
    kernel::provider_profiles::{CONFIG, PutCredential},
    sha256::sha256,
};

/// The shape of the catalog and of the response to an installation.
pub const CATALOG_VERSION: u32 = 1;
/// The one protocol that models are called with.
pub const OPENAI_PROTOCOL: &str = "openai";
/// Maximum number of models of one installation.
pub const INSTALL_MODELS_MAX: usize = 16;
const BASE_URL_BYTES_MAX: usize = 2_000;
/// Hexadecimal digits of the hash in the name of a profile.
const NAME_HASH_DIGITS: usize = 6;
/// Maximum bytes of a profile's name.
const PROFILE_BYTES_MAX: usize = 63;

/// `GET /workspace/auth/providers`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuthProviderCatalog {
    pub v: u32,
    pub workspace_cwd: String,
    pub providers: Vec<AuthProviderDescriptor>,
    pub groups: Vec<AuthProviderGroupEntry>,
}

/// A provider as clients show it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuthProviderDescriptor {
    pub id: String,
    pub label: String,
    pub description: String,
    pub ui_group: String,
    pub protocol: String,
    pub protocol_options: Vec<String>,
    /// Absent if the client must name the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub base_url: Option<AuthBaseUrls>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub models: Vec<AuthProviderModel>,
    /// Always true: a client may name other models.
    pub models_editable: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub documentation_url: Option<String>,
    /// Always false: a backend profile has no such settings.
    pub show_advanced_config: bool,
    /// What a client asks a person for, in order.
    pub steps: Vec<String>,
}

/// The one server of a provider, or those to choose from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum AuthBaseUrls {
    One(String),
    Options(Vec<AuthBaseUrlOption>),
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuthBaseUrlOption {
    pub id: String,
    pub label: String,
    pub url: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AuthProviderModel {
    pub id: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuthProviderGroupEntry {
    pub id: String,
    pub label: String,
    pub description: String,
    pub provider_ids: Vec<String>,
}

/// `POST /workspace/auth/provider`.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstallProvider {
    /// An id of the catalog.
    #[schema(value_type = String, required)]
    pub provider_id: Option<String>,
    /// The provider's key. It is sealed and never shown.
    #[schema(value_type = String, required, write_only)]
    pub api_key: Option<SecretString>,
    /// `openai`, which is also the default.
    pub protocol: Option<String>,
    /// `chat-completions`, which is also the default.
    pub wire_api: Option<String>,
    /// The server, if the catalog names none or several.
    pub base_url: Option<String>,
    /// The models to set up: by default those of the catalog.
    pub model_ids: Option<Vec<String>>,
    /// Not supported, apart from `replaceExisting`, which is the default.
    #[schema(value_type = Option<Object>)]
    pub advanced_config: Option<Map<String, Value>>,
}

/// What an installation did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProviderInstalled {
    pub v: u32,
    pub provider_id: String,
    pub provider_label: String,
    /// The kind of backend, as in `GET /workspace/providers`.
    pub auth_type: String,
    /// The first model's backend profile, as a session's model is set.
    pub model_id: String,
    pub base_url: String,
    pub message: String,
}

/// A checked installation.
#[derive(Debug)]
pub struct ProviderInstall {
    pub provider: &'static AuthProvider,
    pub base_url: String,
    pub models: Vec<InstalledModel>,
    pub api_key: SecretString,
}

/// A model and the name of its profile.
#[derive(Clone, Debug, PartialEq)]
pub struct InstalledModel {
    pub model: String,
    pub profile: String,
}

impl InstallProvider {
    /// Checks everything that needs no configuration of the server. Which hosts may be connected to is for the server to check.
    pub fn check(self) -> Result<ProviderInstall, Failure> {
        let (Some(provider_id), Some(api_key)) = (self.provider_id, self.api_key) else {
            return Err(invalid_request("providerId and apiKey are required"));
        };
        if provider_id.trim().is_empty() || api_key.expose_secret().trim().is_empty() {
            return Err(invalid_request("providerId and apiKey are required"));
        }
        let provider = AuthProvider::find(provider_id.trim()).ok_or_else(|| {
            let ids: Vec<_> = AUTH_PROVIDERS.iter().map(|provider| provider.id).chain([CUSTOM]).collect();
            Failure::invalid(Rule::UnsupportedProvider, "there is no such provider").detail("supportedProviders", ids)
        })?;
        if self.protocol.as_deref().is_some_and(|protocol| protocol.trim() != OPENAI_PROTOCOL) {
            let message = format!("protocol must be {OPENAI_PROTOCOL}");
            return Err(Failure::invalid(Rule::UnsupportedProtocol, message));
        }
        if self.wire_api.as_deref().is_some_and(|wire_api| wire_api != "chat-completions") {
            return Err(not_implemented("wireApi: models are called with chat-completions only"));
        }
        let advanced = self.advanced_config.unwrap_or_default();
        if let Some(setting) = advanced.keys().find(|setting| *setting != "replaceExisting") {
            let setting = crate::text::clip(setting, 64);
            return Err(not_implemented(&format!("advancedConfig.{setting} is not supported")));
        }
        let base_url = chosen_url(provider, self.base_url.as_deref())?;
        let models = chosen_models(provider, &base_url, self.model_ids)?;
        Ok(ProviderInstall { provider, base_url, models, api_key })
    }
}

impl ProviderInstall {
    /// The credential and the config of a model's profile. Both are set at once, because a key belongs to its destination.
    pub fn put(&self, model: &InstalledModel) -> Result<PutCredential, Failure> {
        let mut ours = toml::Table::new();
        for (key, value) in [("agent", "model"), ("base_url", &self.base_url), ("model", &model.model)] {
            ours.insert(key.to_owned(), toml::Value::String(value.to_owned()));
        }
        let config = toml::Table::from_iter([("ostler".to_owned(), toml::Value::Table(ours))]);
        let config = toml::to_string(&config).map_err(Failure::internal)?;
        let files = [(CONFIG.to_owned(), config.into())].into();
        Ok(PutCredential { api_key: Some(self.api_key.clone()), files: Some(files), resource_version: None })
    }
}

pub fn invalid_request(message: &str) -> Failure {
    Failure::invalid(Rule::InvalidRequest, message)
}

fn not_implemented(message: &str) -> Failure {
    Failure::new(FailureKind::NotImplemented, message)
}

fn invalid_url(message: &str) -> Failure {
    Failure::invalid(Rule::InvalidBaseUrl, message)
}

/// The server that the key is for. A provider of the catalog has its own servers only, so that its name never sends a key elsewhere.
fn chosen_url(provider: &AuthProvider, requested: Option<&str>) -> Result<String, Failure> {
    let requested = requested.map(|url| url.trim().trim_end_matches('/')).filter(|url| !url.is_empty());
    let Some(url) = requested else {
        let first = provider.base_urls.first().map(|option| option.url.to_owned());
        return first.ok_or_else(|| invalid_url("baseUrl is required for this provider"));
    };
    if url.len() > BASE_URL_BYTES_MAX || url.contains(['?', '#']) {
        let message = "baseUrl must be at most 2000 bytes, without a query and a fragment";
        return Err(invalid_url(message));
    }
    let is_own = provider.base_urls.iter().any(|option| option.url == url);
    match provider.base_urls.is_empty() || is_own {
        true => Ok(url.to_owned()),
        false => Err(invalid_url("baseUrl is not a server of this provider; use the custom provider")),
    }
}

fn chosen_models(
    provider: &AuthProvider,
    base_url: &str,
    requested: Option<Vec<String>>,
) -> Result<Vec<InstalledModel>, Failure> {
    let requested = requested.filter(|models| !models.is_empty());
    let requested = requested.unwrap_or_else(|| provider.models.iter().map(|model| (*model).to_owned()).collect());
    if !(1..=INSTALL_MODELS_MAX).contains(&requested.len()) {
        return Err(invalid_request(&format!("modelIds must name 1 to {INSTALL_MODELS_MAX} models")));
    }
    let mut models: Vec<InstalledModel> = vec![];
    for model in requested {
        let model = name("modelIds", model.trim()).map_err(|failure| invalid_request(&failure.message))?;
        let installed = InstalledModel { model: model.to_owned(), profile: profile_name(provider, base_url, model) };
        if !models.contains(&installed) {
            models.push(installed);
        }
    }
    Ok(models)
}

/// The name of a model's profile: a slug of provider and model. If the slug does not determine them, it ends with a hash.
fn profile_name(provider: &AuthProvider, base_url: &str, model: &str) -> String {
    let prefix = provider.id.to_ascii_lowercase();
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let words = model.to_ascii_lowercase();
    let words: Vec<_> = words.split(|c: char| !is_plain(c)).filter(|word| !word.is_empty()).collect();
    let words = words.join("-");
    let whole = format!("{prefix}-{words}");
    let is_custom = provider.base_urls.is_empty();
    if words == model && whole.len() <= PROFILE_BYTES_MAX && !is_custom {
        return whole;
    }
    let server = if is_custom { base_url } else { "" };
    let hash = hex(&sha256(format!("{server}\0{model}")));
    let prefix = if is_custom { "custom" } else { prefix.as_str() };
    let room = PROFILE_BYTES_MAX - NAME_HASH_DIGITS - prefix.len() - 2;
    let words = words[..words.len().min(room)].trim_end_matches('-');
    let middle = if words.is_empty() { "model" } else { words };
    format!("{prefix}-{middle}-{}", &hash[..NAME_HASH_DIGITS])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::{
        ids::slug,
        kernel::provider_profiles::{Credential, ProfileOwner},
    };

    fn check(request: Value) -> Result<ProviderInstall, Failure> {
        serde_json::from_value::<InstallProvider>(request).unwrap().check()
    }

    fn rule(request: Value) -> String {
        let failure = check(request).unwrap_err();
        assert!(!format!("{failure:?}").contains("pl4nted"), "{failure:?}");
        failure.rule_name().map_or_else(|| failure.kind.as_str().to_owned(), str::to_owned)
    }

    #[test]
    fn a_key_alone_sets_up_a_provider_of_the_catalog() {
        let install = check(json!({"providerId": "deepseek", "apiKey": "pl4nted"})).unwrap();
        assert_eq!(install.base_url, "https://api.deepseek.com");
        let profiles: Vec<_> = install.models.iter().map(|model| model.profile.as_str()).collect();
        assert_eq!(profiles, ["deepseek-deepseek-v4-pro", "deepseek-deepseek-v4-flash"]);
        let put = install.put(&install.models[0]).unwrap();
        let credential = Credential::default().put("deepseek-deepseek-v4-pro", &put).unwrap();
        assert!(credential.home(&ProfileOwner::Operator, "deepseek-deepseek-v4-pro").is_ok());
        assert!(!format!("{install:?}").contains("pl4nted"));
    }

    #[test]
    fn each_mistake_has_its_code_and_the_key_is_not_quoted() {
        let with = |more: Value| {
            let mut request = json!({"providerId": "deepseek", "apiKey": "pl4nted"});
            request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            request
        };
        for (request, expected) in [
            (json!({}), "invalid-request"),
            (json!({"providerId": "deepseek"}), "invalid-request"),
            (json!({"providerId": " ", "apiKey": "pl4nted"}), "invalid-request"),
            (with(json!({"apiKey": "  "})), "invalid-request"),
            (with(json!({"providerId": "nobody"})), "unsupported-provider"),
            (with(json!({"protocol": "anthropic"})), "unsupported-protocol"),
            (with(json!({"wireApi": "responses"})), "not-implemented"),
            (with(json!({"advancedConfig": {"maxTokens": 5}})), "not-implemented"),
            (with(json!({"baseUrl": "https://evil.example"})), "invalid-base-url"),
            (with(json!({"providerId": "custom-openai-compatible"})), "invalid-base-url"),
            (with(json!({"providerId": "custom", "baseUrl": "https://a.example/v1?x=1"})), "invalid-base-url"),
            (with(json!({"providerId": "custom", "baseUrl": "https://a.example/v1"})), "invalid-request"),
            (with(json!({"modelIds": [""]})), "invalid-request"),
            (with(json!({"modelIds": ["a\nb"]})), "invalid-request"),
            (with(json!({"modelIds": vec!["m"; INSTALL_MODELS_MAX + 1]})), "invalid-request"),
        ] {
            assert_eq!(rule(request.clone()), expected, "{request}");
        }
    }

    #[test]
    fn one_of_several_servers_can_be_chosen() {
        let base_url = |request: Value| check(request).unwrap().base_url;
        let minimax = json!({"providerId": "minimax", "apiKey": "k"});
        assert_eq!(base_url(minimax), "https://api.minimax.io/v1");
        let china = json!({"providerId": "minimax", "apiKey": "k", "baseUrl": " https://api.minimaxi.com/v1/ "});
        assert_eq!(base_url(china), "https://api.minimaxi.com/v1");
    }

    #[test]
    fn the_catalog_is_consistent() {
        for provider in AUTH_PROVIDERS {
            assert!(AuthProvider::find(provider.id).is_some());
            assert!(provider.base_urls.iter().all(|option| option.url.starts_with("https://")));
            assert!(provider.models.len() <= INSTALL_MODELS_MAX);
            assert_eq!(provider.base_urls.is_empty(), provider.models.is_empty(), "{}", provider.id);
        }
        let grouped: usize = AuthProviderGroup::entries().iter().map(|group| group.provider_ids.len()).sum();
        assert_eq!(grouped, AUTH_PROVIDERS.len());
    }

    proptest! {
        #[test]
        fn every_model_has_a_profile_of_its_own(first in "[ -~]{1,120}", second in "[ -~]{1,120}", at in 0..AUTH_PROVIDERS.len()) {
            let provider = &AUTH_PROVIDERS[at];
            let (a, b) = (profile_name(provider, "https://a.example", &first), profile_name(provider, "https://a.example", &second));
            prop_assert!(slug("profile", &a).is_ok(), "{}", a);
            prop_assert_eq!(a == b, first == second);
        }
    }
}
