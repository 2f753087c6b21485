//! Sessions: a conversation that outlives runs. The row is a fold of the session's events.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use crate::{
    Failure, Rule, Timestamp,
    ids::{CommandId, RunId, SessionId},
    json::{canonical_hash, hex, text_of},
    kernel::{
        chain::Hash,
        labels::{LabelPatch, Labels},
        liveness::{Liveness, Supervisor},
        policy::SecretRef,
        provider_profiles::{AgentConfig, secret_ref},
        results::ChainHead,
        runs::RunState,
        session_storage::{CODEX_ROLLOUT_SUBDIR, SessionStorage, StorageKind},
    },
    limits::{SESSION_METADATA_BYTES_MAX, SESSION_TITLE_BYTES_MAX},
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExecutionState {
    Idle,
    Running,
    Terminal,
}

enum_words!(ExecutionState { Idle => "idle", Running => "running", Terminal => "terminal" });

/// The session that another one continues, up to and including the event of this number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParentSession {
    pub session: SessionId,
    pub seq: i64,
}

/// A session as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Session {
    pub session: SessionId,
    pub tenant_id: String,
    /// The id the caller chose; unique in its tenant.
    pub external_id: Option<String>,
    pub idempotency_key: Option<String>,
    /// Of the request that made it; `None` where it came with a run.
    pub request_hash: Option<String>,
    /// Whose thread it is. A session of the manager dialect has no owner but its tenant.
    pub owner: Option<String>,
    /// The session whose conversation it continues. What is erased there is missing here, too.
    pub parent: Option<ParentSession>,
    /// The caller's own id of the conversation. Several sessions may have the same.
    pub conversation_id: Option<String>,
    /// Opaque JSON of the caller, stored with the session. It is a JSON object as text, decoded only to be shown.
    pub metadata: Option<Arc<str>>,
    /// The server has started it by itself: it is not one of its owner's own conversations. A thread of an automation is for its
    /// owner to read. A session without an id of its own has the run that a call of an agent has started: the calling run gets its
    /// result, so that the session is never unread.
    pub background: bool,
    pub backend_profile: String,
    pub title: Option<String>,
    pub labels: Labels,
    /// Clients that are attached to it, in the order in which they joined.
    pub participants: Vec<String>,
    /// It accepts no further runs or commands.
    pub closed_at: Option<Timestamp>,
    /// Its owner erased it: clients can no longer find it, and only the digests of its events stay.
    pub erased_at: Option<Timestamp>,
    /// The agent's own thread.
    pub thread_id: Option<String>,
    pub storage: SessionStorage,
    pub last_seq: i64,
    pub chain_head: Hash,
    /// Rises whenever a command or a run ends; a reader's cursor holds the version it has seen.
    pub version: i64,
    /// When that last happened.
    pub ended_at: Option<Timestamp>,
    pub execution_state: ExecutionState,
    /// The one run with a live lease or an unfinished command.
    pub active_run_id: Option<RunId>,
    pub active_command_id: Option<CommandId>,
    pub active_unfinished: i64,
    pub active_lease_until: Option<Timestamp>,
    pub last_run_id: Option<RunId>,
    pub last_command_id: Option<CommandId>,
    /// Rises with every flush that writes anything of the session, its runs or their commands: who decided on an older
    /// one decided on rows that have changed since.
    pub revision: i64,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

impl Session {
    /// The digest of what never changes about a session, recorded in its first event.
    pub fn record_digest(&self) -> String {
        let mut record = serde_json::json!({
            "session": self.session.to_string(), "tenantId": self.tenant_id, "externalId": self.external_id,
            "owner": self.owner, "idempotencyKey": self.idempotency_key, "requestHash": self.request_hash,
            "createdAtUs": self.created_at.as_microsecond(),
        });
        // Only where there is one, so that the digests of older sessions stay as they are.
        if let Some(parent) = self.parent {
            record["parent"] = serde_json::json!({"session": parent.session.to_string(), "seq": parent.seq});
        }
        if let Some(conversation_id) = &self.conversation_id {
            record["conversationId"] = conversation_id.as_str().into();
        }
        if let Some(metadata) = &self.metadata {
            record["metadata"] = serde_json::from_str(metadata).unwrap_or_default();
        }
        canonical_hash(&record)
    }

