//! Tokens of agents: an access token for connections and uploads, and a refresh token for the next pair. Only the last
//! pair of a login is good, and only hashes are kept.

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

use crate::{state::Mesh, topics::LOGINS};
use ostler_server::{
    app::App,
    auth::{mint, token_hash},
};

/// The kinds of token, after the prefix of all tokens: for connections, and the one that is exchanged for the next.
const AID_ACCESS: &str = "aid";
const AID_REFRESH: &str = "air";
const TOKEN_BYTES_MAX: usize = 256;
/// How far the clocks of two servers may be apart: what was used up is remembered for so long after its end.
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

/// The first pair of a login, which stands as long as the certificate that it was proved with.
pub async fn begin(app: &App, proved: &Identity, new_cert: Option<String>) -> Result<Login2Result, Failure> {
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

/// The next pair. A refused one is a result: clients then log in anew.
pub async fn refresh(app: &App, token: &str) -> Result<RefreshTokenResult, Failure> {
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
            tracing::warn!(%aid, "a refresh token was shown a second time; its login was ended");
            doubt(&app, &aid);
        }
        Ok(())
    })
    .await?;
    Ok(RefreshTokenResult { error: Some("the refresh token is not valid".into()), ..RefreshTokenResult::default() })
}

/// The agent that an access token speaks for, and the login it is of. `None`: nobody, or not any more.
pub async fn whose(app: &App, token: &str) -> Result<Option<(Aid, String)>, Failure> {
    if token.len() > TOKEN_BYTES_MAX {
        return Ok(None);
    }
    Ok(store::mesh::logins::find_by_access(&app.db, &token_hash(token), app.wall()).await?)
}

/// Whether a login still stands: it ends with its chain, with what it was proved by, and with a stolen token.
pub async fn is_live(app: &App, login_id: &str) -> Result<bool, Failure> {
    Ok(store::mesh::logins::is_live(&app.db, login_id, app.wall()).await?)
}

/// Has every connection of a name, to whichever server, look whether its login still stands.
pub(super) fn doubt(app: &App, aid: &Aid) {
    Mesh::of(app).doubt(aid);
    app.wake_others(&LOGINS, aid);
}

/// Forgets logins that are over, and what can be used no more anyway, wherever a clock is behind this one.
pub async fn sweep(app: &App) -> Result<(), Failure> {
    let ended_before = after(app.surely_past(), -CLOCKS_APART_MS_MAX);
    Ok(store::mesh::logins::delete_ended(&app.db, ended_before).await?)
}
