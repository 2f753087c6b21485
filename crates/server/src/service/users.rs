//! Users: add, list, remove, and sign tokens for those of our own issuer.

use jiff::tz::{TimeZone, TimeZoneDatabase};
use ostler_protocol::{
    Failure, Rule, Timestamp,
    created::Created,
    cursors::{Cursor, Page, PageRequest},
    ids::UserId,
    json::text_of,
    problems::Problems,
    users::{CreateUser, CreateUserToken, KeySet, ListUsers, OWN_ISSUER, UpdateUser, User, UserPage, UserToken},
};
use ostler_store::{self as store, Db, StoreError};
use secrecy::ExposeSecret;

use super::tokens::{check_tenants_exist, later};
use crate::{
    app::App,
    auth::{Access, Issuers, Principal},
    dialect::Dialects,
};

/// More servers than this have never shared a store.
const SIGNING_KEYS_MAX: u32 = 1_000;

/// Adds a user. Idempotent: the same user again returns the existing one.
pub async fn create(app: &App, caller: &Principal, request: CreateUser) -> Result<Created<User>, Failure> {
    Access::Operate.admit(caller)?;
    let mut problems = Problems::default();
    let timezone = problems.note(request.check()).unwrap_or_default();
    problems.note(check_tenants_exist(app, &request.tenants));
    if let Some(issuer) = request.issuer.as_deref().filter(|issuer| !app.auth.issuers.knows(issuer)) {
        let message = format!("the configuration names no issuer {issuer:?}");
        problems.note(Err::<(), _>(Failure::invalid(Rule::Issuer, message)));
    }
    problems.check()?;
    let user_id = UserId::new(app.ids.body());
    let user = User {
        user_id,
        name: request.name,
        tenants: request.tenants,
        timezone,
        issuer: request.issuer.unwrap_or_else(|| OWN_ISSUER.to_owned()),
        subject: request.subject.unwrap_or_else(|| user_id.to_string()),
        created_at: app.now(),
        removed_at: None,
    };
    if store::users::insert(&app.db, &user).await? {
        tracing::info!(%user_id, by = caller.name(), "a user was added");
        begin_reading(app, &user).await?;
        return Ok(Created::new(user));
    }
    let existing = store::users::find_by_name(&app.db, &user.name).await?;
    let existing = existing.filter(|existing| is_same(existing, &user)).ok_or_else(|| {
        let message = "another user has this name, or this issuer's subject";
        Failure::rule(Rule::UserTaken, message)
    })?;
    // The first attempt may have ended before this was done.
    begin_reading(app, &existing).await?;
    Ok(Created::existing(existing))
}

/// What ended before there was the user is not unread: an inbox begins empty.
async fn begin_reading(app: &App, user: &User) -> Result<(), Failure> {
    Ok(store::kernel::readers::begin(&app.db, &user.user_id.to_string(), user.created_at).await?)
}

fn is_same(existing: &User, new: &User) -> bool {
    let has_same_subject = existing.issuer == OWN_ISSUER || existing.subject == new.subject;
    existing.issuer == new.issuer
        && has_same_subject
        && existing.tenants == new.tenants
        && existing.timezone == new.timezone
}

pub async fn list(app: &App, caller: &Principal, request: ListUsers) -> Result<UserPage, Failure> {
    Access::Operate.admit(caller)?;
    let page = PageRequest::new("users", &(), request.limit, request.cursor.as_deref())?;
    let users = store::users::list(&app.db, page.after.as_ref(), page.rows_max()).await?;
    let Page { items: users, next_cursor } = page.page(users, |user| Cursor::after(user.created_at, user.user_id));
    Ok(UserPage { users, next_cursor })
}

/// Changes a user's time zone. It applies from the user's next message.
pub async fn update(app: &App, caller: &Principal, name: &str, request: UpdateUser) -> Result<User, Failure> {
    Access::Operate.admit(caller)?;
    let timezone = request.check()?;
    let updated = store::users::update_timezone(&app.db, name, &timezone).await?;
    let updated = updated.ok_or_else(|| Failure::not_found("user"))?;
    tracing::info!(user_id = %updated.user_id, timezone, by = caller.name(), "a user was changed");
    Ok(updated)
}

/// Removes a user, every token of the user, and the data that dialects hold for the user.
pub async fn remove(app: &App, caller: &Principal, name: &str) -> Result<User, Failure> {
    Access::Operate.admit(caller)?;
    let name = name.to_owned();
    let removed =
        app.taking_rights(|app| async move { Ok(store::users::update_removed(&app.db, &name, app.now()).await?) });
    let removed = removed.await?.ok_or_else(|| Failure::not_found("user"))?;
    tracing::info!(user_id = %removed.user_id, by = caller.name(), "a user was removed");
    app.to_the_end(|app| async move { Dialects::of(&app).after_user_removed(&app).await }).await?;
    Ok(removed)
}

/// Signs a token for a user of our own issuer.
pub async fn create_token(
    app: &App,
    caller: &Principal,
    name: &str,
    request: CreateUserToken,
) -> Result<UserToken, Failure> {
    Access::Operate.admit(caller)?;
    let life_ms = request.life_ms()?;
    let user = store::users::find_by_name(&app.db, name).await?;
    let user = user.ok_or_else(|| Failure::not_found("user"))?;
    if user.issuer != OWN_ISSUER {
        let message = format!("{:?} vouches for this user and makes the tokens", user.issuer);
        return Err(Failure::rule(Rule::UserOutside, message));
    }
    let now = app.wall();
    // Tokens count in whole seconds.
    let expires_at = Timestamp::from_second(later(now, life_ms)?.as_second()).map_err(Failure::internal)?;
    let token = app.auth.issuers.sign(&user.subject, now, expires_at);
    tracing::info!(user_id = %user.user_id, by = caller.name(), "a user's token was made");
    Ok(UserToken { user_id: user.user_id, token: token.expose_secret().to_owned(), expires_at })
}

/// The public keys of this store's servers, with which other services can verify our users' tokens.
pub async fn key_set(app: &App) -> Result<KeySet, Failure> {
    let keys = store::signing_keys::list(&app.db, SIGNING_KEYS_MAX).await?;
    let keys = keys.iter().map(|jwk| serde_json::from_str(jwk)).collect::<Result<_, _>>();
    Ok(KeySet { keys: keys.map_err(Failure::internal)? })
}

/// Stores the public half of this server's key. Run once at start.
pub async fn record_key(db: &Db, issuers: &Issuers, now: Timestamp) -> Result<(), StoreError> {
    let (kid, jwk) = issuers.own_key();
    let jwk = text_of(&jwk);
    store::signing_keys::insert(db, kid, &jwk, now).await
}

/// The user's time zone. UTC if the caller is not a user, such as the operator.
pub async fn time_zone(app: &App, caller: &Principal) -> Result<TimeZone, Failure> {
    let Principal::User { user_id, .. } = caller else { return Ok(TimeZone::UTC) };
    let user = store::users::get(&app.db, *user_id).await?;
    let zone = user.and_then(|user| TimeZoneDatabase::bundled().get(&user.timezone).ok());
    Ok(zone.unwrap_or(TimeZone::UTC))
}
