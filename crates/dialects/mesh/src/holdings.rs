//! The tables and files of the mesh.

use ostler_server::{
    config::Config,
    dialect::{
        Backup::{Copied, LeftOut},
        ConfiguredPlace,
        Erasure::{OutlivesOwner, Untouched, WithOwner},
        Holding,
        Retention::{Expires, Kept, Proof},
    },
};

use crate::config::MeshSection;

pub(crate) const HOLDINGS: &[Holding] = &[
    Holding::table("mesh_agent_md", Copied, Kept, OutlivesOwner),
    // Other parties check certificates against the log of certificates and revocations.
    Holding::table("mesh_certificates", Copied, Proof, Untouched),
    Holding::table("mesh_issuers", Copied, Proof, Untouched),
    Holding::table("mesh_spent", Copied, Expires, Untouched),
    Holding::table("mesh_logins", Copied, Expires, WithOwner),
    Holding::table("mesh_prekeys", Copied, Kept, WithOwner),
    Holding::table("mesh_mailboxes", Copied, Kept, OutlivesOwner),
    Holding::table("mesh_messages", Copied, Expires, OutlivesOwner),
    Holding::table("mesh_message_copies", Copied, Expires, OutlivesOwner),
    Holding::table("mesh_cursors", Copied, Expires, OutlivesOwner),
    // Which identity is connected to which server now.
    Holding::table("mesh_presence", LeftOut, Expires, Untouched),
    Holding::table("mesh_queue", LeftOut, Expires, OutlivesOwner),
    Holding::path("pki", Copied, Kept, Untouched).placed_by(pki),
    // The keys of identities that joined from this machine. The command line writes them.
    Holding::path("mesh", Copied, Kept, OutlivesOwner),
];

fn pki(config: &Config) -> ConfiguredPlace {
    config.section::<MeshSection>().pki_directory.map_or(ConfiguredPlace::DataDir, ConfiguredPlace::At)
}
