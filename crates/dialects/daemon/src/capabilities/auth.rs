//! Credentials of providers.

use ostler_protocol::capabilities::{Capability, capability};

use crate::toggles;

pub(super) const AUTH: &[Capability] = &[
    capability(
        "auth_provider_install",
        &["GET /workspace/auth/providers", "POST /workspace/auth/provider"],
        "A catalog of providers. A key sets one up: each of its models becomes a backend profile.",
    )
    .when(&[toggles::WORKSPACE]),
    capability(
        "auth_device_flow",
        &[
            "POST /workspace/auth/device-flow",
            "GET /workspace/auth/device-flow/{deviceFlowId}",
            "DELETE /workspace/auth/device-flow/{deviceFlowId}",
            "GET /workspace/auth/status",
        ],
        "A person authorises the server at a provider with a code (RFC 8628); the token becomes the credential of a profile.",
    )
    .when(&[toggles::WORKSPACE]),
];
