//! The capabilities that this dialect promises to clients.

use ostler_protocol::capabilities::{Capability, capability};

pub(crate) const CAPABILITIES: &[Capability] = &[
    capability(
        "ostler_identities",
        &[
            "POST /api/v1/identities",
            "GET /api/v1/identities",
            "GET /api/v1/identities/{aid}",
            "POST /api/v1/identities/{aid}/revoke",
            "POST /api/v1/identities/invites",
        ],
        "Names of the mesh, for the operator: certify, list, revoke, invite.",
    ),
    capability(
        "ostler_mesh_gateway",
        &["GET /.well-known/aun-gateway"],
        "The mesh's gateway, a WebSocket at /aun: register, log in, connect; docs/generated/methods.md lists its methods.",
    ),
    capability(
        "ostler_mesh_pki",
        &[
            "GET /pki/chain",
            "GET /pki/root.crt",
            "GET /pki/cert/{aid}",
            "GET /pki/crl.json",
            "GET /pki/crl",
            "GET /pki/ocsp/{serial}",
            "POST /pki/ocsp",
            "GET /pki/trust-roots.json",
        ],
        "Trust in the mesh: the chain, certificates and their versions, revocations, the signed list of roots.",
    ),
    capability("ostler_agent_md", &["GET /agent.md", "PUT /agent.md"], "Self-descriptions of identities."),
];
