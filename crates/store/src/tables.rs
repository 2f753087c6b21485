//! Every noun's table, so that a test can compare them with the database.

use ostler_protocol::{
    daemon::{clients::DaemonClient, sessions::DaemonSession},
    kernel::{
        aliases::CommandAlias,
        commands::Command,
        events::Event,
        leases::Lease,
        operations::Batch,
        permissions::PermissionRequest,
        provider_profiles::{ProfileChange, ValidationRecord},
        runner_jobs::RunnerJob,
        runners::Runner,
        runs::Run,
        sessions::Session,
        usage::UsageDay,
    },
    mesh::mailbox::StoredMessage,
    retention::Hold,
    run_input::{
        automations::{Automation, AutomationStart},
        calendar::CalendarEvent,
    },
    tokens::ServiceToken,
    trust::{
        agents::{Agent, AgentToken},
        relations::Relation,
        webhooks::{Delivery, Webhook},
    },
    users::User,
};

use crate::{
    daemon::restores::Restore,
    kernel::{
        backends::StoredBackend,
        payload_removals::PayloadRemoval,
        readers::{ReadCursor, SessionReader},
        session_payloads::SessionPayloadRemoval,
        whole_payloads::StoredPayload,
    },
    mesh::{
        agent_md::StoredAgentMd,
        identities::{CertificateRow, Issuer},
        logins::{Login, SpentTicket},
        messages::rows::{AckCursor, MailboxRow, MessageCopy, Queued},
        prekeys::StoredPrekey,
        presence::Presence,
    },
    record::Record,
    run_input::attachments::Attachment,
    signing_keys::SigningKey,
    trust::{manifests::StoredManifest, receipts::StoredReceipt, run_webhooks::RunCursor},
};

/// A table whose columns a noun declares.
#[derive(Clone, Debug)]
pub struct DeclaredTable {
    pub name: &'static str,
    /// The columns of the noun and their types, in the words of Postgres.
    pub columns: Vec<(&'static str, &'static str)>,
    /// The columns that are not part of the noun.
    pub beside: &'static [&'static str],
}

impl DeclaredTable {
    fn of<R: Record>() -> Self {
        let columns = R::COLUMNS.iter().map(|(name, kind)| (*name, kind.postgres_type())).collect();
        Self { name: R::TABLE, columns, beside: R::BESIDE }
    }
}

/// The tables of all nouns.
pub fn declared_tables() -> Vec<DeclaredTable> {
    vec![
        DeclaredTable::of::<Session>(),
        DeclaredTable::of::<Run>(),
        DeclaredTable::of::<Lease>(),
        DeclaredTable::of::<Command>(),
        DeclaredTable::of::<CommandAlias>(),
        DeclaredTable::of::<Event>(),
        DeclaredTable::of::<UsageDay>(),
        DeclaredTable::of::<Batch>(),
        DeclaredTable::of::<PermissionRequest>(),
        DeclaredTable::of::<RunnerJob>(),
        DeclaredTable::of::<Runner>(),
        DeclaredTable::of::<ValidationRecord>(),
        DeclaredTable::of::<ProfileChange>(),
        DeclaredTable::of::<Hold>(),
        DeclaredTable::of::<PayloadRemoval>(),
        DeclaredTable::of::<StoredPayload>(),
        DeclaredTable::of::<SessionPayloadRemoval>(),
        DeclaredTable::of::<ServiceToken>(),
        DeclaredTable::of::<User>(),
        DeclaredTable::of::<Agent>(),
        DeclaredTable::of::<AgentToken>(),
        DeclaredTable::of::<StoredManifest>(),
        DeclaredTable::of::<Relation>(),
        DeclaredTable::of::<Webhook>(),
        DeclaredTable::of::<Delivery>(),
        DeclaredTable::of::<RunCursor>(),
        DeclaredTable::of::<StoredReceipt>(),
        DeclaredTable::of::<StoredBackend>(),
        DeclaredTable::of::<ReadCursor>(),
        DeclaredTable::of::<SessionReader>(),
        DeclaredTable::of::<Attachment>(),
        DeclaredTable::of::<Automation>(),
        DeclaredTable::of::<AutomationStart>(),
        DeclaredTable::of::<CalendarEvent>(),
        DeclaredTable::of::<SigningKey>(),
        DeclaredTable::of::<StoredAgentMd>(),
        DeclaredTable::of::<CertificateRow>(),
        DeclaredTable::of::<Issuer>(),
        DeclaredTable::of::<Login>(),
        DeclaredTable::of::<SpentTicket>(),
        DeclaredTable::of::<MailboxRow>(),
        DeclaredTable::of::<StoredMessage>(),
        DeclaredTable::of::<MessageCopy>(),
        DeclaredTable::of::<AckCursor>(),
        DeclaredTable::of::<StoredPrekey>(),
        DeclaredTable::of::<Presence>(),
        DeclaredTable::of::<Queued>(),
        DeclaredTable::of::<DaemonSession>(),
        DeclaredTable::of::<DaemonClient>(),
        DeclaredTable::of::<Restore>(),
    ]
}
