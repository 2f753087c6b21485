//! Device flows (RFC 8628): a person authorises the server at a provider with a code, and the server polls the provider until
//! the token is there. This is the state machine and its wire types; the server polls.

mod replies;
mod table;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use utoipa::ToSchema;

pub use replies::{
    CODE_BYTES_MAX, DeviceAuthorization, DeviceToken, PollOutcome, REPLY_BYTES_MAX, authorization, is_safe_url,
    poll_outcome,
};
pub use table::{DEVICE_FLOWS_MAX, DeviceFlowTable, ENDED_MS, StartDecision};

use super::cells::CellStatus;

/// The shape of `GET /workspace/auth/status`.
pub const AUTH_STATUS_VERSION: u32 = 1;
/// By how much `slow_down` raises the interval.
pub const SLOW_DOWN_MS: i64 = 5_000;
/// The longest interval between two polls.
pub const INTERVAL_MS_MAX: i64 = 60_000;

/// `POST /workspace/auth/device-flow`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StartDeviceFlow {
    /// A provider of the server's configuration.
    #[schema(value_type = String, required)]
    pub provider_id: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeviceFlowStatus {
    Pending,
    Authorized,
    Expired,
    Error,
    Cancelled,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum DeviceFlowErrorKind {
    /// The user did not authorise the server in time.
    ExpiredToken,
    /// The person declined.
    AccessDenied,
    /// The provider does not accept the code or the client.
    InvalidGrant,
    /// The provider's reply makes no sense.
    UpstreamError,
    /// The token could not be stored.
    PersistFailed,
}

/// A flow that was started, or taken over. Only the client that started it receives the codes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceFlowStarted {
    pub device_flow_id: String,
    pub provider_id: String,
    pub status: DeviceFlowStatus,
    #[serde(flatten)]
    pub codes: DeviceFlowCodes,
    /// In milliseconds since 1970.
    pub expires_at: i64,
    pub interval_ms: i64,
    /// Whether another request has started it.
    pub attached: bool,
}

/// What a person needs to authorise the server, for the client that started the flow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeviceFlowCodes {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub user_code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub verification_uri: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub verification_uri_complete: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub initiator_client_id: Option<String>,
}

/// `GET /workspace/auth/device-flow/{id}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeviceFlowState {
    pub device_flow_id: String,
    pub provider_id: String,
    pub status: DeviceFlowStatus,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error_kind: Option<DeviceFlowErrorKind>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub hint: Option<String>,
    #[serde(flatten)]
    pub codes: DeviceFlowCodes,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub expires_at: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub interval_ms: Option<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub last_polled_at: Option<i64>,
    pub created_at: i64,
}

/// `GET /workspace/auth/status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuthStatus {
    pub v: u32,
    pub workspace_cwd: String,
    pub providers: Vec<AuthProviderStatus>,
    pub pending_device_flows: Vec<PendingDeviceFlow>,
    pub supported_device_flow_providers: Vec<String>,
}

/// Whether the profile of a device flow can be used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct AuthProviderStatus {
    /// Always `auth_provider`.
    pub kind: String,
    pub status: CellStatus,
    pub provider_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
    /// When the token expires, if this process received it and the provider said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub expires_at: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct PendingDeviceFlow {
    pub device_flow_id: String,
    pub provider_id: String,
    pub expires_at: i64,
}

/// Who started a flow, and alone sees its codes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Initiator {
    pub principal: String,
    pub client_id: Option<String>,
}

/// A frame about a flow. It never contains a code or a token.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceFlowFrame {
    pub frame: &'static str,
    pub data: Value,
}

/// One flow.
#[derive(Clone, Debug)]
pub struct DeviceFlow {
    pub id: String,
    pub provider_id: String,
    pub initiator: Initiator,
    status: DeviceFlowStatus,
    error_kind: Option<DeviceFlowErrorKind>,
    hint: Option<&'static str>,
    user_code: String,
    verification_uri: String,
    verification_uri_complete: Option<String>,
    expires_at_ms: i64,
    interval_ms: i64,
    next_poll_at_ms: i64,
    last_polled_at_ms: Option<i64>,
    created_at_ms: i64,
    ended_at_ms: Option<i64>,
    /// The token is there and is being stored: the flow cannot be cancelled any more.
    is_storing: bool,
}

impl DeviceFlow {
    pub fn new(
        id: String,
        provider_id: String,
        initiator: Initiator,
        authorization: &DeviceAuthorization,
        now_ms: i64,
    ) -> Self {
        Self {
            id,
            provider_id,
            initiator,
            status: DeviceFlowStatus::Pending,
            error_kind: None,
            hint: None,
            user_code: authorization.user_code.clone(),
            verification_uri: authorization.verification_uri.clone(),
            verification_uri_complete: authorization.verification_uri_complete.clone(),
            expires_at_ms: now_ms + authorization.expires_in_ms,
            interval_ms: authorization.interval_ms,
            next_poll_at_ms: now_ms + authorization.interval_ms,
            last_polled_at_ms: None,
            created_at_ms: now_ms,
            ended_at_ms: None,
            is_storing: false,
        }
    }

    pub fn status(&self) -> DeviceFlowStatus {
        self.status
    }

    pub fn is_pending(&self) -> bool {
        self.status == DeviceFlowStatus::Pending
    }

    /// Whether its token is there and must be stored.
    pub fn is_storing(&self) -> bool {
        self.is_storing
    }

    /// The frame of its start.
    pub fn started_frame(&self) -> DeviceFlowFrame {
        let data = json!({"deviceFlowId": self.id, "providerId": self.provider_id, "expiresAt": self.expires_at_ms});
        DeviceFlowFrame { frame: "auth_device_flow_started", data }
    }

