//! Documents and snapshots of the workspace.

use ostler_protocol::capabilities::{Capability, capability};

use crate::toggles;

pub(super) const WORKSPACE: &[Capability] = &[
    capability(
        "workspace_memory",
        &["GET /workspace/memory", "POST /workspace/memory"],
        "Files with what agents should know: they precede every prompt. A change is sent to all open sessions.",
    )
    .when(&[toggles::WORKSPACE]),
    capability(
        "workspace_settings",
        &["GET /workspace/settings", "POST /workspace/settings"],
        "How new sessions start, in a file of the workspace. A change is sent to all open sessions.",
    )
    .when(&[toggles::SETTINGS]),
    capability("workspace_init", &["POST /workspace/init"], "Creates a memory file from a template, once.")
        .when(&[toggles::WORKSPACE]),
    capability("workspace_reload", &["POST /workspace/reload"], "Reads the settings of the workspace again.")
        .when(&[toggles::RELOAD]),
    capability(
        "workspace_env",
        &["GET /workspace/env"],
        "The environment of the server; variables by their presence only.",
    )
    .when(&[toggles::WORKSPACE]),
    capability(
        "workspace_preflight",
        &["GET /workspace/preflight"],
        "Checks of the server's machine and of the backend, before the first prompt.",
    )
    .when(&[toggles::WORKSPACE]),
    capability(
        "workspace_providers",
        &["GET /workspace/providers"],
        "The backend profiles that sessions can use, as providers with models.",
    )
    .when(&[toggles::WORKSPACE]),
];
