//! The commands of the mesh dialect. `ostler mesh` makes a person or a script an identity of the mesh: it joins under a
//! name, sends messages encrypted end to end and decrypts those it receives. Its keys are in one file that only its owner
//! can read.

pub(crate) mod identities;
mod identity_file;
mod inbox;
mod join;
pub(crate) mod pki;
mod send;
mod whois;

use clap::Subcommand;
use ostler_protocol::Failure;

use crate::connection::Connection;

/// Join the mesh under a name, and exchange encrypted messages with others
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler mesh join alice\n  ostler mesh send bobby \"hello\"\n  \
    ostler mesh inbox --follow\n  ostler mesh whois bobby")]
pub(crate) struct MeshArgs {
    #[command(subcommand)]
    verb: MeshVerb,
}

#[derive(Subcommand, Debug)]
enum MeshVerb {
    Join(join::JoinArgs),
    Send(send::SendArgs),
    Inbox(inbox::InboxArgs),
    Whois(whois::WhoisArgs),
}

pub(crate) async fn mesh(connection: &Connection, args: &MeshArgs) -> Result<u8, Failure> {
    match &args.verb {
        MeshVerb::Join(args) => join::join(connection, args).await,
        MeshVerb::Send(args) => send::send(connection, args).await,
        MeshVerb::Inbox(args) => inbox::inbox(connection, args).await,
        MeshVerb::Whois(args) => whois::whois(connection, args).await,
    }
}
