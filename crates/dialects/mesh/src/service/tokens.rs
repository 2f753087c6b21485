//! Tokens of identities: an access token for connections and uploads, and a refresh token for the next pair. Only the last
//! pair of a login is valid, and only hashes are stored.

use jiff::SignedDuration;
use ostler_protocol::{
    Failure, Timestamp,
    mesh::{
        Aid,
        auth::{
            ACCESS_TOKEN_LIFE_MS, LOGINS_PER_AID_MAX, Login2Result, REFRESH_CHAIN_MS_MAX, REFRESH_CHAIN_USES_MAX,
            RefreshTokenResult,
        },
        identities::Identity,
    },
};
use ostler_store::{self as store, mesh::logins::Pair};
use secrecy::{ExposeSecret, SecretString};

use crate::{legacy_wakeups, state::Mesh};
use ostler_server::{
    app::App,
    auth::{mint, token_hash},
    dialect::Topic,
};

/// The kinds of token, after the prefix of all tokens: for connections, and for the next pair.
const AID_ACCESS: &str = "aid";
const AID_REFRESH: &str = "air";
const TOKEN_BYTES_MAX: usize = 256;
/// How far the clocks of two servers may be apart: a spent token is remembered for this long after its expiry.
const CLOCKS_APART_MS_MAX: i64 = 5 * 60_000;

struct Minted {
    access: SecretString,
    refresh: SecretString,
    pair: Pair,
}

fn mint_pair(now: Timestamp) -> Minted {
    let (access, refresh) = (mint(AID_ACCESS), mint(AID_REFRESH));
    let pair = Pair {
        access_hash: token_hash(access.expose_secret()),
        access_until: after(now, ACCESS_TOKEN_LIFE_MS),
        refresh_hash: token_hash(refresh.expose_secret()),
    };
    Minted { access, refresh, pair }
}

fn after(now: Timestamp, ms: i64) -> Timestamp {
    now.saturating_add(SignedDuration::from_millis(ms)).unwrap_or(Timestamp::MAX)
}

/// Starts a login with its first pair. The login is valid as long as the certificate that proved it.
pub(crate) async fn begin(app: &App, proved: &Identity, new_cert: Option<String>) -> Result<Login2Result, Failure> {
    let now = app.wall();
    let minted = mint_pair(now);
    let (login_id, ends_at) = (app.ids.body().simple().to_string(), after(now, REFRESH_CHAIN_MS_MAX));
    let by = (&proved.aid, proved.serial.as_str());
    let inserted = store::mesh::logins::insert(&app.db, &login_id, by, &minted.pair, ends_at, LOGINS_PER_AID_MAX);
    inserted.await?;
    Ok(Login2Result {
        access_token: minted.access,
        refresh_token: minted.refresh,
        expires_in: ACCESS_TOKEN_LIFE_MS / 1_000,
        new_cert,
    })
}

/// The next pair. A rejected refresh token is a result, not a failure: the client then logs in again.
pub(crate) async fn refresh(app: &App, token: &str) -> Result<RefreshTokenResult, Failure> {
    let now = app.wall();
    let (hash, minted) = (token_hash(token), mint_pair(now));
    let refreshed = store::mesh::logins::update_refreshed(&app.db, &hash, &minted.pair, REFRESH_CHAIN_USES_MAX, now);
    if refreshed.await?.is_some() {
        return Ok(RefreshTokenResult {
            success: true,
            access_token: Some(minted.access),
            refresh_token: Some(minted.refresh),
            expires_in: Some(ACCESS_TOKEN_LIFE_MS / 1_000),
            error: None,
        });
    }
    app.to_the_end(|app| async move {
        if let Some(aid) = store::mesh::logins::delete_by_spent(&app.db, &hash).await? {
            tracing::warn!(%aid, "a refresh token was used a second time; its login was ended");
            recheck_logins(&app, &aid);
        }
        Ok(())
    })
    .await?;
    Ok(RefreshTokenResult { error: Some("the refresh token is not valid".into()), ..RefreshTokenResult::default() })
}

/// The identity and the login of an access token. `None` if the token is not valid.
pub(crate) async fn find_by_token(app: &App, token: &str) -> Result<Option<(Aid, String)>, Failure> {
    if token.len() > TOKEN_BYTES_MAX {
        return Ok(None);
    }
    Ok(store::mesh::logins::find_by_access(&app.db, &token_hash(token), app.wall()).await?)
}

/// Whether a login is still valid. It ends with its chain, with the certificate that proved it, and when a refresh token is
/// used twice.
pub(crate) async fn is_live(app: &App, login_id: &str) -> Result<bool, Failure> {
    Ok(store::mesh::logins::is_live(&app.db, login_id, app.wall()).await?)
}

/// Makes every connection of a name, to any server, check whether its login is still valid.
pub(super) fn recheck_logins(app: &App, aid: &Aid) {
    Mesh::of(app).recheck_logins(aid);
    LOGINS.wake_others(app, aid);
}

/// Deletes logins that have ended, and spent tokens that no server would accept even if its clock is behind this one.
pub(crate) async fn sweep(app: &App) -> Result<(), Failure> {
    let ended_before = after(app.surely_past(), -CLOCKS_APART_MS_MAX);
    Ok(store::mesh::logins::delete_ended(&app.db, ended_before).await?)
}

/// Logins of an identity have ended.
pub(crate) const LOGINS: Topic = Topic::new("mesh.logins", wake_logins, |app| Mesh::of(app).recheck_all_logins())
    .urgent()
    .legacy(|word| legacy_wakeups::urgent_key(word, '!'));

fn wake_logins(app: &App, key: &str) {
    if let Ok(aid) = key.parse::<Aid>() {
        Mesh::of(app).recheck_logins(&aid);
    }
}
