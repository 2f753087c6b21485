//! Runners: who claims runs, and where they live.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{RawJson, Timestamp};

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RegisterRunner {
    pub runner_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    pub backend_profile: String,
    /// `resident`, `host-process` or `kubernetes-job`, as a string or an object with a `kind`.
    #[serde(default = "RawJson::null")]
    #[schema(value_type = Object)]
    pub placement: RawJson,
    #[serde(default = "RawJson::null")]
    #[schema(value_type = Object)]
    pub capabilities: RawJson,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Runner {
    pub runner_id: String,
    pub tenant_id: Option<String>,
    pub run_id: Option<String>,
    pub backend_profile: String,
    #[schema(value_type = Object)]
    pub placement: RawJson,
    #[schema(value_type = Object)]
    pub capabilities: RawJson,
    #[schema(value_type = String, format = DateTime)]
    pub registered_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub heartbeat_at: Timestamp,
}
