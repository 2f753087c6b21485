//! A session's storage: the directory in which an agent that is a program keeps its own account of the conversation, so
//! that a later run can resume it. What is known of it is a fold of the session's facts; the files themselves are elsewhere.

use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::{Failure, Rule, Timestamp, kernel::sessions::Session};

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
    /// It had some, which was deleted permanently: the session accepts no further runs.
    Evicted,
}

impl StorageKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Local => "local",
            Self::Evicted => "evicted",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::None, Self::Local, Self::Evicted].into_iter().find(|kind| kind.as_str() == text)
    }
}

/// The state of a session's storage; never its contents.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionStorage {
    pub storage_kind: StorageKind,
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
    /// Whether an agent may have left something in it.
    pub fn is_used(&self) -> bool {
        self.storage_kind == StorageKind::Local && self.storage_updated_at.is_some()
    }

    /// Evicted storage can neither be resumed nor started again: that would be another conversation under the same
    /// name.
    pub fn check(&self) -> Result<(), Failure> {
        match self.storage_kind {
            StorageKind::Evicted => Err(evicted()),
            StorageKind::None | StorageKind::Local => Ok(()),
        }
    }

    /// Also refuses work if the directory is missing although an agent may have left files in it. A directory that was
    /// never used can be created again, so it may be missing.
    pub fn check_found(&self, is_missing: bool) -> Result<(), Failure> {
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

/// The storage of one session.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionStorageView {
    pub session_id: String,
    pub tenant_id: String,
    /// The volume claim; null where sessions are folders of this server's own.
    pub pvc_name: Option<String>,
    pub pvc_phase: Option<String>,
    #[serde(flatten)]
    pub storage: SessionStorage,
    pub codex_rollout_subdir: String,
}

impl SessionStorageView {
    pub fn of(session: Session) -> Self {
        Self {
            session_id: session.public_id(),
            tenant_id: session.tenant_id,
            pvc_name: None,
            pvc_phase: None,
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
    /// Expired too, but a run is active in them: the next sweep asks again.
    pub busy: u32,
    /// More had expired than the limit allows for.
    pub has_more: bool,
}
