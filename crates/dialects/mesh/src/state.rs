//! The state of the mesh in this process: its authorities' keys, connections, rate limits, and signed responses.

use std::{
    net::IpAddr,
    sync::{Arc, OnceLock},
};

use jiff::SignedDuration;
use ostler_protocol::{
    Failure, Rule, Timestamp,
    mesh::{
        Aid,
        methods::{Method, MethodRow},
    },
};
use ostler_store::mesh::messages::MailboxLane;
use parking_lot::Mutex;
use quick_cache::sync::Cache;
use tokio::sync::Semaphore;

use crate::{
    config::MeshSection,
    gateway::connections::Connections,
    metrics::Sends,
    pki::Pki,
    service::pki::{SignedList, StatusResponse},
};
use ostler_server::{
    app::App,
    config::LimitsSection,
    net::rates::{Buckets, RateOwner},
};

/// Callers whose calls are counted; the least recent ones are evicted.
const CALLERS_REMEMBERED: usize = 65_536;
/// Room for the one key of a bucket that all callers share; with less, it could be evicted.
const ONE_KEY: usize = 16;
/// Signed responses about certificates that are cached.
const STATUS_RESPONSES_CACHED: usize = 4_096;
/// How long a name is cached as valid: a wake-up about a revocation on another server may be lost.
const VALID_CACHED: SignedDuration = SignedDuration::from_secs(30);
const MINUTE: SignedDuration = SignedDuration::from_mins(1);
const HOUR: SignedDuration = SignedDuration::from_hours(1);
const DAY: SignedDuration = SignedDuration::from_hours(24);
/// Each change of a key lengthens the revocation list, which every client reads.
const REKEYS_PER_DAY_MAX: u32 = 10;
/// Signatures of the issuer that clients of one address may request.
const SIGNATURES_PER_MINUTE_MAX: u32 = 600;
/// Frames that are not a known call: of one identity, or of one address before `auth.connect`.
const MISFITS_PER_MINUTE_MAX: u32 = 600;

pub(crate) struct Mesh {
    pub config: MeshSection,
    /// The keys, or why this server has no mesh.
    pki: Result<Pki, String>,
    pub connections: Arc<Connections>,
    mailboxes: OnceLock<MailboxLane>,
    /// Names that were valid when they were last read.
    valid: Cache<Aid, Timestamp>,
    /// Held while a task writes to the log of certificates, so that writes take turns.
    pub certifying: tokio::sync::Mutex<()>,
    pub revocations: Mutex<Option<SignedList>>,
    pub roots: Mutex<Option<(Timestamp, Arc<str>)>>,
    pub status_responses: Cache<String, StatusResponse>,
    calls: Buckets<(RateOwner, Method)>,
    registrations: Buckets<RateOwner>,
    registrations_total: Buckets<()>,
    rekeys: Buckets<Aid>,
    signatures: Buckets<RateOwner>,
    /// A permit for each connection that may still be opened.
    pub sockets: Arc<Semaphore>,
    pub sends: Sends,
    misfits: Buckets<RateOwner>,
}

impl Mesh {
    pub(crate) fn new(pki: Result<Pki, String>, config: MeshSection, limits: &LimitsSection) -> Self {
        let connections = Arc::<Connections>::default();
        Self {
            pki,
            connections,
            mailboxes: OnceLock::new(),
            valid: Cache::new(CALLERS_REMEMBERED),
            certifying: tokio::sync::Mutex::default(),
            revocations: Mutex::default(),
            roots: Mutex::default(),
            status_responses: Cache::new(STATUS_RESPONSES_CACHED),
            calls: Buckets::new(CALLERS_REMEMBERED),
            registrations: Buckets::new(CALLERS_REMEMBERED),
            registrations_total: Buckets::new(ONE_KEY),
            rekeys: Buckets::new(CALLERS_REMEMBERED),
            signatures: Buckets::new(CALLERS_REMEMBERED),
            sockets: Arc::new(Semaphore::new(limits.sockets_max)),
            sends: Sends::default(),
            misfits: Buckets::new(CALLERS_REMEMBERED),
            config,
        }
    }

    /// The mesh of this server.
    pub(crate) fn of(app: &App) -> &Self {
        app.state()
    }

    pub(crate) fn pki(&self) -> Result<&Pki, Failure> {
        self.pki.as_ref().map_err(|why| Failure::rule(Rule::MeshOff, why.as_str()))
    }

    /// The lane of sends and acknowledgements. It starts with the first of them, so that a server whose mesh is not used has no
    /// task and no connection for it.
    pub(crate) fn mailboxes(&self, app: &App) -> &MailboxLane {
        self.mailboxes.get_or_init(|| MailboxLane::start(&app.db, &app.lanes))
    }

    /// Whether this name was valid a moment ago.
    pub(crate) fn is_known_valid(&self, aid: &Aid, now: Timestamp) -> bool {
        self.valid.get(aid).is_some_and(|at| (SignedDuration::ZERO..VALID_CACHED).contains(&now.duration_since(at)))
    }

    pub(crate) fn remember_valid(&self, aid: &Aid, at: Timestamp) {
        self.valid.insert(aid.clone(), at);
    }

