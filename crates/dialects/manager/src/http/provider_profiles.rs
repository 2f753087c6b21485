//! `/api/v1/provider-profiles…`: for platforms, which have their own ways of authorising people. No response holds a value
//! of a credential.

use axum::{Json, extract::State};
use http::{HeaderMap, StatusCode, header};
use ostler_protocol::{
    Failure, Rule,
    failures::Problem,
    ids::ValidationId,
    kernel::provider_profiles::{
        ListProfileChanges, ProfileChangePage, ProfileConfigText, ProfileScope, ProviderProfile, ProviderProfileList,
        PutConfig, PutCredential, ValidateProfile, Validation,
    },
};

use ostler_server::{
    app::App,
    net::{
        extract::{At, Body, Caller, OptionalBody, Params, idempotency_key},
        problem::Refusal,
    },
    service::provider_profiles as service,
};

/// List the operator's provider profiles, the built-in ones first, then those of the caller's tenants.
#[utoipa::path(get, path = "/api/v1/provider-profiles", tag = "provider-profiles",
    security(("token" = ["inspect"])), params(ProfileScope),
    responses((status = 200, body = ProviderProfileList), (status = "4XX", body = Problem)))]
pub(crate) async fn list(
    State(app): State<App>,
    Caller(caller): Caller,
    Params(scope): Params<ProfileScope>,
) -> Result<Json<ProviderProfileList>, Refusal> {
    Ok(Json(service::list(&app, &caller, &scope).await?))
}

/// List changes of profiles, newest first: who changed which profile, when, and which settings. Never a value.
#[utoipa::path(get, path = "/api/v1/provider-profile-changes", tag = "provider-profiles",
    security(("token" = ["provide"])), params(ListProfileChanges),
    responses((status = 200, body = ProfileChangePage), (status = "4XX", body = Problem)))]
pub(crate) async fn list_changes(
    State(app): State<App>,
    Caller(caller): Caller,
    Params(request): Params<ListProfileChanges>,
) -> Result<Json<ProfileChangePage>, Refusal> {
    Ok(Json(service::list_changes(&app, &caller, request).await?))
}

/// Get a provider profile: one of the operator's, or of the caller's tenants.
#[utoipa::path(get, path = "/api/v1/provider-profiles/{profile}", tag = "provider-profiles",
    security(("token" = ["inspect"])), params(("profile" = String, Path), ProfileScope),
    responses((status = 200, body = ProviderProfile), (status = "4XX", body = Problem)))]
pub(crate) async fn get(
    State(app): State<App>,
    Caller(caller): Caller,
    At(profile): At<String>,
    Params(scope): Params<ProfileScope>,
) -> Result<Json<ProviderProfile>, Refusal> {
    Ok(Json(service::get(&app, &caller, &profile, &scope).await?))
}

/// Delete a profile's secret, credential and config. Idempotent; agents that are running keep what they received.
#[utoipa::path(delete, path = "/api/v1/provider-profiles/{profile}", tag = "provider-profiles",
    security(("token" = ["provide"])), params(("profile" = String, Path), ProfileScope),
    responses((status = 200, body = ProviderProfile), (status = "4XX", body = Problem)))]
pub(crate) async fn delete(
    State(app): State<App>,
    Caller(caller): Caller,
    At(profile): At<String>,
    Params(scope): Params<ProfileScope>,
) -> Result<Json<ProviderProfile>, Refusal> {
    Ok(Json(service::delete(&app, &caller, &profile, &scope).await?))
}

/// Set a profile's credential: a key alone, or whole files. Parts that the request omits stay unchanged.
#[utoipa::path(put, path = "/api/v1/provider-profiles/{profile}/credential", tag = "provider-profiles",
    security(("token" = ["provide"])), request_body = PutCredential,
    params(("profile" = String, Path), ProfileScope,
        ("If-Match" = Option<String>, Header, description = "A `resourceVersion`")),
    responses((status = 200, body = ProviderProfile), (status = "4XX", body = Problem)))]
