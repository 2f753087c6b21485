//! `ostler mesh`: a person or a script as an agent of the mesh. Joins under a name, sends messages sealed from end to end and
//! opens those that come. Its keys lie in one file that nobody else may read.

mod inbox;
mod kept;

use std::{
    io::Read,
    path::{Path, PathBuf},
};

use clap::Subcommand;
use ostler_client::mesh::{Ambient, CertificateTrust, Gateway, RegisterError, StoredIdentity, is_slot_in_use};
use ostler_protocol::{
    Failure, FailureKind,
    mesh::{
        auth::not_registered,
        messages::{PAYLOAD_BYTES_MAX, QueryOnlineResult},
        prekeys::{GetPrekeyParams, GetPrekeyResult},
    },
};
use ostler_server::clock::fill;
use serde_json::json;

use crate::{
    connect::{Connection, is_loopback},
    errors, exit_codes,
    output::{self, Output},
    times::now,
};
use kept::Kept;

/// Sealed, a text is a third longer, and has an envelope around it.
const TEXT_BYTES_MAX: usize = PAYLOAD_BYTES_MAX / 4 * 3 - 8 * 1024;

/// Join the mesh under a name, and exchange sealed messages with other agents
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler mesh join alice\n  ostler mesh send bobby \"hello\"\n  \
    ostler mesh inbox --follow\n  ostler mesh whois bobby")]
pub struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand, Debug)]
enum Verb {
    Join(JoinArgs),
    Send(SendArgs),
    Inbox(InboxArgs),
    Whois(WhoisArgs),
}

/// Register a name with a new key
///
/// For a name that was joined here before, it sees that the keys still work, and remembers where the server is now.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler mesh join alice\n  ostler mesh join alice.probe.test --root root.crt --invite …"
)]
struct JoinArgs {
    /// The name; without a dot, one of the server's own domain
    name: String,
    /// The root to believe, PEM; by default the one that a server on this machine shows
    #[arg(long, value_name = "FILE")]
    root: Option<PathBuf>,
    /// An invitation, where the server asks for one
    #[arg(long, value_name = "TEXT")]
    invite: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// Seal a message and send it
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler mesh send bobby.localhost.test \"hello\"\n  \
    ostler mesh send bobby \"hello\" --as alice -o json\n  git log -1 | ostler mesh send bobby -")]
struct SendArgs {
    /// Who is to get it; without a dot, somebody of the same domain
    to: String,
    /// What it says; `-` reads it from stdin
    text: String,
    #[command(flatten)]
    who: Who,
    #[command(flatten)]
    output: Output,
}

/// Show the messages that came since the last time, opened, and acknowledge them
///
/// A name has one reader at a time on a machine; others may send meanwhile.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler mesh inbox\n  ostler mesh inbox --follow -o jsonl")]
struct InboxArgs {
    /// Stay and show what comes, also after the connection was lost
    #[arg(short, long)]
    follow: bool,
    #[command(flatten)]
    who: Who,
    #[command(flatten)]
    output: Output,
}

/// Show whose certificate a name has, whether it is believed, and whether its agent is connected
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler mesh whois bobby.localhost.test -o json")]
struct WhoisArgs {
    /// Whom to look up; without a dot, somebody of the same domain
    name: String,
    #[command(flatten)]
    who: Who,
    #[command(flatten)]
    output: Output,
}

#[derive(clap::Args, Debug)]
struct Who {
    /// As which of the names that were joined here, in full or without its domain [default: the only one]
    #[arg(long = "as", value_name = "NAME")]
    own: Option<String>,
}

impl Who {
    fn find(&self, connection: &Connection) -> Result<Kept, Failure> {
        Kept::find(connection, self.own.as_deref())
    }
}

const AMBIENT: Ambient = Ambient { now, fill };

pub async fn mesh(connection: &Connection, args: &Args) -> Result<u8, Failure> {
    match &args.verb {
        Verb::Join(args) => join(connection, args).await,
        Verb::Send(args) => send(connection, args).await,
        Verb::Inbox(args) => inbox::inbox(args.who.find(connection)?, args.output, args.follow).await,
        Verb::Whois(args) => whois(connection, args).await,
    }
}