    /// Called when logins of an identity have ended, on any server: its connections check their logins, and its name is read
    /// again.
    pub(crate) fn recheck_logins(&self, aid: &Aid) {
        self.valid.remove(aid);
        self.connections.recheck_logins(aid);
    }

    /// The same for all identities, after wake-ups may have been lost.
    pub(crate) fn recheck_all_logins(&self) {
        self.valid.clear();
        self.connections.recheck_all_logins();
    }

    /// Counts a call against its caller: the identity, or the address before `auth.connect`.
    pub(crate) fn count(
        &self,
        method: &MethodRow,
        aid: Option<&Aid>,
        peer: IpAddr,
        now: Timestamp,
    ) -> Result<(), Failure> {
        let whose = RateOwner::of(aid, peer);
        let taken = self.calls.take((whose, method.method), method.calls_per_minute_max, MINUTE, now);
        taken.map_err(|wait_ms| too_often(Rule::MeshCalls, format!("too many calls of {}", method.name), wait_ms))
    }

    /// Limits registrations, so that no client can register all the good names, from however many addresses.
    pub(crate) fn count_registration(&self, peer: IpAddr, config: &MeshSection, now: Timestamp) -> Result<(), Failure> {
        let taken = self.registrations.take(RateOwner::peer(peer), config.registrations_per_hour_max, HOUR, now);
        taken.map_err(|wait_ms| {
            too_often(Rule::MeshRegistrations, "too many names are registered from this address".into(), wait_ms)
        })?;
        let taken = self.registrations_total.take((), config.registrations_per_hour_total_max, HOUR, now);
        taken
            .map_err(|wait_ms| too_often(Rule::MeshRegistrationsTotal, "too many names are registered".into(), wait_ms))
    }

    pub(crate) fn count_signature(&self, peer: IpAddr, now: Timestamp) -> Result<(), Failure> {
        let taken = self.signatures.take(RateOwner::peer(peer), SIGNATURES_PER_MINUTE_MAX, MINUTE, now);
        taken.map_err(|wait_ms| {
            too_often(Rule::MeshSignatures, "too many requests for signatures from this address".into(), wait_ms)
        })
    }

    /// Counts a frame that is not a call against the identity, or the address before `auth.connect`. False if there are too many.
    pub(crate) fn count_misfit(&self, aid: Option<&Aid>, peer: IpAddr, now: Timestamp) -> bool {
        self.misfits.take(RateOwner::of(aid, peer), MISFITS_PER_MINUTE_MAX, MINUTE, now).is_ok()
    }

    pub(crate) fn count_rekey(&self, aid: &Aid, now: Timestamp) -> Result<(), Failure> {
        let taken = self.rekeys.take(aid.clone(), REKEYS_PER_DAY_MAX, DAY, now);
        taken.map_err(|wait_ms| too_often(Rule::MeshRekeys, format!("{aid} has changed its key too often"), wait_ms))
    }
}

fn too_often(rule: Rule, message: String, wait_ms: i64) -> Failure {
    Failure::rule(rule, message).detail("retryAfterMs", wait_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registrations_are_limited_per_address_and_in_total() {
        let mesh = Mesh::new(Err("no keys".into()), MeshSection::default(), &LimitsSection::default());
        let config = MeshSection {
            registrations_per_hour_max: 2,
            registrations_per_hour_total_max: 5,
            ..MeshSection::default()
        };
        let now = Timestamp::UNIX_EPOCH;
        let refused = |last: u8, now| {
            let refused = mesh.count_registration([192, 0, 2, last].into(), &config, now).err();
            refused.map(|failure| failure.rule_name().unwrap().to_owned())
        };
        for last in [1, 1, 2, 2] {
            assert_eq!(refused(last, now), None);
        }
        assert_eq!(refused(1, now).as_deref(), Some("mesh-registrations"));
        assert_eq!(refused(3, now), None, "a rejected registration does not count against the total");
        assert_eq!(refused(4, now).as_deref(), Some("mesh-registrations-total"));
        assert_eq!(refused(5, now + HOUR), None);
    }

    #[test]
    fn signatures_key_changes_and_bad_frames_are_limited() {
        let mesh = Mesh::new(Err("no keys".into()), MeshSection::default(), &LimitsSection::default());
        let (peer, other) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let now = Timestamp::UNIX_EPOCH;
        let signatures = (0..1_000).filter(|_| mesh.count_signature(peer, now).is_ok()).count();
        assert_eq!(signatures, SIGNATURES_PER_MINUTE_MAX as usize);
        assert!(mesh.count_signature(other, now).is_ok());
        let aid: Aid = "alice.probe.test".parse().unwrap();
        let changed = (0..100).filter(|_| mesh.count_rekey(&aid, now).is_ok()).count();
        assert_eq!(changed, REKEYS_PER_DAY_MAX as usize);
        let misfits = (0..1_000).filter(|_| mesh.count_misfit(None, peer, now)).count();
        assert_eq!(misfits, MISFITS_PER_MINUTE_MAX as usize);
        assert!(mesh.count_misfit(Some(&aid), peer, now), "an identity has a limit of its own");
    }
}
