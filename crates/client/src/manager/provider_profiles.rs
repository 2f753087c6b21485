//! Provider profiles: list, get, set, try, delete, and who changed them. For operators and platforms.

use bytes::Bytes;
use http::Method;
use ostler_protocol::{
    Failure,
    provider_profiles::{
        ListProfileChanges, ProfileChangePage, ProfileConfigText, ProfileScope, ProviderProfile, ProviderProfileList,
        PutConfig, PutCredential, ValidateProfile, Validation,
    },
};

use crate::{Client, answer, json, path::Path};

fn of(profile: &str, rest: &[&str]) -> Path {
    Path::api(&[&["provider-profiles", profile], rest].concat())
}

impl Client {
    pub async fn list_provider_profiles(&self, scope: &ProfileScope) -> Result<ProviderProfileList, Failure> {
        self.get(Path::api(&["provider-profiles"]).query(scope)?).await
    }

    pub async fn get_provider_profile(&self, profile: &str, scope: &ProfileScope) -> Result<ProviderProfile, Failure> {
        self.get(of(profile, &[]).query(scope)?).await
    }

    /// Idempotent.
    pub async fn delete_provider_profile(
        &self,
        profile: &str,
        scope: &ProfileScope,
    ) -> Result<ProviderProfile, Failure> {
        answer::parse(&self.call(Method::DELETE, of(profile, &[]).query(scope)?, Bytes::new()).await?)
    }

    pub async fn put_credential(
        &self,
        profile: &str,
        scope: &ProfileScope,
        credential: &PutCredential,
    ) -> Result<ProviderProfile, Failure> {
        let path = of(profile, &["credential"]).query(scope)?;
        answer::parse(&self.call(Method::PUT, path, json(credential)?).await?)
    }

    pub async fn get_profile_config(&self, profile: &str, scope: &ProfileScope) -> Result<ProfileConfigText, Failure> {
        self.get(of(profile, &["config"]).query(scope)?).await
    }

    pub async fn put_profile_config(
        &self,
        profile: &str,
        scope: &ProfileScope,
        config: &PutConfig,
    ) -> Result<ProviderProfile, Failure> {
        let path = of(profile, &["config"]).query(scope)?;
        answer::parse(&self.call(Method::PUT, path, json(config)?).await?)
    }

    /// Answers at once; [`Client::get_validation`] says how it went.
    pub async fn validate_profile(&self, profile: &str, asked: &ValidateProfile) -> Result<Validation, Failure> {
        self.post(of(profile, &["validate"]), asked).await
    }

    pub async fn get_validation(&self, profile: &str, validation_id: &str) -> Result<Validation, Failure> {
        self.get(of(profile, &["validations", validation_id])).await
    }

    pub async fn list_profile_changes(&self, asked: &ListProfileChanges) -> Result<ProfileChangePage, Failure> {
        self.get(Path::api(&["provider-profile-changes"]).query(asked)?).await
    }
}
