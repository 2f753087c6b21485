//! Users: add, list, remove, and make tokens for those we vouch for ourselves.

use jiff::tz::{TimeZone, TimeZoneDatabase};
use ostler_protocol::{
    Failure, FailureKind, Timestamp,
    cursors::{self, Cursor},
    ids::UserId,
    users::{CreateUser, CreateUserToken, KeySet, ListUsers, OWN_ISSUER, UpdateUser, User, UserPage, UserToken},
};
use ostler_store::{self as store, Db, StoreError};
use secrecy::ExposeSecret;

use super::tokens::{check_tenants_exist, later};
use crate::{
    app::App,
    auth::{Access, Issuers, Principal},
};

/// More servers than this have never shared a store.
const SIGNING_KEYS_MAX: u32 = 1_000;

/// Adds a user; the same again answers with the user there is.
pub async fn create(app: &App, caller: &Principal, asked: CreateUser) -> Result<(User, bool), Failure> {
    Access::Operate.admit(caller)?;
    let timezone = asked.check()?;
    check_tenants_exist(app, &asked.tenants)?;
    if let Some(issuer) = asked.issuer.as_deref().filter(|issuer| !app.auth.issuers.knows(issuer)) {
        return Err(Failure::invalid("issuer", format!("the configuration names no issuer {issuer:?}")));
    }
    let user_id = UserId::new(app.ids.body());
    let user = User {
        user_id,
        name: asked.name,
        tenants: asked.tenants,
        timezone,
        issuer: asked.issuer.unwrap_or_else(|| OWN_ISSUER.to_owned()),
        subject: asked.subject.unwrap_or_else(|| user_id.to_string()),
        created_at: app.now(),
        removed_at: None,
    };
    if store::users::insert(&app.db, &user).await? {
        tracing::info!(%user_id, by = caller.name(), "a user was added");
        return Ok((user, true));
    }
    let known = store::users::find_by_name(&app.db, &user.name).await?;
    known.filter(|known| is_same(known, &user)).map(|known| (known, false)).ok_or_else(|| {
        let message = "another user has this name, or this issuer's subject";
        Failure::rule(FailureKind::StateConflict, "user-taken", message)
    })
}

fn is_same(known: &User, asked: &User) -> bool {
    let ours = known.issuer == OWN_ISSUER || known.subject == asked.subject;
    known.issuer == asked.issuer && ours && known.tenants == asked.tenants && known.timezone == asked.timezone
}

pub async fn list(app: &App, caller: &Principal, asked: ListUsers) -> Result<UserPage, Failure> {
    Access::Operate.admit(caller)?;
    let limit = cursors::limit(asked.limit)?;
    let fingerprint = cursors::fingerprint("users", &());
    let after = asked.cursor.as_deref().map(|text| Cursor::decode(text, &fingerprint)).transpose()?;
    let mut users = store::users::list(&app.db, after.as_ref(), limit + 1).await?;
    let more = users.len() > limit as usize;
    users.truncate(limit as usize);
    let next_cursor = users.last().filter(|_| more).map(|user| {
        Cursor { created_at_us: user.created_at.as_microsecond(), id: user.user_id.to_string() }.encode(&fingerprint)
    });
    Ok(UserPage { users, next_cursor })
}

/// Changes a user's time zone. The next message of theirs is answered with it.
pub async fn update(app: &App, caller: &Principal, name: &str, asked: UpdateUser) -> Result<User, Failure> {
    Access::Operate.admit(caller)?;
    let timezone = asked.check()?;
    let updated = store::users::update_timezone(&app.db, name, &timezone).await?;
    let updated = updated.ok_or_else(|| Failure::not_found("user"))?;
    tracing::info!(user_id = %updated.user_id, timezone, by = caller.name(), "a user was changed");
    Ok(updated)
}

/// Removes a user, every token that speaks for the user, and what dialects hold for the user.
pub async fn remove(app: &App, caller: &Principal, name: &str) -> Result<User, Failure> {
    Access::Operate.admit(caller)?;
    let name = name.to_owned();
    let removed =
        app.taking_rights(|app| async move { Ok(store::users::update_removed(&app.db, &name, app.now()).await?) });
    let removed = removed.await?.ok_or_else(|| Failure::not_found("user"))?;
    tracing::info!(user_id = %removed.user_id, by = caller.name(), "a user was removed");
    app.to_the_end(|app| async move { app.dialects.after_user_removed(&app).await }).await?;
    Ok(removed)
}

/// Makes a token that speaks for a user of ours.
pub async fn create_token(
    app: &App,
    caller: &Principal,
    name: &str,
    asked: CreateUserToken,
) -> Result<UserToken, Failure> {
    Access::Operate.admit(caller)?;
    let life_ms = asked.life_ms()?;
    let user = store::users::find_by_name(&app.db, name).await?;
    let user = user.ok_or_else(|| Failure::not_found("user"))?;
    if user.issuer != OWN_ISSUER {
        let message = format!("{:?} vouches for this user and makes the tokens", user.issuer);
        return Err(Failure::rule(FailureKind::StateConflict, "user-outside", message));
    }
    let now = app.wall();
    // Tokens count in whole seconds.
    let expires_at = Timestamp::from_second(later(now, life_ms)?.as_second()).map_err(Failure::internal)?;
    let token = app.auth.issuers.sign(&user.subject, now, expires_at);
    tracing::info!(user_id = %user.user_id, by = caller.name(), "a user's token was made");
    Ok(UserToken { user_id: user.user_id, token: token.expose_secret().to_owned(), expires_at })
}

/// The public keys of this store's servers, for whoever wants to check our users' tokens.
pub async fn key_set(app: &App) -> Result<KeySet, Failure> {
    let keys = store::signing_keys::list(&app.db, SIGNING_KEYS_MAX).await?;
    let keys = keys.iter().map(|jwk| serde_json::from_str(jwk)).collect::<Result<_, _>>();
    Ok(KeySet { keys: keys.map_err(Failure::internal)? })
}

/// Writes down the public half of this server's key. Run once at start.
pub async fn record_key(db: &Db, issuers: &Issuers, now: Timestamp) -> Result<(), StoreError> {
    let (kid, jwk) = issuers.own_key();
    let jwk = serde_json::to_string(&jwk).expect("our own types serialise");
    store::signing_keys::insert(db, kid, &jwk, now).await
}

/// The user's time zone. UTC if the caller is not a user, such as the operator.
pub async fn time_zone(app: &App, caller: &Principal) -> Result<TimeZone, Failure> {
    let Principal::User { user_id, .. } = caller else { return Ok(TimeZone::UTC) };
    let user = store::users::get(&app.db, *user_id).await?;
    let zone = user.and_then(|user| TimeZoneDatabase::bundled().get(&user.timezone).ok());
    Ok(zone.unwrap_or(TimeZone::UTC))
}