async fn join(connection: &Connection, args: &JoinArgs) -> Result<u8, Failure> {
    let (server, directory) = (connection.settings()?.server.value, kept::directory(connection)?);
    let named = args.root.as_deref().map(read_root).transpose()?;
    let root = match &named {
        Some(root) => root.clone(),
        None if is_loopback(&server) => Gateway::fetch_root(&server).await?,
        None => match Kept::find(connection, Some(&args.name)) {
            Ok(kept) => kept.member.root,
            Err(_) => {
                let message = "the server is on another machine, and nothing says which root to believe";
                return Err(errors::usage(message, "name the root with `--root`"));
            }
        },
    };
    let aid = kept::full_name(&args.name, Gateway::new(&server, &root, AMBIENT)?.chain().await?.issuer().name())?;
    let (mut kept, was_here) = match Kept::get(&directory, &aid, &server)? {
        Some(kept) => (kept, true),
        None => (Kept::insert(&directory, StoredIdentity::new(aid, &server, root, AMBIENT))?, false),
    };
    // A root that was believed once is not given up for one that a server shows.
    let root = named.unwrap_or_else(|| kept.member.root.clone());
    let gateway = Gateway::new(&server, &root, AMBIENT)?;
    if !kept.member.is_registered() {
        match kept.member.register(&gateway, args.invite.clone()).await {
            Ok(certificate) => kept.change(|member| member.adopt(&certificate))?,
            // What may have been registered is not thrown away: to join again with the same key is to go on.
            Err(RegisterError::Unsettled(failure)) if was_here || failure.kind != FailureKind::RateLimited => {
                return Err(failure);
            }
            Err(RegisterError::Unsettled(failure)) => return kept.remove().and(Err(failure)),
            Err(RegisterError::Refused(failure)) => return kept.remove().and(Err(failure)),
        }
    }
    match kept.enter(&gateway, inbox::READER).await {
        Ok(mut sealer) => {
            kept.leave_prekey(&mut sealer).await?;
            sealer.close().await;
        }
        // Its reader is there, and sees to all of that.
        Err(failure) if is_slot_in_use(&failure) => {}
        Err(failure) => return Err(failure),
    }
    kept.change(|member| (member.server, member.root) = (server, root))?;
    let (member, file) = (&kept.member, &kept.file);
    let told = json!({"aid": member.aid, "server": member.server, "keys": file});
    args.output.one(&told, || format!("{}\n", member.aid));
    let joined = if was_here { "was joined here before" } else { "joined" };
    output::words(&format!("{joined}; the keys are in {}\n", file.display()));
    Ok(exit_codes::OK)
}

fn read_root(file: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(file).map_err(|error| Failure::invalid("mesh-root", format!("{}: {error}", file.display())))
}

/// A slot that nobody else has: such a command neither reads nor leaves prekeys, so any number may run at once.
fn slot() -> String {
    format!("once-{}", AMBIENT.id())
}

async fn send(connection: &Connection, args: &SendArgs) -> Result<u8, Failure> {
    let mut kept = args.who.find(connection)?;
    let (to, text) = (kept.full_name(&args.to)?, text(&args.text)?);
    let mut sealer = kept.enter(&kept.gateway()?, &slot()).await?;
    let sent = sealer.send(&to, &json!({"type": "text", "text": text})).await?;
    sealer.close().await;
    args.output.one(&sent, || format!("{}\n", sent.message_id));
    Ok(exit_codes::OK)
}

/// What was typed, or what stdin says without its last line's end.
fn text(typed: &str) -> Result<String, Failure> {
    if typed != "-" {
        return Ok(typed.to_owned());
    }
    let mut text = String::new();
    let read = std::io::stdin().lock().take(TEXT_BYTES_MAX as u64 + 1).read_to_string(&mut text);
    read.map_err(|error| Failure::invalid("stdin", format!("stdin: {error}")))?;
    if text.len() > TEXT_BYTES_MAX {
        return Err(errors::usage(
            format!("a message has at most {TEXT_BYTES_MAX} bytes of text"),
            "send less at once",
        ));
    }
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}

async fn whois(connection: &Connection, args: &WhoisArgs) -> Result<u8, Failure> {
    let mut kept = args.who.find(connection)?;
    let (aid, gateway) = (kept.full_name(&args.name)?, kept.gateway()?);
    let (certificate, doubt) = match gateway.check_certificate(&aid, None).await? {
        CertificateTrust::Trusted(peer) => (peer.certificate().clone(), None),
        CertificateTrust::Untrusted { certificate, why } => (*certificate, Some(why)),
        CertificateTrust::Unknown => return Err(not_registered(&aid)),
    };
    let mut sealer = kept.enter(&gateway, &slot()).await?;
    let online: QueryOnlineResult = sealer.session().call("message.query_online", &json!({"aids": [aid]})).await?;
    let asked = GetPrekeyParams { aid: aid.clone() };
    let prekeys: GetPrekeyResult = sealer.session().call("message.e2ee.get_prekey", &asked).await?;
    sealer.close().await;
    let is_online = online.online.get(aid.as_str()).copied().unwrap_or(false);
    let told = json!({"aid": aid, "believed": doubt.is_none(), "doubt": doubt,
        "fingerprint": certificate.fingerprint(), "serial": certificate.serial().to_string(),
        "notAfter": certificate.not_after(), "online": is_online, "devices": prekeys.device_prekeys.len()});
    args.output.one(&told, || {
        let standing = doubt.map_or_else(|| "believed".to_owned(), |why| format!("not believed: {why}"));
        format!(
            "{aid}\n{standing}\ncertificate {}, until {}\n{}, {}\n",
            certificate.fingerprint(),
            certificate.not_after(),
            if is_online { "connected" } else { "not connected" },
            output::count(prekeys.device_prekeys.len() as i64, "device")
        )
    });
    Ok(exit_codes::OK)
}
