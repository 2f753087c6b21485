//! Rules of trust: agents, their manifests, relations, receipts and webhooks.

macro_rules! trust_rules {
    ([$next:ident $($rest:ident)*] $($rows:tt)*) => { $next! { [$($rest)*] $($rows)*
        NotOwner "not-owner" Forbidden "The caller does not own the agent.",
            hint: Some("use the token of the agent's owner; `ostler agents show AGENT -o json` has its owner_id");
        AgentRetired "agent-retired" Gone "The agent was retired.",
            hint: Some("it was retired permanently; `ostler agents list` lists the active agents");
        AgentQuota "agent-quota" RateLimited "The owner has too many agents, or the agent too many tokens.",
            hint: Some("retire agents or revoke tokens that are no longer used");
        NameFixed "name-fixed" StateConflict "The agent's name cannot change, because people have granted it scopes.",
            hint: Some("create a new agent under the other name");
        UpdateEmpty "update-empty" SchemaInvalid "The update changes nothing.",
            hint: Some("name at least one thing to change");
        VersionConflict "version-conflict" StateConflict "The agent or relation was changed since it was read.",
            hint: Some("read it again, then repeat the change");

        ManifestFile "manifest-file" SchemaInvalid "The file with the manifest cannot be read.",
            hint: Some("name a file with a capability manifest as JSON, or `-` for stdin");
        ManifestMissing "manifest-missing" StateConflict "The agent has no manifest.",
            hint: Some("its owner has to publish one: `ostler agents update AGENT --manifest FILE`");
        ManifestTooLarge "manifest-too-large" PayloadTooLarge "The manifest is too large.",
            hint: Some("shorten the texts and schemas; docs/agents.md has the limits of a manifest");
        ManifestInvalid "manifest-invalid" SchemaInvalid "The manifest breaks a rule of its format.",
            hint: Some("fix the manifest at the place named above; docs/agents.md lists what is rejected");
        ManifestHashMissing "manifest-hash-missing" SchemaInvalid "A grant must name the hash of the manifest that the person saw.",
            hint: Some("send the `manifest_hash` that was shown to the person");
        SchemaInvalid "schema-invalid" SchemaInvalid "The input schema of a tool is invalid.",
            hint: Some("fix the manifest at the place named above; docs/agents.md lists what is rejected");

        ScopeReserved "scope-reserved" SchemaInvalid "The scope is reserved for the platform.",
            hint: Some("fix the manifest at the place named above; docs/agents.md lists what is rejected");
        ScopeUnknown "scope-unknown" SchemaInvalid "The manifest declares no such scope.",
            hint: Some("`ostler agents show AGENT` lists the scopes of its manifest");
        ScopeTwice "scope-twice" SchemaInvalid "A scope is given twice.",
            hint: Some("list each scope once");
        ScopeNotGranted "scope-not-granted" PermissionDenied "The scope is not granted at this time.",
            hint: Some("the person grants it with `ostler consent grant AGENT`");
        GrantedScopesMissing "granted-scopes-missing" SchemaInvalid "The answer must list the granted scopes, even if there are none.";
        Terms "terms" SchemaInvalid "Terms were given for a scope that is not granted.";
        RelationExists "relation-exists" StateConflict "The person already has a relation with the agent.",
            hint: Some("change it with `ostler consent review`, or end it with `ostler consent revoke`");
        RelationRevoked "relation-revoked" StateConflict "The relation was ended.",
            hint: Some("grant again with `ostler consent grant AGENT`");
        RelationsLimit "relations-limit" StateConflict "The person has too many relations.",
            hint: Some("end relations that are no longer used with `ostler consent revoke`");
        CallIdTaken "call-id-taken" StateConflict "The call has used another scope before.";
        Receipt "receipt" SchemaInvalid "The receipt does not match its schema.";
        ReceiptSize "receipt-size" PayloadTooLarge "The receipt is too large.";

        WebhookUnknown "webhook-unknown" NotFound "The agent has no webhook.",
            hint: Some("set one: `ostler webhooks set AGENT URL`");
        WebhookDisabled "webhook-disabled" StateConflict "The webhook is disabled.",
            hint: Some("`ostler webhooks set AGENT URL` enables it again, and `ostler webhooks replay AGENT --dead` sends what it missed");
        WebhookUrl "webhook-url" SchemaInvalid "The URL cannot be used for a webhook.",
            hint: Some("use an https URL of a public host; for development `webhooks.allow_loopback = true` lets http to this machine through");
        DeliveriesWaiting "deliveries-waiting" RateLimited "Too many deliveries wait to be sent.";
        DeliveryNotDead "delivery-not-dead" StateConflict "Only a dead delivery can be replayed.",
            hint: Some("`ostler webhooks` lists the deliveries and their states");
    } };
}
