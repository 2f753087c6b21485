//! `ostler mesh join`: registers a name with a new key.

use std::path::{Path, PathBuf};

use ostler_client::mesh::{GatewayClient, RegisterError, StoredIdentity, is_slot_in_use};
use ostler_protocol::{
    Failure, FailureKind, Rule,
    mesh::aids::{NAME_BYTES_MAX, OWN_NAME_BYTES_MIN},
};
use serde_json::json;

use super::{
    identity_file::{self, AMBIENT, IdentityFile},
    inbox,
};
use crate::{
    connection::{Connection, is_loopback},
    errors, exit_codes,
    terminal::output::{self, Output},
};

/// Register a name with a new key
///
/// For a name that has already joined on this machine, it checks that the keys still work, and stores the current address
/// of the server.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler mesh join alice\n  ostler mesh join alice.probe.test --root root.crt --invite …"
)]
pub(crate) struct JoinArgs {
    /// The name; without a dot, a name of the server's domain
    name: String,
    /// The root certificate to trust, PEM; by default that of a server on this machine
    #[arg(long, value_name = "FILE")]
    root: Option<PathBuf>,
    /// An invitation, if the server requires one
    #[arg(long, value_name = "TEXT")]
    invite: Option<String>,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn join(connection: &Connection, args: &JoinArgs) -> Result<u8, Failure> {
    check_length(&args.name)?;
    let (server, directory) = (connection.settings()?.server.value, identity_file::directory(connection)?);
    let named = args.root.as_deref().map(read_root).transpose()?;
    let root = match &named {
        Some(root) => root.clone(),
        None if is_loopback(&server) => GatewayClient::fetch_root(&server).await?,
        None => match IdentityFile::find(connection, Some(&args.name)) {
            Ok(identity) => identity.stored.root,
            Err(_) => {
                let message = "the server is on another machine, so its root certificate must be named";
                return Err(errors::usage(message, "name the root certificate with `--root`"));
            }
        },
    };
    let aid = identity_file::full_name(
        &args.name,
        GatewayClient::new(&server, &root, AMBIENT)?.chain().await?.issuer().name(),
    )?;
    let (mut identity, was_stored) = match IdentityFile::get(&directory, &aid, &server)? {
        Some(identity) => (identity, true),
        None => (IdentityFile::insert(&directory, StoredIdentity::new(aid, &server, root, AMBIENT))?, false),
    };
    // A stored root is never replaced by one that a server presents.
    let root = named.unwrap_or_else(|| identity.stored.root.clone());
    let gateway = GatewayClient::new(&server, &root, AMBIENT)?;
    if !identity.stored.is_registered() {
        match identity.stored.register(&gateway, args.invite.clone()).await {
            Ok(certificate) => identity.change(|stored| stored.adopt(&certificate))?,
            // The name may have been registered, so the key is kept: joining again with it continues.
            Err(RegisterError::Unsettled(failure)) if was_stored || failure.kind != FailureKind::RateLimited => {
                return Err(failure);
            }
            Err(RegisterError::Unsettled(failure)) => return identity.remove().and(Err(failure)),
            Err(RegisterError::Refused(failure)) => return identity.remove().and(Err(failure)),
        }
    }
    match identity.enter(&gateway, inbox::READER).await {
        Ok(mut sealer) => {
            identity.publish_prekey(&mut sealer).await?;
            sealer.close().await;
        }
        // Its reader is connected, and publishes prekeys.
        Err(failure) if is_slot_in_use(&failure) => {}
        Err(failure) => return Err(failure),
    }
    identity.change(|stored| (stored.server, stored.root) = (server, root))?;
    let (stored, file) = (&identity.stored, &identity.file);
    let value = json!({"aid": stored.aid, "server": stored.server, "keys": file});
    args.output.one(&value, || format!("{}\n", stored.aid));
    let joined = if was_stored { "already joined on this machine" } else { "joined" };
    output::message(&format!("{joined}; the keys are in {}\n", file.display()));
    Ok(exit_codes::OK)
}

/// Rejects a name that is not registered here. A name with a domain is left to the server: other domains may allow shorter ones.
fn check_length(name: &str) -> Result<(), Failure> {
    if name.contains('.') || (OWN_NAME_BYTES_MIN..=NAME_BYTES_MAX).contains(&name.len()) {
        return Ok(());
    }
    let message = format!("the name of an AID has {OWN_NAME_BYTES_MIN} to {NAME_BYTES_MAX} characters");
    Err(Failure::invalid(Rule::AidLength, message))
}

fn read_root(file: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(file)
        .map_err(|error| Failure::invalid(Rule::MeshRoot, format!("{}: {error}", file.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_name_of_the_servers_own_domain_is_measured_here() {
        for good in ["alice", "bob.other.test"] {
            assert!(check_length(good).is_ok(), "{good}");
        }
        for bad in ["bob", "", "a".repeat(65).as_str()] {
            assert!(check_length(bad).is_err(), "{bad}");
        }
    }
}
