//! Provider profiles: list, get, set, validate, delete, and their change log. For operators and platforms.

use bytes::Bytes;
use http::Method;
use ostler_protocol::{
    Failure,
    kernel::provider_profiles::{
        ListProfileChanges, ProfileChangePage, ProfileConfigText, ProfileScope, ProviderProfile, ProviderProfileList,
        PutConfig, PutCredential, ValidateProfile, Validation,
    },
};

use crate::{
    client::{Client, json},
    path::Path,
    response,
};

fn profile_path(profile: &str, rest: &[&str]) -> Path {
    Path::api(&[&["provider-profiles", profile], rest].concat())
}

impl Client {
    pub async fn list_provider_profiles(&self, scope: &ProfileScope) -> Result<ProviderProfileList, Failure> {
        self.get(Path::api(&["provider-profiles"]).query(scope)?).await
    }

    pub async fn get_provider_profile(&self, profile: &str, scope: &ProfileScope) -> Result<ProviderProfile, Failure> {
        self.get(profile_path(profile, &[]).query(scope)?).await
    }

    /// Idempotent.
    pub async fn delete_provider_profile(
        &self,
        profile: &str,
        scope: &ProfileScope,
    ) -> Result<ProviderProfile, Failure> {
        response::parse(&self.call(Method::DELETE, profile_path(profile, &[]).query(scope)?, Bytes::new()).await?)
    }

    pub async fn put_credential(
        &self,
        profile: &str,
        scope: &ProfileScope,
        credential: &PutCredential,
    ) -> Result<ProviderProfile, Failure> {
        let path = profile_path(profile, &["credential"]).query(scope)?;
        response::parse(&self.call(Method::PUT, path, json(credential)?).await?)
    }

    pub async fn get_profile_config(&self, profile: &str, scope: &ProfileScope) -> Result<ProfileConfigText, Failure> {
        self.get(profile_path(profile, &["config"]).query(scope)?).await
    }

    pub async fn put_profile_config(
        &self,
        profile: &str,
        scope: &ProfileScope,
        config: &PutConfig,
    ) -> Result<ProviderProfile, Failure> {
        let path = profile_path(profile, &["config"]).query(scope)?;
        response::parse(&self.call(Method::PUT, path, json(config)?).await?)
    }

    /// Starts a validation and returns at once. [`Client::get_validation`] returns its result.
    pub async fn validate_profile(&self, profile: &str, request: &ValidateProfile) -> Result<Validation, Failure> {
        self.post(profile_path(profile, &["validate"]), request).await
    }

    pub async fn get_validation(&self, profile: &str, validation_id: &str) -> Result<Validation, Failure> {
        self.get(profile_path(profile, &["validations", validation_id])).await
    }

    pub async fn list_profile_changes(&self, query: &ListProfileChanges) -> Result<ProfileChangePage, Failure> {
        self.get(Path::api(&["provider-profile-changes"]).query(query)?).await
    }
}
