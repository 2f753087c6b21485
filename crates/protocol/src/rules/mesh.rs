//! Rules of the mesh: its gateway, identities and messages, and what its client checks.

macro_rules! mesh_rules {
    ([$next:ident $($rest:ident)*] $($rows:tt)*) => { $next! { [$($rest)*] $($rows)*
        // Calls, and the connections on which they arrive. `auth.connect` has codes of its own.
        MethodUnknown "method-unknown" MethodNotAllowed "There is no such method.";
        ParamsInvalid "params-invalid" SchemaInvalid "The parameters do not have their shape.";
        ParamsSize "params-size" PayloadTooLarge "The parameters are too large.";
        ContextMismatch "context-mismatch" SchemaInvalid "The call names another device slot than that of its connection.";
        MeshFresh "mesh-fresh" Unauthenticated "The method needs a connection that has called `auth.connect`.";
        MeshConnected "mesh-connected" StateConflict "The connection has already called `auth.connect`.";
        MeshConnect "mesh-connect" SchemaInvalid "The parameters of `auth.connect` break one of their rules.", rpc_code: Some(4000);
        MeshToken "mesh-token" Unauthenticated "The token of `auth.connect` is not valid.", rpc_code: Some(4001);
        MeshNonce "mesh-nonce" Unauthenticated "The nonce is not that of the connection.", rpc_code: Some(4010);
        MeshVersion "mesh-version" SchemaInvalid "Client and server have no protocol version in common.", rpc_code: Some(-32000);
        MeshSlot "mesh-slot" SchemaInvalid "A slot was given without a device.", rpc_code: Some(4009);
        // The conflict may be with the client's own previous connection, whose end has not been noticed yet. On codes from
        // 5000 to 5999, the published client tries again.
        MeshDeviceTaken "mesh-device-taken" StateConflict "The device has another connection.", rpc_code: Some(5009);
        MeshSlotTaken "mesh-slot-taken" StateConflict "The device slot has another connection.", rpc_code: Some(5009);
        MeshDeliveryMode "mesh-delivery-mode" StateConflict "The identity has connections with another delivery mode.", rpc_code: Some(5009);
        MeshConnections "mesh-connections" RateLimited "The identity has too many connections.", rpc_code: Some(4290);
        MeshCalls "mesh-calls" RateLimited "The method is called too often.";
        MeshRegistrations "mesh-registrations" RateLimited "Too many identities were registered from this address.";
        MeshRegistrationsTotal "mesh-registrations-total" RateLimited "Too many identities were registered at once.";
        MeshSignatures "mesh-signatures" RateLimited "Too many responses had to be signed for this address.";
        MeshRekeys "mesh-rekeys" RateLimited "The identity has changed its key too often.";
        MeshOff "mesh-off" InfraFailed "The mesh is not available on this server.",
            hint: Some("the operator turns the mesh on in `[mesh]` of the server's config");

        // Identities, their keys and certificates.
        Aid "aid" SchemaInvalid "The text is not the name of an identity.",
            hint: Some("a name looks like alice.example.org, or alice for a name of this server's domain");
        AidDomain "aid-domain" SchemaInvalid "The identity does not belong to the domain of this server.",
            hint: Some("use a name of this server's domain; `ostler pki show` has it");
        AidLength "aid-length" SchemaInvalid "The name of the identity is too short or too long.",
            hint: Some("choose a name of another length; docs/mesh.md has the limits");
        AidReserved "aid-reserved" Forbidden "The name is reserved for a service.",
            hint: Some("the name is reserved for a service; choose another");
        AidTaken "aid-taken" StateConflict "The identity already exists.",
            hint: Some("choose another name, or name the directory with its keys by `--data-dir`");
        AidUnknown "aid-unknown" NotFound "The identity is not registered.",
            hint: Some("check the name; `ostler identities list` at its server lists the names");
        AidRevoked "aid-revoked" NotFound "The identity was revoked.",
            hint: Some("its operator revoked the name; choose another");
        AidChanged "aid-changed" StateConflict "The identity was changed concurrently.";
        Invite "invite" Forbidden "Registration needs a valid invitation.",
            hint: Some("ask the operator of the server for an invitation (`ostler identities invite`) and pass it with `--invite`");
        InviteLife "invite-life" SchemaInvalid "The lifetime of the invitation is out of range.";
        PublicKey "public-key" SchemaInvalid "The public key is not one of the supported kind and encoding.";
        Curve "curve" SchemaInvalid "The curve is not supported.";
        ClientNonce "client-nonce" SchemaInvalid "The nonce of the client is empty or too long.";
        Cert "cert" SchemaInvalid "The text is not one certificate in PEM.";
        CertificateFresh "certificate-fresh" StateConflict "The certificate is too new to be renewed.";
        CertificateRevoked "certificate-revoked" Forbidden "The certificate was revoked.",
            hint: Some("the operator of the server revoked the name; `ostler identities issue` there certifies a new key");
        KeyCompromised "key-compromised" StateConflict "The key was revoked as compromised.",
            hint: Some("that key was revoked as compromised; certify a new one");
        MeshLogin "mesh-login" Unauthenticated "The client did not prove that it holds the key of the identity.",
            hint: Some("the keys stored here are not those of this name on this server; `--server` names another server");
        Pki "pki" InfraFailed "The keys of the mesh are unusable.",
            hint: Some("check the directory `pki` in the server's data directory");
        PkiThere "pki-there" StateConflict "The directory already has keys of the mesh.",
            hint: Some("keep the keys that exist, or name another directory with `--data-dir`");
        AgentMdUtf8 "agent-md-utf8" SchemaInvalid "`agent.md` is not UTF-8 text.";
        AgentMdNul "agent-md-nul" SchemaInvalid "`agent.md` contains a NUL character.";
        AgentMdSize "agent-md-size" PayloadTooLarge "`agent.md` is too large.";
        AgentMdSecret "agent-md-secret" SchemaInvalid "`agent.md` contains text that looks like a key or a password.";
        AgentMdFrontMatter "agent-md-front-matter" SchemaInvalid "`agent.md` does not begin with a front matter.";
        AgentMdYaml "agent-md-yaml" SchemaInvalid "The front matter of `agent.md` is not plain YAML.";
        AgentMdField "agent-md-field" SchemaInvalid "A field in the front matter of `agent.md` is missing or invalid.";

        // Messages and prekeys.
        PayloadNotAnObject "payload-not-an-object" SchemaInvalid "The payload of the message is not a JSON object.";
        ToAService "to-a-service" SchemaInvalid "The recipient is a service that receives no messages.";
        MessageId "message-id" SchemaInvalid "The id of the message is empty, too long or not printable.";
        MessageIdTaken "message-id-taken" IdempotencyConflict "The id was already used for a message to another recipient.";
        MessageTaken "message-taken" StateConflict "The message was sent twice at the same time.";
        MessageType "message-type" SchemaInvalid "The type of the message is empty, too long or not printable.";
        Envelope "envelope" SchemaInvalid "The payload is not a valid envelope, or contradicts the message around it.";
        EnvelopeCopies "envelope-copies" SchemaInvalid "The copies of a sealed message for its devices are invalid.";
        MailboxFull "mailbox-full" RateLimited "The mailbox of the recipient is full.",
            hint: Some("wait until the recipient has read some messages");
        AckSeq "ack-seq" SchemaInvalid "The sequence number to acknowledge is negative.";
        PullAfter "pull-after" SchemaInvalid "The sequence number to pull after is negative.";
        PullLimit "pull-limit" SchemaInvalid "The number of messages to pull is out of range.";
        RecallIds "recall-ids" SchemaInvalid "The list of messages to recall is empty, too long, or has an invalid id.";
        QueryAids "query-aids" SchemaInvalid "The list of identities is empty or too long.";
        PrekeyField "prekey-field" SchemaInvalid "A field of the prekey is empty, too long or not printable.";
        PrekeyCertificate "prekey-certificate" Forbidden "The certificate that the prekey names is no longer valid.";
        PrekeySignature "prekey-signature" Forbidden "The prekey is not signed by the key of its certificate.";

        // What the client of the mesh checks.
        MeshNotBelieved "mesh-not-believed" Forbidden "The certificate of the peer is not trusted.",
            hint: Some("no message was sent: the peer's certificate is not trusted. `ostler mesh whois` shows why, and \
                `ostler mesh join NAME --root FILE` names the root to trust");
        MeshClock "mesh-clock" InfraFailed "A certificate is not valid yet by the clock of this machine.",
            hint: Some("check this machine's clock; if it is right, contact the operator of the server. Nothing was lost");
        MeshRevocations "mesh-revocations" InfraFailed "The revocation list is not the issuer's, or not valid at this time.",
            hint: Some("check this machine's clock; if it is right, contact the operator of the server. Nothing was lost");
        MeshPage "mesh-page" InfraFailed "A page of the issuer cannot be fetched.";
        MeshGateway "mesh-gateway" InfraFailed "The gateway does not follow the protocol.";
        MeshSilent "mesh-silent" InfraFailed "The gateway does not respond.";
        MeshClosed "mesh-closed" InfraFailed "The connection to the gateway was closed.";
        MeshEvents "mesh-events" Overloaded "The gateway pushed more events than the client can hold.";
        MeshWindow "mesh-window" InfraFailed "The message arrived too long before or after the time at which it was sealed.";
        MeshNoPrekey "mesh-no-prekey" StateConflict "The recipient has published no prekey.",
            hint: Some("the recipient publishes one when it connects; `ostler mesh inbox` does so for a name of this machine");
        MeshPlaceTaken "mesh-place-taken" StateConflict "The identity is already connected from this device slot.",
            hint: Some("another `ostler mesh` of this name is running here; stop it, or name another slot");
        MeshKeys "mesh-keys" SchemaInvalid "The file with the keys of the identity is missing, in use or unusable.",
            hint: Some("name the directory with the keys by `--data-dir`; `ostler mesh join NAME` makes new ones");
        MeshRoot "mesh-root" SchemaInvalid "The file with the root certificate cannot be read.",
            hint: Some("name a file with the root certificate, PEM");
    } };
}
