//! `ostler identities`: the names of the mesh that this server's authority certifies.

use std::path::{Path, PathBuf};

use clap::{Subcommand, ValueEnum};
use ostler_client::mesh::PublishedCertificate;
use ostler_protocol::{
    Failure, FailureKind, Rule,
    mesh::{
        Aid,
        auth::not_registered,
        identities::{CreateInvite, Identity, IssueCertificate, ListIdentities, RevocationReason, RevokeIdentity},
    },
};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

use crate::{
    commands::list::{ListFlags, Listing},
    connection::Connection,
    errors, exit_codes,
    terminal::{
        confirm::Confirm,
        output::{self, Output, line},
        table::Column,
        times::parse_ms,
    },
};

/// Certify, list, revoke and invite names of the mesh
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler identities list\n  \
    ostler identities issue alice.probe.test --public-key alice.pub\n  \
    ostler identities revoke alice.probe.test --yes")]
pub(crate) struct IdentitiesArgs {
    #[command(subcommand)]
    verb: IdentitiesVerb,
}

#[derive(Subcommand, Debug)]
enum IdentitiesVerb {
    List(ListIdentitiesArgs),
    Issue(IssueIdentityArgs),
    Revoke(RevokeIdentityArgs),
    Invite(InviteIdentityArgs),
}

/// List names with their newest certificates, the newest first
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler identities list\n  ostler identities list -o jsonl | jq -r .aid")]
pub(crate) struct ListIdentitiesArgs {
    #[command(flatten)]
    list: ListFlags,
}

/// Certify a name, regardless of the registration policy; a new key revokes the previous certificate
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler identities issue alice.probe.test --public-key alice.pub\n  \
    openssl ec -in alice.key -pubout | \\\n      ostler identities issue alice.probe.test --public-key -")]
