//! The enums of the document have the words that the wire has.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Debug,
};

use ostler_protocol::{
    FailureKind, callers,
    daemon::{agents, cells, device_flows, extensions, files, mcp as daemon_mcp, memory, workspace},
    kernel::{
        backends, commands, conversation, events, liveness, permissions, policy, provider_profiles, runner_jobs,
        runners, runs, session_storage, sessions, usage,
    },
    mcp,
    mesh::identities,
    retention,
    run_input::{automations, history, local_times, ui},
    tokens,
    trust::{i18n, manifest, receipts, relations, webhooks},
};
use serde::de::DeserializeOwned;

use crate::harness::openapi;

/// The values of an enum, as serde lists them to a client that sends another one.
fn words<T: DeserializeOwned + Debug>() -> BTreeSet<String> {
    let said = serde_json::from_str::<T>(r#""no such word""#).unwrap_err().to_string();
    let (_, expected) = said.split_once(", expected ").unwrap();
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_enum_of_the_document_has_the_words_of_the_wire() {
    let known: BTreeMap<&str, BTreeSet<String>> = BTreeMap::from([
        ("AgentKind", words::<provider_profiles::AgentKind>()),
        ("Act", words::<receipts::ReceiptAction>()),
        ("AgentLevel", words::<agents::AgentLevel>()),
        ("BackendHealth", words::<backends::BackendHealth>()),
        ("BudgetMode", words::<mcp::budget::BudgetMode>()),
        ("McpConfigOrigin", words::<daemon_mcp::McpConfigOrigin>()),
        ("McpDisabledReason", words::<daemon_mcp::McpDisabledReason>()),
        ("McpDiscoveryState", words::<daemon_mcp::McpDiscoveryState>()),
        ("McpManageAction", words::<daemon_mcp::McpManageAction>()),
        ("McpRestartReason", words::<daemon_mcp::McpRestartReason>()),
        ("McpRuntimeStatus", words::<daemon_mcp::McpRuntimeStatus>()),
        ("McpSkipReason", words::<daemon_mcp::McpSkipReason>()),
        ("McpTransport", words::<mcp::config::McpTransport>()),
        ("OperationState", words::<extensions::OperationState>()),
        ("Approval", words::<policy::Approval>()),
        ("CallerKind", words::<callers::CallerKind>()),
        ("CellErrorKind", words::<cells::CellErrorKind>()),
        ("CellLocality", words::<cells::CellLocality>()),
        ("CellStatus", words::<cells::CellStatus>()),
        ("CommandState", words::<commands::CommandState>()),
        ("CommandType", words::<commands::CommandType>()),
        ("DeviceFlowErrorKind", words::<device_flows::DeviceFlowErrorKind>()),
        ("DeviceFlowStatus", words::<device_flows::DeviceFlowStatus>()),
        ("DeliveryStatus", words::<webhooks::DeliveryStatus>()),
        ("EntryKind", words::<files::EntryKind>()),
        ("EnvironmentKind", words::<cells::EnvironmentKind>()),
        ("EventType", words::<events::EventType>()),
        ("ExecutionState", words::<sessions::ExecutionState>()),
        ("FailureKind", words::<FailureKind>()),
        ("InitAction", words::<workspace::InitAction>()),
        ("JobPhase", words::<runner_jobs::JobPhase>()),
        ("Language", words::<i18n::Language>()),
        ("Launcher", words::<runner_jobs::Launcher>()),
        ("LineEnding", words::<files::LineEnding>()),
        ("MemoryMode", words::<memory::MemoryMode>()),
        ("MemoryScope", words::<memory::MemoryScope>()),
        ("Network", words::<policy::Network>()),
        ("OptionKind", words::<permissions::OptionKind>()),
        ("PermissionStatus", words::<permissions::PermissionStatus>()),
        ("PermissionStrategy", words::<permissions::PermissionStrategy>()),
        ("ProfileAction", words::<provider_profiles::ProfileAction>()),
        ("Phase", words::<liveness::Phase>()),
        ("PlacementKind", words::<runners::PlacementKind>()),
        ("Role", words::<conversation::Role>()),
        ("RetentionNoun", words::<retention::RetentionNoun>()),
        ("RevocationReason", words::<identities::RevocationReason>()),
        ("Rule", words::<manifest::DiffRule>()),
        ("RunState", words::<runs::RunState>()),
        ("RunStatus", words::<runs::RunStatus>()),
        ("Sandbox", words::<policy::Sandbox>()),
        ("CallStatus", words::<ostler_protocol::tools::wire::CallStatus>()),
        ("ScopeState", words::<relations::ScopeState>()),
        ("Sensitivity", words::<manifest::Sensitivity>()),
        ("StorageKind", words::<session_storage::StorageKind>()),
        ("TerminalStatus", words::<runs::TerminalStatus>()),
        ("TokenRole", words::<tokens::TokenRole>()),
        ("HistoryScope", words::<history::HistoryScope>()),
        ("UiAppearance", words::<ui::schema::UiAppearance>()),
        ("UiButtonStyle", words::<ui::schema::UiButtonStyle>()),
        ("UiDirection", words::<ui::schema::UiDirection>()),
        ("UiIconSource", words::<ui::schema::UiIconSource>()),
        ("UiSchemaVersion", words::<ui::schema::UiSchemaVersion>()),
        ("UiStatus", words::<ui::schema::UiStatus>()),
        ("UiTextFormat", words::<ui::schema::UiTextFormat>()),
        ("UiTextRole", words::<ui::schema::UiTextRole>()),
        ("UiTheme", words::<ui::schema::UiTheme>()),
        ("UsageBy", words::<usage::UsageBy>()),
        ("ValidationStatus", words::<provider_profiles::ValidationStatus>()),
        ("WriteMode", words::<files::WriteMode>()),
        ("AutomationStatus", words::<automations::AutomationStatus>()),
        ("ContextSource", words::<automations::ContextSource>()),
        ("DisabledReason", words::<automations::DisabledReason>()),
        ("LocalTimeKind", words::<local_times::LocalTimeKind>()),
        ("ScheduleType", words::<automations::schedule::ScheduleType>()),
        ("StartStatus", words::<automations::StartStatus>()),
        ("StartTrigger", words::<automations::StartTrigger>()),
        ("WindowMode", words::<automations::WindowMode>()),
    ]);
    let document = openapi().clone();
    let schemas = document["components"]["schemas"].as_object().unwrap().iter();
    let enums = schemas.filter_map(|(name, schema)| Some((name.as_str(), schema["enum"].as_array()?)));
    let listed: BTreeMap<_, _> = enums
        .map(|(name, words)| (name, words.iter().map(|word| word.as_str().unwrap().to_owned()).collect()))
        .collect();
    assert_eq!(listed, known);
}