    pub fn new(
        session: SessionId,
        tenant_id: String,
        external_id: Option<String>,
        profile: String,
        now: Timestamp,
    ) -> Self {
        Self {
            session,
            tenant_id,
            external_id,
            idempotency_key: None,
            request_hash: None,
            owner: None,
            parent: None,
            conversation_id: None,
            metadata: None,
            background: false,
            backend_profile: profile,
            title: None,
            labels: Labels::default(),
            participants: vec![],
            closed_at: None,
            erased_at: None,
            thread_id: None,
            storage: SessionStorage::default(),
            last_seq: 0,
            chain_head: crate::kernel::chain::GENESIS,
            version: 0,
            ended_at: None,
            execution_state: ExecutionState::Idle,
            active_run_id: None,
            active_command_id: None,
            active_unfinished: 0,
            active_lease_until: None,
            last_run_id: None,
            last_command_id: None,
            revision: 0,
            created_at: now,
            updated_at: now,
        }
    }

    /// A command or a run of it has ended.
    pub fn has_ended_one(&mut self, now: Timestamp) {
        self.version += 1;
        self.ended_at = Some(now);
    }

    /// The id that callers use for it.
    pub fn public_id(&self) -> String {
        self.external_id.clone().unwrap_or_else(|| self.session.to_string())
    }

