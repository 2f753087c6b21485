//! Runners: who claims runs, and where they live.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::{Failure, RawJson, Rule, Timestamp};

/// Where a runner lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PlacementKind {
    Resident,
    HostProcess,
    KubernetesJob,
}

/// The kind alone, or an object with it and other fields that describe the place.
#[derive(Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Placement {
    Kind(PlacementKind),
    Described { kind: PlacementKind },
}

/// A placement may be left out or null; otherwise it must be a known one.
pub fn check_placement(placement: &RawJson) -> Result<(), Failure> {
    if placement.is_null() || placement.view::<Placement>().is_some() {
        return Ok(());
    }
    let message =
        "placement must be resident, host-process or kubernetes-job, or an object with one of them as its kind";
    Err(Failure::invalid(Rule::PlacementUnknown, message))
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RegisterRunner {
    pub runner_id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    pub backend_profile: String,
    #[serde(default = "RawJson::null")]
    #[schema(value_type = Option<Placement>)]
    pub placement: RawJson,
    #[serde(default = "RawJson::null")]
    #[schema(value_type = serde_json::Value)]
    pub capabilities: RawJson,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct Runner {
    pub runner_id: String,
    pub tenant_id: Option<String>,
    pub run_id: Option<String>,
    pub backend_profile: String,
    #[schema(value_type = Option<Placement>)]
    pub placement: RawJson,
    #[schema(value_type = serde_json::Value)]
    pub capabilities: RawJson,
    #[schema(value_type = String, format = DateTime)]
    pub registered_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub heartbeat_at: Timestamp,
}
