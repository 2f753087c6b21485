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
    operator_digests: Vec<OperatorDigest>,
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
            operator_digests: operator.iter().map(OperatorDigest::of).collect(),
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
        // Without an early end, so that the time does not depend on which token it is.
        if self.operator_digests.iter().fold(false, |found, own| found | own.matches(&hash)) {
            return Ok(Principal::Operator);
        }
        // All other tokens are looked up by their SHA-256 digest, here and in the store. The comparisons of a lookup may end
        // early, but they reveal at most a part of a digest: a caller cannot choose a token by its digest, and a part of a digest
        // is no help in guessing 256 random bits.
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
        // On the heap: these are rare, and the future of every request would have room for them.
        let (principal, end) = match token.strip_prefix(PREFIX) {
            Some(ours) => Box::pin(look_up(db, &self.kinds, ours, &hash, now)).await?,
            None => Box::pin(self.user(db, token, now)).await?,
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
        let user = user.ok_or_else(|| {
            Failure::rule(Rule::UserUnknown, "the operator has not added this user, or has removed the user")
        })?;
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

/// The SHA-256 digest of a token of the operator, in hex. It has no `PartialEq`: the only comparison takes constant time.
struct OperatorDigest(String);

impl OperatorDigest {
    fn of(token: &SecretString) -> Self {
        Self(token_hash(token.expose_secret()))
    }

    fn matches(&self, hash: &str) -> bool {
        ostler_crypto::equal(self.0.as_bytes(), hash.as_bytes())
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

#[cfg(test)]
mod tests {
    use std::marker::PhantomData;

    use super::*;

    struct Comparable<T>(PhantomData<T>);

    /// The constant of types without `PartialEq`, for which [`Comparable`] has no constant of its own.
    trait NotComparable {
        const WITH_EQ: bool = false;
    }

    impl<T> NotComparable for Comparable<T> {}

    impl<T: PartialEq> Comparable<T> {
        const WITH_EQ: bool = true;
    }

    #[test]
    fn a_digest_of_the_operator_can_be_compared_in_constant_time_only() {
        let is_comparable = [Comparable::<String>::WITH_EQ, Comparable::<OperatorDigest>::WITH_EQ];
        assert_eq!(is_comparable, [true, false], "an ordinary comparison ends at the first byte that differs");
    }

    #[test]
    fn a_digest_matches_its_own_token_and_no_part_of_it() {
        let token = mint("op");
        let digest = OperatorDigest::of(&token);
        let text = token.expose_secret();
        assert!(digest.matches(&token_hash(text)));
        for other in [&text[..text.len() - 1], &format!("{text}0"), &text.to_uppercase(), ""] {
            assert!(!digest.matches(&token_hash(other)), "{other}");
        }
        assert!(!digest.matches(text) && !digest.matches(&digest.0[..63]), "only a whole digest is compared");
    }
}