    /// The active run, if it is another one than `run`.
    pub fn busy_with_other(&self, run: Option<RunId>, now: Timestamp) -> Option<RunId> {
        let active = self.active_run_id.filter(|active| Some(*active) != run)?;
        let leased = self.active_lease_until.is_some_and(|until| until > now);
        (leased || self.active_unfinished > 0).then_some(active)
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CreateSession {
    #[schema(value_type = String, required)]
    pub tenant_id: Option<String>,
    /// The caller's own id for it; ours when left out. The same id again answers with the same session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_id: Option<String>,
    #[schema(value_type = String, required)]
    pub backend_profile: Option<String>,
    /// What people call it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The caller's own id of the conversation; it need not be unique.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<String>,
    /// What the caller keeps with the session. It is redacted and never read.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Map<String, Value>>,
    /// At most 16, by which the session can be found.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<std::collections::BTreeMap<String, String>>)]
    pub labels: Option<Labels>,
    /// `local` makes its storage at once, `none` when a run first needs it. `pvc` makes a volume claim, and takes the place of
    /// `local` where runners are Kubernetes Jobs. When left out storage is made at once, except for the profiles `scripted` and
    /// `model`, whose agents keep no files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub storage_kind: Option<StorageKind>,
    /// When its storage may be evicted; the server's configured default when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub expires_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateSession {
    /// The new title; an empty one takes it away. Either it or `labels` is required.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// Labels to set by their keys; null removes one. Others stay as they are.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<std::collections::BTreeMap<String, Option<String>>>)]
    pub labels: Option<LabelPatch>,
    /// Needed where the caller sees several tenants with a session of this id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
}

/// Checks the size of a session's metadata.
pub fn check_metadata(metadata: &Map<String, Value>) -> Result<(), Failure> {
    let bytes = text_of(metadata).len();
    match bytes > SESSION_METADATA_BYTES_MAX {
        true => Err(Failure::too_large(Rule::SessionMetadataSize, "metadata", bytes, SESSION_METADATA_BYTES_MAX)),
        false => Ok(()),
    }
}

/// The profile of a session, and the name of its secret.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProfileRef {
    pub profile: String,
    /// The secret that a run of the profile names; never its value. It follows from the profile's name: null for `scripted` and
    /// `model`. Another profile has one here even if its agent needs none, such as a model server without a credential.
    pub secret_ref: Option<SecretRef>,
}

impl ProfileRef {
    pub fn of(profile: &str) -> Self {
        // The config of the profile is not read, which would be a read for each session of a list.
        let needs_secret = AgentConfig::of_profile(profile).is_some_and(|agent| agent != AgentConfig::Scripted);
        Self { profile: profile.to_owned(), secret_ref: needs_secret.then(|| secret_ref(profile)) }
    }
}

/// Checks a title. `None`: an empty one, which is none.
pub fn title(text: &str) -> Result<Option<String>, Failure> {
    let text = text.trim();
    if text.len() > SESSION_TITLE_BYTES_MAX {
        return Err(Failure::invalid(Rule::TitleSize, format!("title is over {SESSION_TITLE_BYTES_MAX} bytes")));
    }
    if text.chars().any(char::is_control) {
        return Err(Failure::invalid(Rule::TitleShape, "title must not have control characters"));
    }
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

/// A session as callers see it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionView {
    pub session_id: String,
    pub tenant_id: String,
    pub backend_profile: String,
    #[serde(default)]
    #[schema(required)]
    pub profile_ref: ProfileRef,
    pub title: Option<String>,
    /// The caller's own id of the conversation.
    #[serde(default)]
    pub conversation_id: Option<String>,
    /// What the caller keeps with the session; null in lists.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub metadata: Option<Map<String, Value>>,
    #[serde(default)]
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub labels: Labels,
    pub execution_state: ExecutionState,
    /// The state of the active or latest run, for people. `waiting` before the first run; null if it was closed before that.
    #[serde(default)]
    pub state: Option<RunState>,
    /// Rises whenever a command or a run ends.
    pub version: i64,
    /// The version this reader has seen; 0 before the first read.
    pub read_version: i64,
    pub unread: bool,
    pub active_run_id: Option<RunId>,
    pub active_command_id: Option<CommandId>,
    pub last_run_id: Option<RunId>,
    pub last_command_id: Option<CommandId>,
    /// The number of the session's last event.
    pub last_seq: i64,
    pub thread_id: Option<String>,
    #[serde(flatten)]
    pub storage: SessionStorage,
    /// The cluster's word for the state of the volume claim: `Pending`, `Bound` or `Lost`; null where there is none.
    #[serde(default)]
    pub storage_pvc_phase: Option<String>,
    /// Where in its storage Codex keeps its record of the conversation.
    #[serde(default)]
    pub codex_rollout_subdir: String,
    pub chain_head: ChainHead,
    /// Of the active or last run; null before the first, and in lists.
    pub liveness: Option<Liveness>,
    pub supervisor: Option<Supervisor>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub updated_at: Timestamp,
    /// It accepts no further runs or commands.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub closed_at: Option<Timestamp>,
}

impl SessionView {
    pub fn of(session: Session, read_version: i64, state: Option<RunState>, liveness: Option<Liveness>) -> Self {
        Self {
            session_id: session.public_id(),
            tenant_id: session.tenant_id,
            profile_ref: ProfileRef::of(&session.backend_profile),
            backend_profile: session.backend_profile,
            title: session.title,
            conversation_id: session.conversation_id,
            metadata: session.metadata.and_then(|text| serde_json::from_str(&text).ok()),
            labels: session.labels,
            execution_state: session.execution_state,
            state: state.or(session.closed_at.is_none().then_some(RunState::Waiting)),
            version: session.version,
            read_version,
            unread: session.version > read_version,
            active_run_id: session.active_run_id,
            active_command_id: session.active_command_id,
            last_run_id: session.last_run_id,
            last_command_id: session.last_command_id,
            last_seq: session.last_seq,
            thread_id: session.thread_id,
            storage: session.storage,
            // The session's events do not determine it; a server that watches the cluster sets it.
            storage_pvc_phase: None,
            codex_rollout_subdir: CODEX_ROLLOUT_SUBDIR.to_owned(),
            chain_head: ChainHead { session_seq: session.last_seq, hash: hex(&session.chain_head) },
            supervisor: liveness.as_ref().map(Liveness::supervisor),
            liveness,
            created_at: session.created_at,
            updated_at: session.updated_at,
            closed_at: session.closed_at,
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListSessions {
    /// `default`: running, or unread by this reader. `all`: everything. Or a state of the active or latest run: `waiting` (also
    /// before the first run), `running`, `completed`, `failed`, `blocked` or `cancelled`, read or not; of several between commas,
    /// one must match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Whose unread marks; `cli` when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reader_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backend_profile: Option<String>,
    /// Only sessions with this label, `key=value`. Several between commas must all match.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// Only ids of ours that begin like this; the kind's own `ses_` may be left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id_prefix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
}

/// Newest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionPage {
    pub sessions: Vec<SessionView>,
    pub next_cursor: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct SessionQuery {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reader_id: Option<String>,
    /// Needed where the caller sees several tenants with a session of this id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct SessionEventsQuery {
    /// Only events numbered above this: by the session's numbers, or with `runId` by the run's.
    pub after_seq: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ReadSession {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reader_id: Option<String>,
    /// The version that was read; the current one when left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    /// Needed where the caller sees several tenants with a session of this id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ControlSession {
    /// `cancel`: the active command, else the active run. `close`: the session, once nothing is unfinished in it.
    pub action: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Needed where the caller sees several tenants with a session of this id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
}

/// The reader of those who do not name one.
pub const DEFAULT_READER: &str = "cli";
