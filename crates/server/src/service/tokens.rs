//! Service tokens: create, list, revoke. Only hashes reach the store.

use jiff::SignedDuration;
use ostler_protocol::{
    Failure, Rule, Timestamp,
    cursors::{Cursor, Page, PageRequest},
    ids::{TokenId, name},
    problems::Problems,
    tokens::{CreateToken, CreatedToken, ListTokens, ServiceToken, TokenPage},
};
use ostler_store as store;
use secrecy::ExposeSecret;

use crate::{
    app::App,
    auth::{self, Access, Principal, mint, token_hash},
    service::requests::check_key,
};

pub async fn create(app: &App, caller: &Principal, request: CreateToken) -> Result<CreatedToken, Failure> {
    Access::Operate.admit(caller)?;
    let mut problems = Problems::default();
    problems.note(request.check());
    problems.note(check_tenants_exist(app, &request.tenants));
    let key = problems.note(request.idempotency_key.as_deref().map(|key| check_key(app, key)).transpose()).flatten();
    problems.check()?;
    let now = app.wall();
    let service_token = ServiceToken {
        token_id: TokenId::new(app.ids.body()),
        name: request.name,
        role: request.role,
        tenants: request.tenants,
        created_at: now,
        expires_at: request.expires_in_ms.map(|ms| later(now, ms)).transpose()?,
        revoked_at: None,
    };
    let token = mint(auth::SERVICE);
    let hash = token_hash(token.expose_secret());
    if !store::tokens::insert(&app.db, &service_token, &hash, key).await? {
        return Err(made_before(app, key.unwrap_or_default()).await?);
    }
    tracing::info!(token_id = %service_token.token_id, by = caller.name(), "a service token was made");
    Ok(CreatedToken { service_token, token: token.expose_secret().to_owned() })
}

/// The failure for a key that was already used. A token is returned only once, so a caller that lost the response must
/// revoke the token and create another one under a new key.
async fn made_before(app: &App, key: &str) -> Result<Failure, Failure> {
    let made = store::tokens::find_by_key(&app.db, key).await?;
    let made = made.ok_or_else(|| Failure::internal("a token's key is taken by no token"))?;
    let message =
        "this idempotencyKey has created a token, which cannot be returned again; revoke it and use another key";
    let failure = Failure::rule(Rule::IdempotencyKeyUsed, message);
    Ok(failure.detail("tokenId", made.token_id.to_string()))
}

pub async fn list(app: &App, caller: &Principal, request: ListTokens) -> Result<TokenPage, Failure> {
    Access::Operate.admit(caller)?;
    let page = PageRequest::new("tokens", &(), request.limit, request.cursor.as_deref())?;
    let tokens = store::tokens::list(&app.db, page.after.as_ref(), page.rows_max()).await?;
    let Page { items: tokens, next_cursor } =
        page.page(tokens, |token| Cursor::after(token.created_at, token.token_id));
    Ok(TokenPage { tokens, next_cursor })
}

/// Idempotent: revoking again keeps the time of the first revocation.
pub async fn revoke(app: &App, caller: &Principal, token_id: TokenId) -> Result<ServiceToken, Failure> {
    Access::Operate.admit(caller)?;
    let revoked =
        app.taking_rights(|app| async move { Ok(store::tokens::update_revoked(&app.db, token_id, app.now()).await?) });
    let revoked = revoked.await?.ok_or_else(|| Failure::not_found("token"))?;
    tracing::info!(%token_id, by = caller.name(), "a service token was revoked");
    Ok(revoked)
}

/// Rejects unknown tenants: a token with a misspelt tenant could do nothing, without any hint why.
pub fn check_tenants_exist(app: &App, tenants: &[String]) -> Result<(), Failure> {
    // A text that is no name at all is reported by the request's own check.
    let named = tenants.iter().filter(|tenant| name("tenants", tenant).is_ok());
    Failure::check_all(named.filter_map(|tenant| app.config.policy.tenant(tenant).err()).collect())
}

pub fn later(now: Timestamp, ms: i64) -> Result<Timestamp, Failure> {
    now.checked_add(SignedDuration::from_millis(ms)).map_err(Failure::internal)
}