pub(crate) struct IssueIdentityArgs {
    aid: Aid,
    /// The public key, on P-256, in PEM; `-` reads it from stdin
    #[arg(long, value_name = "FILE")]
    public_key: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// Revoke a name's certificate: its logins end, and it is no longer trusted
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler identities revoke alice.probe.test --reason key-compromise --yes")]
pub(crate) struct RevokeIdentityArgs {
    aid: Aid,
    #[arg(long, value_enum, default_value = "unspecified")]
    reason: ReasonFlag,
    #[command(flatten)]
    confirm: Confirm,
    #[command(flatten)]
    output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ReasonFlag {
    Unspecified,
    KeyCompromise,
    Superseded,
    CessationOfOperation,
}

impl From<ReasonFlag> for RevocationReason {
    fn from(reason: ReasonFlag) -> Self {
        match reason {
            ReasonFlag::Unspecified => Self::Unspecified,
            ReasonFlag::KeyCompromise => Self::KeyCompromise,
            ReasonFlag::Superseded => Self::Superseded,
            ReasonFlag::CessationOfOperation => Self::CessationOfOperation,
        }
    }
}

/// Make an invitation to register a name, if registration requires one; it is printed once, on stdout
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler identities invite\n  ostler identities invite alice.probe.test --expires-in 1d"
)]
pub(crate) struct InviteIdentityArgs {
    /// The name it is for [default: any]
    aid: Option<Aid>,
    /// Its lifetime: 15m, 12h, 7d; 90 days at most [default: 7d]
    #[arg(long, value_name = "TIME", value_parser = parse_ms)]
    expires_in: Option<i64>,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn identities(connection: &Connection, args: &IdentitiesArgs) -> Result<u8, Failure> {
    match &args.verb {
        IdentitiesVerb::List(args) => list(connection, args).await,
        IdentitiesVerb::Issue(args) => issue(connection, args).await,
        IdentitiesVerb::Revoke(args) => revoke(connection, args).await,
        IdentitiesVerb::Invite(args) => invite(connection, args).await,
    }
}

pub(crate) async fn list(connection: &Connection, args: &ListIdentitiesArgs) -> Result<u8, Failure> {
    let (limit, times, output) = args.list.parts();
    let page = connection.client()?.list_identities(&ListIdentities { limit: Some(limit), cursor: None }).await?;
    IDENTITIES.print(&page.identities, page.next_cursor.is_some(), times, output)
}

const IDENTITIES: Listing<Identity> = Listing {
    nothing: "no names; clients register them, or: ostler identities issue AID --public-key FILE\n",
    columns: &[
        Column::text(3, "AID"),
        Column::whole("CERTIFICATE"),
        Column::spare(2, "CERTIFIED"),
        Column::spare(1, "SERIAL"),
    ],
    row: |identity, times, now| {
        let state = if identity.revoked_at.is_some() { "revoked" } else { "good" };
        vec![
            line(identity.aid.as_str(), 200),
            state.to_owned(),
            times.ago(identity.certified_at, now),
            identity.serial.clone(),
        ]
    },
};

pub(crate) async fn issue(connection: &Connection, args: &IssueIdentityArgs) -> Result<u8, Failure> {
    let public_key = public_key(&SecretString::from(read(&args.public_key)?)).ok_or_else(|| {
        let message = format!("{}: not one `PUBLIC KEY` in PEM; nothing was sent", args.public_key.display());
        errors::usage(message, "never send a private key; `openssl ec -in KEY -pubout` prints the public one")
    })?;
    let request = IssueCertificate { aid: args.aid.clone(), public_key };
    let identity = connection.client()?.issue_certificate(&request).await?;
    args.output.one(&identity, || identity.certificate.clone());
    Ok(exit_codes::OK)
}

/// Extracts the public key. The input may be a private key by mistake, so it is wiped.
fn public_key(pem: &SecretString) -> Option<String> {
    ostler_client::mesh::public_key(pem.expose_secret())
}

pub(crate) async fn revoke(connection: &Connection, args: &RevokeIdentityArgs) -> Result<u8, Failure> {
    if args.confirm.dry_run {
        return preview_revocation(connection, args).await;
    }
    if !args.confirm.ask(&format!("revoke the certificate of {}?", args.aid))? {
        return Ok(exit_codes::OK);
    }
    let request = RevokeIdentity { reason: args.reason.into() };
    let revoked = connection.client()?.revoke_identity(args.aid.as_str(), &request).await?;
    if revoked.revoked_at.is_none() {
        let message = format!("the server responded, but {} is not revoked: certificate {}", args.aid, revoked.serial);
        return Err(errors::hinted(
            FailureKind::StateConflict,
            message,
            "try again; `ostler identities list` shows its state",
        ));
    }
    args.output.one(&revoked, || format!("{} revoked\n", revoked.aid));
    Ok(exit_codes::OK)
}

async fn preview_revocation(connection: &Connection, args: &RevokeIdentityArgs) -> Result<u8, Failure> {
    let aid = &args.aid;
    let found = connection.client()?.find_certificate(aid.as_str()).await?.ok_or_else(|| not_registered(aid))?;
    let PublishedCertificate { serial, not_after, is_revoked } = found;
    let preview = json!({"aid": aid, "serial": serial, "notAfter": not_after, "wouldRevoke": !is_revoked});
    args.output.one(&preview, || match is_revoked {
        true => format!("{aid} is already revoked: certificate {serial}\n"),
        false => format!("would revoke {aid}: certificate {serial}, valid until {not_after}\n"),
    });
    args.confirm.ask("").map(|_| exit_codes::OK)
}

pub(crate) async fn invite(connection: &Connection, args: &InviteIdentityArgs) -> Result<u8, Failure> {
    let request = CreateInvite { aid: args.aid.clone(), expires_in_ms: args.expires_in };
    let invite = connection.client()?.create_invite(&request).await?;
    args.output.one(&invite, || format!("{}\n", invite.invite));
    output::message(&format!("valid for one name until {}; it is not stored and not shown again\n", invite.expires_at));
    Ok(exit_codes::OK)
}

/// Reads a file; `-` is stdin.
pub(crate) fn read(path: &Path) -> Result<String, Failure> {
    let text =
        if path.as_os_str() == "-" { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(path) };
    text.map_err(|error| Failure::invalid(Rule::File, format!("{}: {error}", path.display())))
}
