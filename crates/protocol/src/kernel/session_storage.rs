//! A session's storage: the directory or volume in which an agent that is a program keeps its own account of the conversation,
//! so that a later run can resume it. What is known of it is a fold of the session's facts; the files themselves are elsewhere.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{Failure, Rule, Timestamp, ids::SessionId, kernel::sessions::Session};

/// Where Codex keeps its rollouts within the storage.
pub const CODEX_ROLLOUT_SUBDIR: &str = "sessions";
/// Sessions one sweep evicts by default; the next one takes the rest.
pub const SWEEP_DEFAULT: u32 = 100;
pub const SWEEP_MAX: u32 = 1_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum StorageKind {
    /// It never had any.
    #[default]
    None,
    /// A directory of the server's machine.
    Local,
    /// A volume claim of a Kubernetes cluster.
    Pvc,
    /// It had some, which was deleted permanently: the session accepts no further runs.
    Evicted,
}

enum_words!(StorageKind {
    None => "none",
    Local => "local",
    Pvc => "pvc",
    Evicted => "evicted",
});

impl StorageKind {
    /// Whether the session has storage.
    pub fn is_kept(self) -> bool {
        matches!(self, Self::Local | Self::Pvc)
    }
}

/// Where the storage of a session is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoragePlace {
    /// A directory of the server's machine, which its session names.
    Directory,
    /// A volume claim of a Kubernetes cluster.
    Claim { name: String, namespace: String },
}

impl StoragePlace {
    pub fn kind(&self) -> StorageKind {
        match self {
            Self::Directory => StorageKind::Local,
            Self::Claim { .. } => StorageKind::Pvc,
        }
    }
}

/// The name of a session's volume claim. It follows from the session alone, so that servers which create it concurrently, or
/// again after a lost response, create one claim. Ids that callers choose are not used: they need not be unique, and a cluster
/// may not accept them as names.
pub fn claim_name(prefix: &str, session: SessionId) -> String {
    let id = session.to_string();
    format!("{prefix}-{}", id.rsplit('_').next().unwrap_or(&id))
}

/// What a server does not find of a session's storage, for each kind that the storage may be of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MissingStorage {
    /// The directory does not exist.
    pub directory: bool,
    /// The volume claim does not exist. False if the server has no cluster, or its cluster does not respond.
    pub claim: bool,
}

/// The state of a session's storage; never its contents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionStorage {
    pub storage_kind: StorageKind,
    /// The volume claim of the storage; null where storage is a directory of the server's machine.
    #[serde(default)]
    pub storage_pvc_name: Option<String>,
    /// The Kubernetes namespace of the claim; null where there is none.
    #[serde(default)]
    pub storage_namespace: Option<String>,
    /// As of the last report, like all that follows.
    pub storage_size_bytes: Option<i64>,
    pub storage_files_count: Option<i64>,
    /// Over the sorted list of files and their contents; null where that was too much to read.
    pub storage_sha256: Option<String>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub storage_updated_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    pub storage_evicted_at: Option<Timestamp>,
    /// When it may be evicted, unless a run is active then; null is never.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
}

impl SessionStorage {
    /// New storage, kept at least until then.
    pub fn at(place: StoragePlace, expires_at: Option<Timestamp>) -> Self {
        let mut storage = Self { expires_at, ..Self::default() };
        storage.put_at(place);
        storage
    }

    /// It is at this place from now on.
    pub fn put_at(&mut self, place: StoragePlace) {
        self.storage_kind = place.kind();
        (self.storage_pvc_name, self.storage_namespace) = match place {
            StoragePlace::Directory => (None, None),
            StoragePlace::Claim { name, namespace } => (Some(name), Some(namespace)),
        };
    }

    /// Where it is. `None` if there is none.
    pub fn place(&self) -> Option<StoragePlace> {
        match (self.storage_kind, &self.storage_pvc_name, &self.storage_namespace) {
            (StorageKind::Local, ..) => Some(StoragePlace::Directory),
            (StorageKind::Pvc, Some(name), Some(namespace)) => {
                Some(StoragePlace::Claim { name: name.clone(), namespace: namespace.clone() })
            }
            _ => None,
        }
    }

    /// Whether an agent may have left something in it.
    pub fn is_used(&self) -> bool {
        self.storage_kind.is_kept() && self.storage_updated_at.is_some()
    }

    /// Evicted storage can neither be resumed nor started again: that would be another conversation under the same
    /// name.
    pub fn check(&self) -> Result<(), Failure> {
        match self.storage_kind {
            StorageKind::Evicted => Err(evicted()),
            StorageKind::None | StorageKind::Local | StorageKind::Pvc => Ok(()),
        }
    }

    /// Also refuses work if the storage is missing although an agent may have left files in it. Storage that was never used
    /// can be created again, so it may be missing.
    pub fn check_found(&self, missing: MissingStorage) -> Result<(), Failure> {
        let is_missing = match self.storage_kind {
            StorageKind::Local => missing.directory,
            StorageKind::Pvc => missing.claim,
            StorageKind::None | StorageKind::Evicted => false,
        };
        if is_missing && self.is_used() { Err(evicted()) } else { self.check() }
    }

    /// It is kept at least until then.
    pub fn keep_until(&mut self, until: Option<Timestamp>) {
        self.expires_at = self.expires_at.max(until);
    }
}

pub fn evicted() -> Failure {
    let message = "the session's storage was evicted; what its agent knew is gone, so it takes no more runs";
    Failure::rule(Rule::StorageEvicted, message)
}

