//! Authenticates tokens. Results are cached for a few seconds, so that a busy caller costs the store nothing; revoking a right
//! clears the cache of this server at once.

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU64, Ordering},
};

use jiff::SignedDuration;
use ostler_protocol::{
    Failure, Rule, Timestamp,
    ids::{RunId, RunnerJobId},
    kernel::runner_jobs::JobPhase,
    limits::USER_TOKEN_BYTES_MAX,
};
use ostler_store::{self as store, Db};
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use secrecy::{ExposeSecret, SecretString};

use super::{Issuers, Principal, RUN, mint, token_hash, tokens::PREFIX, unauthenticated};
use crate::auth::TokenKind;

const TOKEN_BYTES_MAX: usize = 256;
const CALLERS_REMEMBERED: usize = 1_024;
/// How long another server of the same store may still admit a caller whose right was revoked.
const REMEMBERED: SignedDuration = SignedDuration::from_secs(5);

pub struct Authenticator {
    /// The operator may have several tokens.
    operator_hashes: Vec<String>,
    pub issuers: Issuers,
    /// Kinds of tokens that belong to dialects.
    kinds: Vec<TokenKind>,
    /// Recent callers by the hash of their token, each with the time of the next lookup.
    callers: Cache<String, (Principal, Timestamp)>,
    /// How often the cache was cleared: the result of an earlier lookup must not be cached afterwards.
    forgotten: AtomicU64,
    /// Tokens of runners inside this process; they never leave it.
    residents: Mutex<HashMap<String, Principal>>,
}

impl Authenticator {
    pub fn new(operator: &[SecretString], issuers: Issuers, kinds: Vec<TokenKind>) -> Self {
        Self {
            operator_hashes: operator.iter().map(|token| token_hash(token.expose_secret())).collect(),
            issuers,
            kinds,
            callers: Cache::new(CALLERS_REMEMBERED),
            forgotten: AtomicU64::new(0),
            residents: Mutex::default(),
        }
    }

    pub async fn authenticate(&self, db: &Db, token: &str, now: Timestamp) -> Result<Principal, Failure> {
        let bytes_max = if token.starts_with(PREFIX) { TOKEN_BYTES_MAX } else { USER_TOKEN_BYTES_MAX };
        if token.len() > bytes_max {
            return Err(not_valid());
        }
        let hash = token_hash(token);
        let is_operators = |own: &String| ostler_crypto::equal(hash.as_bytes(), own.as_bytes());
        if self.operator_hashes.iter().any(is_operators) {
            return Ok(Principal::Operator);
        }
        if let Some(principal) = self.residents.lock().get(&hash) {
            return Ok(principal.clone());
        }
        if let Some((principal, until)) = self.callers.get(&hash)
            // Further in the future than any entry is cached: the wall clock was set back since.
            && (SignedDuration::from_nanos(1)..=REMEMBERED).contains(&until.duration_since(now))
        {
            return Ok(principal);
        }
        let forgotten = self.forgotten.load(Ordering::SeqCst);
        let (principal, end) = match token.strip_prefix(PREFIX) {
            Some(ours) => look_up(db, &self.kinds, ours, &hash, now).await?,
            None => self.user(db, token, now).await?,
        };
        let until = now.checked_add(REMEMBERED).unwrap_or(now);
        let until = end.map_or(until, |end| end.min(until));
        self.callers.insert(hash.clone(), (principal.clone(), until));
        if self.forgotten.load(Ordering::SeqCst) != forgotten {
            self.callers.remove(&hash);
        }
        Ok(principal)
    }

    /// The user of a signed token, and when the token expires.
    async fn user(&self, db: &Db, token: &str, now: Timestamp) -> Result<(Principal, Option<Timestamp>), Failure> {
        let verified = self.issuers.verify(db, token, now).await?.ok_or_else(not_valid)?;
        let user = store::users::find_by_subject(db, &verified.issuer, &verified.subject).await?;
        // The issuer has authenticated this caller, so the caller may know the reason.
        let user = user.ok_or_else(|| Failure::rule(Rule::UserUnknown, "the operator has not added this user"))?;
        let principal = Principal::User { user_id: user.user_id, name: user.name.into(), tenants: user.tenants.into() };
        Ok((principal, Some(verified.until)))
    }

    /// Clears the cache, so that every caller is authenticated again. Call it after the revocation of a right is durable.
    pub fn forget_callers(&self) {
        self.forgotten.fetch_add(1, Ordering::SeqCst);
        self.callers.clear();
    }

    pub fn admit_resident(&self, run_id: RunId, runner_job_id: RunnerJobId) -> ResidentToken {
        let token = mint(RUN);
        let hash = token_hash(token.expose_secret());
        let principal = Principal::Runner { run_id, runner_job_id };
        self.residents.lock().insert(hash.clone(), principal);
        ResidentToken { token, hash }
    }

    pub fn dismiss_resident(&self, token: &ResidentToken) {
        self.residents.lock().remove(&token.hash);
    }
}

/// The caller of a token of ours, and when the token expires.
async fn look_up(
    db: &Db,
    kinds: &[TokenKind],
    rest: &str,
    hash: &str,
    now: Timestamp,
) -> Result<(Principal, Option<Timestamp>), Failure> {
    if rest.starts_with(RUN) {
        let job = store::kernel::runner_jobs::find_by_token_hash(db, hash).await?;
        // Valid only while its job runs, so it is looked up each time.
        let job = job.filter(|job| job.phase == JobPhase::Running).ok_or_else(not_valid)?;
        return Ok((Principal::Runner { run_id: job.run_id, runner_job_id: job.runner_job_id }, Some(now)));
    }
    if let Some(kind) = kinds.iter().find(|kind| rest.starts_with(kind.name)) {
        return (kind.find)(db.clone(), hash.to_owned(), now).await?.ok_or_else(not_valid);
    }
    let found = store::tokens::find_by_hash(db, hash).await?;
    let found = found.filter(|found| found.is_good(now)).ok_or_else(not_valid)?;
    let principal = Principal::Service { token_id: found.token_id, tenants: found.tenants.into(), role: found.role };
    Ok((principal, found.expires_at))
}

/// The message gives no reason, so that it reveals nothing about tokens that were once valid.
fn not_valid() -> Failure {
    unauthenticated("the token is not valid")
}

pub struct ResidentToken {
    pub token: SecretString,
    hash: String,
}
