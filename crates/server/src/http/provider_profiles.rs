//! `/api/v1/provider-profiles…`: for platforms, which have their own ways of asking people. No answer holds a value.

use axum::{Json, extract::State};
use http::{HeaderMap, StatusCode, header};
use ostler_protocol::{
    Failure,
    failures::Problem,
    ids::ValidationId,
    provider_profiles::{
        ProfileConfigText, ProviderProfile, ProviderProfileList, PutConfig, PutCredential, ValidateProfile, Validation,
    },
};

use super::{
    extract::{At, Body, Caller, OptionalBody, idempotency_key},
    problem::Refusal,
};
use crate::{app::App, service::provider_profiles as service};

/// List provider profiles: the built-in ones, configured or not, then the others by name.
#[utoipa::path(get, path = "/api/v1/provider-profiles", tag = "provider-profiles", security(("token" = ["provide"])),
    responses((status = 200, body = ProviderProfileList), (status = "4XX", body = Problem)))]
pub async fn list(State(app): State<App>, Caller(caller): Caller) -> Result<Json<ProviderProfileList>, Refusal> {
    Ok(Json(service::list(&app, &caller).await?))
}

/// Get a provider profile.
#[utoipa::path(get, path = "/api/v1/provider-profiles/{profile}", tag = "provider-profiles",
    security(("token" = ["provide"])), params(("profile" = String, Path)),
    responses((status = 200, body = ProviderProfile), (status = "4XX", body = Problem)))]
pub async fn get(
    State(app): State<App>,
    Caller(caller): Caller,
    At(profile): At<String>,
) -> Result<Json<ProviderProfile>, Refusal> {
    Ok(Json(service::get(&app, &caller, &profile).await?))
}

/// Delete a profile's secret, credential and config. Idempotent; agents at work keep what they were given.
#[utoipa::path(delete, path = "/api/v1/provider-profiles/{profile}", tag = "provider-profiles",
    security(("token" = ["provide"])), params(("profile" = String, Path)),
    responses((status = 200, body = ProviderProfile), (status = "4XX", body = Problem)))]
pub async fn delete(
    State(app): State<App>,
    Caller(caller): Caller,
    At(profile): At<String>,
) -> Result<Json<ProviderProfile>, Refusal> {
    Ok(Json(service::delete(&app, &caller, &profile).await?))
}

/// Set a profile's credential: a key alone, or whole files. What is not given stays.
#[utoipa::path(put, path = "/api/v1/provider-profiles/{profile}/credential", tag = "provider-profiles",
    security(("token" = ["provide"])), request_body = PutCredential,
    params(("profile" = String, Path), ("If-Match" = Option<String>, Header, description = "A `resourceVersion`")),
    responses((status = 200, body = ProviderProfile), (status = "4XX", body = Problem)))]
pub async fn put_credential(
    State(app): State<App>,
    Caller(caller): Caller,
    At(profile): At<String>,
    headers: HeaderMap,
    Body(mut asked): Body<PutCredential>,
) -> Result<Json<ProviderProfile>, Refusal> {
    asked.resource_version = expected_version(&headers, asked.resource_version)?;
    Ok(Json(service::put_credential(&app, &caller, &profile, asked).await?))
}

/// Read a profile's `config.toml`.
#[utoipa::path(get, path = "/api/v1/provider-profiles/{profile}/config", tag = "provider-profiles",
    security(("token" = ["provide"])), params(("profile" = String, Path)),
    responses((status = 200, body = ProfileConfigText), (status = "4XX", body = Problem)))]
pub async fn get_config(
    State(app): State<App>,
    Caller(caller): Caller,
    At(profile): At<String>,
) -> Result<Json<ProfileConfigText>, Refusal> {
    Ok(Json(service::get_config(&app, &caller, &profile).await?))
}

/// Replace a profile's `config.toml`, and nothing else of it.
#[utoipa::path(put, path = "/api/v1/provider-profiles/{profile}/config", tag = "provider-profiles",
    security(("token" = ["provide"])), request_body = PutConfig,
    params(("profile" = String, Path), ("If-Match" = Option<String>, Header, description = "A `resourceVersion`")),
    responses((status = 200, body = ProviderProfile), (status = "4XX", body = Problem)))]
pub async fn put_config(
    State(app): State<App>,
    Caller(caller): Caller,
    At(profile): At<String>,
    headers: HeaderMap,
    Body(mut asked): Body<PutConfig>,
) -> Result<Json<ProviderProfile>, Refusal> {
    asked.resource_version = expected_version(&headers, asked.resource_version)?;
    Ok(Json(service::put_config(&app, &caller, &profile, asked).await?))
}

/// Try a profile with an ordinary run. Answers at once; ask `poll` how it went.
#[utoipa::path(post, path = "/api/v1/provider-profiles/{profile}/validate", tag = "provider-profiles",
    security(("token" = ["provide"])), request_body = Option<ValidateProfile>,
    params(("profile" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "The same as `idempotencyKey` in the body")),
    responses((status = 202, body = Validation), (status = "4XX", body = Problem)))]
pub async fn validate(
    State(app): State<App>,
    Caller(caller): Caller,
    At(profile): At<String>,
    headers: HeaderMap,
    OptionalBody(mut asked): OptionalBody<ValidateProfile>,
) -> Result<(StatusCode, Json<Validation>), Refusal> {
    asked.idempotency_key = idempotency_key(&headers, asked.idempotency_key)?;
    Ok((StatusCode::ACCEPTED, Json(service::validate(&app, &caller, &profile, asked).await?)))
}

/// How a trial of a profile stands.
#[utoipa::path(get, path = "/api/v1/provider-profiles/{profile}/validations/{validationId}", tag = "provider-profiles",
    security(("token" = ["provide"])), params(("profile" = String, Path), ("validationId" = ValidationId, Path)),
    responses((status = 200, body = Validation), (status = "4XX", body = Problem)))]
pub async fn get_validation(
    State(app): State<App>,
    Caller(caller): Caller,
    At((profile, validation_id)): At<(String, ValidationId)>,
) -> Result<Json<Validation>, Refusal> {
    Ok(Json(service::get_validation(&app, &caller, &profile, validation_id).await?))
}

/// The version a change is made for: the header where the body has none. Both, and different, is a mistake.
fn expected_version(headers: &HeaderMap, body: Option<String>) -> Result<Option<String>, Failure> {
    let Some(value) = headers.get(header::IF_MATCH) else { return Ok(body) };
    let text = value.to_str().map_err(|_| Failure::invalid("if-match", "the If-Match header is not text"))?;
    let version = text.trim().trim_matches('"');
    match body {
        Some(body) if body != version => {
            Err(Failure::invalid("if-match", "the If-Match header and the body's resourceVersion differ"))
        }
        _ => Ok(Some(version.to_owned())),
    }
}
