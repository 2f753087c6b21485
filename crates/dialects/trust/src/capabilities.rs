//! The capabilities that this dialect promises to clients.

use ostler_protocol::capabilities::{Capability, capability};

pub(crate) const CAPABILITIES: &[Capability] = &[
    capability(
        "ostler_agents",
        &[
            "POST /agents",
            "GET /agents",
            "GET /agents/{agentId}",
            "PATCH /agents/{agentId}",
            "DELETE /agents/{agentId}",
            "POST /agents/{agentId}/manifest/diff",
        ],
        "Agents with manifests: make, find, read (by entity tag), change, retire; what a change would break, before it is made.",
    ),
    capability(
        "ostler_agent_tokens",
        &[
            "POST /agents/{agentId}/tokens",
            "GET /agents/{agentId}/tokens",
            "DELETE /agents/{agentId}/tokens/{agentTokenId}",
        ],
        "Tokens that speak for an agent: make, list, revoke.",
    ),
    capability(
        "ostler_consent",
        &[
            "POST /h2a/relations",
            "GET /h2a/relations",
            "GET /h2a/relations/{relationId}",
            "PATCH /h2a/relations/{relationId}",
            "DELETE /h2a/relations/{relationId}",
            "GET /h2a/relations/{relationId}/changes",
            "GET /h2a/pending",
            "POST /h2a/relations/{relationId}/uses",
            "GET /h2a/relations/{relationId}/receipts",
            "GET /h2a/receipts",
        ],
        "People grant agents scopes, answer again when an agent changes, take grants back, and have receipts of it all.",
    ),
    capability(
        "ostler_webhooks",
        &[
            "PUT /agents/{agentId}/webhook",
            "GET /agents/{agentId}/webhook",
            "DELETE /agents/{agentId}/webhook",
            "POST /agents/{agentId}/webhook/test",
            "GET /agents/{agentId}/webhook/deliveries",
            "GET /agents/{agentId}/webhook/deliveries/{deliveryId}",
            "POST /agents/{agentId}/webhook/deliveries/{deliveryId}/replay",
        ],
        "Signed requests to the agents' own servers, retried until they respond; deliveries that were given up can be replayed.",
    ),
];