/// The session's storage is of another kind than the runners of this server use, and cannot be moved.
pub fn elsewhere(kind: StorageKind) -> Failure {
    let place = match kind {
        StorageKind::Pvc => "a volume claim of a cluster",
        _ => "a directory of a server",
    };
    let message = format!("the session's storage is {place}, which the runners of this server do not reach");
    Failure::rule(Rule::StorageElsewhere, message)
}

/// The storage of one session.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionStorageView {
    pub session_id: String,
    pub tenant_id: String,
    /// The volume claim; null where sessions are folders of this server's own.
    pub pvc_name: Option<String>,
    /// The cluster's word for the state of the claim: `Pending`, `Bound` or `Lost`; null where there is none.
    pub pvc_phase: Option<String>,
    #[serde(flatten)]
    pub storage: SessionStorage,
    pub codex_rollout_subdir: String,
}

impl SessionStorageView {
    pub fn of(session: Session, pvc_phase: Option<String>) -> Self {
        Self {
            session_id: session.public_id(),
            tenant_id: session.tenant_id,
            pvc_name: session.storage.storage_pvc_name.clone(),
            pvc_phase,
            storage: session.storage,
            codex_rollout_subdir: CODEX_ROLLOUT_SUBDIR.to_owned(),
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct StorageQuery {
    /// Needed where the caller sees several tenants with a session of this id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
}

/// What a runner found in the storage after a turn.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RefreshStorage {
    /// The run whose runner reports; its session is the one.
    pub run_id: String,
    pub size_bytes: i64,
    pub files_count: i64,
    /// 64 hexadecimal digits; null where the contents were too much to read.
    #[serde(default)]
    pub sha256: Option<String>,
}

impl RefreshStorage {
    pub fn check(&self) -> Result<(), Failure> {
        if self.size_bytes < 0 || self.files_count < 0 {
            return Err(Failure::invalid(Rule::StorageSize, "sizeBytes and filesCount must not be negative"));
        }
        let is_digest = |text: &String| text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit());
        if !self.sha256.as_ref().is_none_or(is_digest) {
            return Err(Failure::invalid(Rule::StorageSha256, "sha256 must be 64 hexadecimal digits"));
        }
        Ok(())
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema, IntoParams)]
#[serde(rename_all = "camelCase", default)]
#[into_params(parameter_in = Query)]
pub struct SweepStorage {
    /// As if it were this time; the server's own when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    #[param(value_type = Option<String>, format = DateTime)]
    pub now: Option<Timestamp>,
    /// Sessions to evict at most.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

impl SweepStorage {
    /// The settings given here, otherwise those given there. Different values in the two places are refused.
    pub fn or(self, other: Self) -> Result<Self, Failure> {
        let clash =
            |name: &str| Failure::invalid(Rule::SweepTwice, format!("{name} differs in the body and the query"));
        if self.now.is_some() && other.now.is_some() && self.now != other.now {
            return Err(clash("now"));
        }
        if self.limit.is_some() && other.limit.is_some() && self.limit != other.limit {
            return Err(clash("limit"));
        }
        Ok(Self { now: self.now.or(other.now), limit: self.limit.or(other.limit) })
    }
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SweptStorage {
    /// Sessions whose storage had expired and is gone now.
    pub evicted: Vec<SessionStorageView>,
    /// Expired sessions skipped because a run is active; the next sweep retries.
    pub busy: u32,
    /// More had expired than the limit allows for.
    pub has_more: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_has_a_name_that_a_cluster_accepts_and_any_server_can_work_out() {
        let session: SessionId = format!("ses_{:032x}", 0x1f).parse().unwrap();
        let name = claim_name("agentrun-v01-session", session);
        assert_eq!(name, format!("agentrun-v01-session-{:032x}", 0x1f));
        assert!(name.len() <= 63);
    }

    #[test]
    fn storage_is_missing_only_if_it_was_used_and_its_own_kind_is_not_found() {
        let claim = StoragePlace::Claim { name: "c".into(), namespace: "n".into() };
        for (place, lost, other) in [
            (
                StoragePlace::Directory,
                MissingStorage { directory: true, claim: false },
                MissingStorage { directory: false, claim: true },
            ),
            (claim, MissingStorage { directory: false, claim: true }, MissingStorage { directory: true, claim: false }),
        ] {
            let fresh = SessionStorage::at(place.clone(), None);
            assert_eq!((fresh.storage_kind, fresh.place()), (place.kind(), Some(place)));
            assert!(fresh.check_found(lost).is_ok(), "nothing is lost with storage that was never used");
            let used = SessionStorage { storage_updated_at: Some(Timestamp::UNIX_EPOCH), ..fresh };
            assert_eq!(used.check_found(lost).unwrap_err().rule_name(), Some("storage-evicted"));
            assert!(used.check_found(other).is_ok());
        }
        assert!(SessionStorage::default().check_found(MissingStorage { directory: true, claim: true }).is_ok());
    }

    #[test]
    fn a_record_from_before_claims_has_none() {
        let stored = r#"{"storageKind":"local","storageSizeBytes":7,"storageFilesCount":1,"storageSha256":null,
            "storageUpdatedAt":null,"storageEvictedAt":null,"expiresAt":null}"#;
        let storage: SessionStorage = serde_json::from_str(stored).unwrap();
        assert_eq!(storage.place(), Some(StoragePlace::Directory));
        for kind in [StorageKind::None, StorageKind::Local, StorageKind::Pvc, StorageKind::Evicted] {
            assert_eq!(StorageKind::parse(kind.as_str()), Some(kind));
        }
    }
}