pub(crate) async fn put_credential(
    State(app): State<App>,
    Caller(caller): Caller,
    At(profile): At<String>,
    Params(scope): Params<ProfileScope>,
    headers: HeaderMap,
    Body(mut request): Body<PutCredential>,
) -> Result<Json<ProviderProfile>, Refusal> {
    request.resource_version = expected_version(&headers, request.resource_version)?;
    Ok(Json(service::put_credential(&app, &caller, &profile, &scope, request).await?))
}

/// Read a profile's `config.toml`.
#[utoipa::path(get, path = "/api/v1/provider-profiles/{profile}/config", tag = "provider-profiles",
    security(("token" = ["provide"])), params(("profile" = String, Path), ProfileScope),
    responses((status = 200, body = ProfileConfigText), (status = "4XX", body = Problem)))]
pub(crate) async fn get_config(
    State(app): State<App>,
    Caller(caller): Caller,
    At(profile): At<String>,
    Params(scope): Params<ProfileScope>,
) -> Result<Json<ProfileConfigText>, Refusal> {
    Ok(Json(service::get_config(&app, &caller, &profile, &scope).await?))
}

/// Replace a profile's `config.toml`. A stored credential is removed if the config now names another server or command: then
/// `credentialDropped` is set, and the credential must be set again.
#[utoipa::path(put, path = "/api/v1/provider-profiles/{profile}/config", tag = "provider-profiles",
    security(("token" = ["provide"])), request_body = PutConfig,
    params(("profile" = String, Path), ProfileScope,
        ("If-Match" = Option<String>, Header, description = "A `resourceVersion`")),
    responses((status = 200, body = ProviderProfile), (status = "4XX", body = Problem)))]
pub(crate) async fn put_config(
    State(app): State<App>,
    Caller(caller): Caller,
    At(profile): At<String>,
    Params(scope): Params<ProfileScope>,
    headers: HeaderMap,
    Body(mut request): Body<PutConfig>,
) -> Result<Json<ProviderProfile>, Refusal> {
    request.resource_version = expected_version(&headers, request.resource_version)?;
    Ok(Json(service::put_config(&app, &caller, &profile, &scope, request).await?))
}

/// Try a profile with an ordinary run. Responds at once; poll the validation for the outcome.
#[utoipa::path(post, path = "/api/v1/provider-profiles/{profile}/validate", tag = "provider-profiles",
    security(("token" = ["provide"])), request_body = Option<ValidateProfile>,
    params(("profile" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "The same as `idempotencyKey` in the body")),
    responses((status = 202, body = Validation), (status = "4XX", body = Problem)))]
pub(crate) async fn validate(
    State(app): State<App>,
    Caller(caller): Caller,
    At(profile): At<String>,
    headers: HeaderMap,
    OptionalBody(mut request): OptionalBody<ValidateProfile>,
) -> Result<(StatusCode, Json<Validation>), Refusal> {
    request.idempotency_key = idempotency_key(&headers, request.idempotency_key)?;
    Ok((StatusCode::ACCEPTED, Json(service::validate(&app, &caller, &profile, request).await?)))
}

/// Get the state of a profile's validation.
#[utoipa::path(get, path = "/api/v1/provider-profiles/{profile}/validations/{validationId}", tag = "provider-profiles",
    security(("token" = ["provide"])), params(("profile" = String, Path), ("validationId" = ValidationId, Path)),
    responses((status = 200, body = Validation), (status = "4XX", body = Problem)))]
pub(crate) async fn get_validation(
    State(app): State<App>,
    Caller(caller): Caller,
    At((profile, validation_id)): At<(String, ValidationId)>,
) -> Result<Json<Validation>, Refusal> {
    Ok(Json(service::get_validation(&app, &caller, &profile, validation_id).await?))
}

/// The version that the change is for: the body's, or else the header's. Fails if both are given and differ.
fn expected_version(headers: &HeaderMap, body: Option<String>) -> Result<Option<String>, Failure> {
    let Some(value) = headers.get(header::IF_MATCH) else { return Ok(body) };
    let text = value.to_str().map_err(|_| Failure::invalid(Rule::IfMatch, "the If-Match header is not text"))?;
    let version = text.trim().trim_matches('"');
    match body {
        Some(body) if body != version => {
            Err(Failure::invalid(Rule::IfMatch, "the If-Match header and the body's resourceVersion differ"))
        }
        _ => Ok(Some(version.to_owned())),
    }
}