    /// When the provider is asked next. `None` if it is not asked again.
    pub fn next_poll_at_ms(&self) -> Option<i64> {
        (self.is_pending() && !self.is_storing).then_some(self.next_poll_at_ms)
    }

    /// Applies a reply of the provider. A token makes the flow wait for [`Self::stored`].
    pub fn polled(&mut self, outcome: &PollOutcome, now_ms: i64) -> Option<DeviceFlowFrame> {
        self.next_poll_at_ms()?;
        self.last_polled_at_ms = Some(now_ms);
        let mut frame = None;
        match outcome {
            PollOutcome::Pending => {}
            PollOutcome::SlowDown => {
                self.interval_ms = (self.interval_ms + SLOW_DOWN_MS).min(INTERVAL_MS_MAX);
                let data = json!({"deviceFlowId": self.id, "intervalMs": self.interval_ms});
                frame = Some(DeviceFlowFrame { frame: "auth_device_flow_throttled", data });
            }
            PollOutcome::Unreachable => self.interval_ms = (self.interval_ms * 2).min(INTERVAL_MS_MAX),
            PollOutcome::Token(_) => self.is_storing = true,
            PollOutcome::Refused(error_kind, hint) => return self.fail(*error_kind, hint, now_ms),
        }
        self.next_poll_at_ms = now_ms + self.interval_ms;
        frame
    }

    /// Ends the flow after an attempt to store its token.
    pub fn stored(
        &mut self,
        is_stored: bool,
        token_expires_at_ms: Option<i64>,
        now_ms: i64,
    ) -> Option<DeviceFlowFrame> {
        if !self.is_storing {
            return None;
        }
        self.is_storing = false;
        if !is_stored {
            return self.fail(DeviceFlowErrorKind::PersistFailed, "the token could not be stored", now_ms);
        }
        self.end(DeviceFlowStatus::Authorized, now_ms)?;
        let mut data = json!({"deviceFlowId": self.id, "providerId": self.provider_id});
        if let Some(expires_at_ms) = token_expires_at_ms {
            data["expiresAt"] = expires_at_ms.into();
        }
        Some(DeviceFlowFrame { frame: "auth_device_flow_authorized", data })
    }

    /// Ends the flow if its time is over.
    pub fn expire(&mut self, now_ms: i64) -> Option<DeviceFlowFrame> {
        if now_ms < self.expires_at_ms || self.is_storing {
            return None;
        }
        self.fail(DeviceFlowErrorKind::ExpiredToken, "the device flow expired before it was authorised", now_ms)
    }

    /// `None` if the flow has ended, or if its token is already being stored.
    pub fn cancel(&mut self, now_ms: i64) -> Option<DeviceFlowFrame> {
        if self.is_storing {
            return None;
        }
        self.end(DeviceFlowStatus::Cancelled, now_ms)?;
        Some(DeviceFlowFrame { frame: "auth_device_flow_cancelled", data: json!({"deviceFlowId": self.id}) })
    }

    fn fail(&mut self, error_kind: DeviceFlowErrorKind, hint: &'static str, now_ms: i64) -> Option<DeviceFlowFrame> {
        let status = match error_kind {
            DeviceFlowErrorKind::ExpiredToken => DeviceFlowStatus::Expired,
            _ => DeviceFlowStatus::Error,
        };
        self.end(status, now_ms)?;
        (self.error_kind, self.hint) = (Some(error_kind), Some(hint));
        let data = json!({"deviceFlowId": self.id, "errorKind": error_kind, "hint": hint});
        Some(DeviceFlowFrame { frame: "auth_device_flow_failed", data })
    }

    /// `None` if the flow has already ended.
    fn end(&mut self, status: DeviceFlowStatus, now_ms: i64) -> Option<()> {
        self.is_pending().then(|| (self.status, self.ended_at_ms) = (status, Some(now_ms)))
    }

    /// The codes, if this is who started the flow and it is still pending.
    fn codes_for(&self, reader: &Initiator) -> DeviceFlowCodes {
        if *reader != self.initiator || !self.is_pending() {
            return DeviceFlowCodes::default();
        }
        DeviceFlowCodes {
            user_code: Some(self.user_code.clone()),
            verification_uri: Some(self.verification_uri.clone()),
            verification_uri_complete: self.verification_uri_complete.clone(),
            initiator_client_id: self.initiator.client_id.clone(),
        }
    }

    pub fn started_for(&self, reader: &Initiator, attached: bool) -> DeviceFlowStarted {
        DeviceFlowStarted {
            device_flow_id: self.id.clone(),
            provider_id: self.provider_id.clone(),
            status: self.status,
            codes: self.codes_for(reader),
            expires_at: self.expires_at_ms,
            interval_ms: self.interval_ms,
            attached,
        }
    }

    pub fn state_for(&self, reader: &Initiator) -> DeviceFlowState {
        DeviceFlowState {
            device_flow_id: self.id.clone(),
            provider_id: self.provider_id.clone(),
            status: self.status,
            error_kind: self.error_kind,
            hint: self.hint.map(str::to_owned),
            codes: self.codes_for(reader),
            expires_at: self.is_pending().then_some(self.expires_at_ms),
            interval_ms: self.is_pending().then_some(self.interval_ms),
            last_polled_at: self.last_polled_at_ms,
            created_at: self.created_at_ms,
        }
    }

    pub fn listed(&self) -> PendingDeviceFlow {
        PendingDeviceFlow {
            device_flow_id: self.id.clone(),
            provider_id: self.provider_id.clone(),
            expires_at: self.expires_at_ms,
        }
    }
}

#[cfg(test)]
mod tests;
