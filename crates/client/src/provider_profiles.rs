//! Provider profiles: list, get, set, try, delete. For operators and platforms.

use bytes::Bytes;
use http::Method;
use ostler_protocol::{
    Failure,
    provider_profiles::{
        ProfileConfigText, ProviderProfile, ProviderProfileList, PutConfig, PutCredential, ValidateProfile, Validation,
    },
};

use crate::{Client, answer, json, path::Path};

fn of(profile: &str, rest: &[&str]) -> Path {
    Path::api(&[&["provider-profiles", profile], rest].concat())
}

impl Client {
    pub async fn list_provider_profiles(&self) -> Result<ProviderProfileList, Failure> {
        self.get(Path::api(&["provider-profiles"])).await
    }

    pub async fn get_provider_profile(&self, profile: &str) -> Result<ProviderProfile, Failure> {
        self.get(of(profile, &[])).await
    }

    /// Idempotent.
    pub async fn delete_provider_profile(&self, profile: &str) -> Result<ProviderProfile, Failure> {
        answer::parse(&self.call(Method::DELETE, of(profile, &[]), Bytes::new()).await?)
    }

    pub async fn put_credential(&self, profile: &str, credential: &PutCredential) -> Result<ProviderProfile, Failure> {
        answer::parse(&self.call(Method::PUT, of(profile, &["credential"]), json(credential)?).await?)
    }

    pub async fn get_profile_config(&self, profile: &str) -> Result<ProfileConfigText, Failure> {
        self.get(of(profile, &["config"])).await
    }

    pub async fn put_profile_config(&self, profile: &str, config: &PutConfig) -> Result<ProviderProfile, Failure> {
        answer::parse(&self.call(Method::PUT, of(profile, &["config"]), json(config)?).await?)
    }

    /// Answers at once; [`Client::get_validation`] says how it went.
    pub async fn validate_profile(&self, profile: &str, asked: &ValidateProfile) -> Result<Validation, Failure> {
        self.post(of(profile, &["validate"]), asked).await
    }

    pub async fn get_validation(&self, profile: &str, validation_id: &str) -> Result<Validation, Failure> {
        self.get(of(profile, &["validations", validation_id])).await
    }
}
