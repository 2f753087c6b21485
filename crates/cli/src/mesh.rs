//! `ostler mesh`: a person or a script as an agent of the mesh. Joins under a name, sends messages sealed from end to end and
//! opens those that come. Its keys lie in one file that nobody else may read.

use std::path::{Path, PathBuf};

use clap::Subcommand;
use ostler_client::mesh::{Ambient, Gateway, Heard, Member, Opened, Sealer};
use ostler_protocol::{
    Failure, FailureKind,
    mesh::{
        Aid,
        messages::QueryOnlineResult,
        prekeys::{GetPrekeyParams, GetPrekeyResult},
    },
};
use ostler_server::clock::fill;
use serde_json::{Value, json};

use crate::{
    connect::{Connection, is_loopback},
    errors, exit_codes,
    output::{self, Output, line},
    times::now,
};

/// Join the mesh under a name, and exchange sealed messages with other agents
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler mesh join alice\n  ostler mesh send bobby.localhost.test \"hello\"\n  \
    ostler mesh inbox --follow\n  ostler mesh whois bobby.localhost.test")]
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
    ostler mesh send bobby.localhost.test \"hello\" --as alice.localhost.test -o json")]
struct SendArgs {
    /// Who is to get it
    to: Aid,
    /// What it says
    text: String,
    #[command(flatten)]
    who: Who,
    #[command(flatten)]
    output: Output,
}

/// Show the messages that came since the last time, opened, and acknowledge them
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler mesh inbox\n  ostler mesh inbox --follow -o jsonl")]
struct InboxArgs {
    /// Stay and show what comes
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
    aid: Aid,
    #[command(flatten)]
    who: Who,
    #[command(flatten)]
    output: Output,
}

#[derive(clap::Args, Debug)]
struct Who {
    /// As which of the names that were joined here [default: the only one]
    #[arg(long = "as", value_name = "AID")]
    own: Option<Aid>,
}

const AMBIENT: Ambient = Ambient { now, fill };

pub async fn mesh(connection: &Connection, args: &Args) -> Result<u8, Failure> {
    match &args.verb {
        Verb::Join(args) => join(connection, args).await,
        Verb::Send(args) => send(connection, args).await,
        Verb::Inbox(args) => inbox(connection, args).await,
        Verb::Whois(args) => whois(connection, args).await,
    }
}

fn directory(connection: &Connection) -> Result<PathBuf, Failure> {
    let data_dir = connection.settings()?.data_dir.ok_or_else(|| {
        Failure::invalid("data-dir", "there is no home to keep keys in; name a directory with --data-dir")
    })?;
    Ok(data_dir.value.join("mesh"))
}

fn load(file: &Path) -> Result<Member, Failure> {
    let text = std::fs::read_to_string(file).map_err(|error| not_kept(file, &error))?;
    serde_json::from_str(&text).map_err(|error| not_kept(file, &error))
}

fn save(member: &Member, file: &Path) -> Result<(), Failure> {
    use std::{
        io::Write,
        os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    };
    let fresh = file.with_extension("new");
    let write = || {
        if let Some(directory) = file.parent() {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        }
        let mut open = std::fs::File::options();
        let mut kept = open.create(true).truncate(true).write(true).mode(0o600).open(&fresh)?;
        kept.write_all(output::json(member).as_bytes())?;
        kept.sync_all()?;
        std::fs::rename(&fresh, file)
    };
    write().map_err(|error: std::io::Error| not_kept(file, &error))
}

/// The one that is asked for, or the only one.
fn find(connection: &Connection, who: &Who) -> Result<(Member, PathBuf), Failure> {
    let directory = directory(connection)?;
    if let Some(aid) = &who.own {
        let file = directory.join(format!("{aid}.json"));
        return Ok((load(&file)?, file));
    }
    let entries = std::fs::read_dir(&directory).into_iter().flatten().filter_map(Result::ok);
    let is_kept = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json");
    let files: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(is_kept).collect();
    match files.as_slice() {
        [file] => Ok((load(file)?, file.clone())),
        [] => {
            let message = "nobody has joined here";
            Err(errors::hinted(FailureKind::NotFound, message.to_owned(), "join with `ostler mesh join NAME`"))
        }
        _ => Err(Failure::invalid("mesh-several", "several names were joined here; choose one with --as")),
    }
}

/// Logs in and connects, and keeps what changed.
async fn enter(member: &mut Member, file: &Path) -> Result<Sealer, Failure> {
    let sealer = member.enter(AMBIENT).await?;
    save(member, file)?;
    Ok(sealer)
}

fn not_kept(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::rule(FailureKind::NotFound, "mesh-keys", format!("{}: {error}", path.display()))
}

async fn join(connection: &Connection, args: &JoinArgs) -> Result<u8, Failure> {
    let server = connection.settings()?.server.value;
    let root = match &args.root {
        Some(file) => std::fs::read_to_string(file).map_err(|error| not_kept(file, &error))?,
        None if is_loopback(&server) => Gateway::shown_root(&server).await?,
        None => {
            return Err(Failure::invalid(
                "mesh-root",
                "name the root to believe with --root: the server is on another machine",
            ));
        }
    };
    let mut member = Member::join(&server, root, &args.name, args.invite.clone(), AMBIENT).await?;
    let file = directory(connection)?.join(format!("{}.json", member.aid));
    save(&member, &file)?;
    enter(&mut member, &file).await?.close().await;
    let told = json!({"aid": member.aid, "server": member.server, "keys": file});
    args.output.one(&told, || format!("{}\n", member.aid));
    output::words(&format!("joined; the keys are in {}\n", file.display()));
    Ok(exit_codes::OK)
}

async fn send(connection: &Connection, args: &SendArgs) -> Result<u8, Failure> {
    let (mut member, file) = find(connection, &args.who)?;
    let mut sealer = enter(&mut member, &file).await?;
    let sent = sealer.send(&args.to, &json!({"type": "text", "text": args.text})).await?;
    sealer.close().await;
    args.output.one(&sent, || format!("{}\n", sent.message_id));
    Ok(exit_codes::OK)
}

async fn inbox(connection: &Connection, args: &InboxArgs) -> Result<u8, Failure> {
    let (mut member, file) = find(connection, &args.who)?;
    let mut sealer = enter(&mut member, &file).await?;
    let mut after = 0;
    loop {
        let (opened, page) = sealer.pull(after).await?;
        after = after.max(page.server_ack_seq);
        let new: Vec<&Opened> = opened.iter().filter(|one| one.message.seq > after).collect();
        new.iter().for_each(|one| show(args.output, one));
        let Some(last) = opened.last() else { break };
        after = after.max(last.message.seq);
        sealer.ack(after).await?;
    }
    if args.follow {
        follow(&mut sealer, args.output, after).await?;
    }
    sealer.close().await;
    Ok(exit_codes::OK)
}

/// Until the connection ends, or whoever watches.
async fn follow(sealer: &mut Sealer, output: Output, mut after: i64) -> Result<(), Failure> {
    loop {
        match sealer.hear().await? {
            Ok(opened) if opened.message.seq > after => {
                show(output, &opened);
                after = sealer.ack(opened.message.seq).await?;
            }
            Ok(_) | Err(Heard::Ack(_) | Heard::Message(_) | Heard::Other(_)) => {}
            Err(Heard::Recalled(recalled)) => {
                output::words(&format!("{} took back {}\n", recalled.from, recalled.message_ids.join(", ")));
            }
        }
    }
}

fn show(output: Output, opened: &Opened) {
    let message = &opened.message;
    let (contents, shut) = match &opened.contents {
        Ok(contents) => (contents.clone(), None),
        Err(why) => (Value::Null, Some(why)),
    };
    let told = json!({"seq": message.seq, "from": message.from, "to": message.to, "messageId": message.message_id,
        "timestamp": message.timestamp, "sealed": message.encrypted, "contents": contents, "shut": shut});
    output.many(std::slice::from_ref(&told), || {
        let text = match (shut, contents["text"].as_str()) {
            (Some(why), _) => format!("(stays shut: {why})"),
            (None, Some(text)) => text.to_owned(),
            (None, None) => contents.to_string(),
        };
        let open = if message.encrypted { "" } else { " (not sealed)" };
        format!("{}{open}: {}\n", message.from, line(&text, 2_000))
    });
}

async fn whois(connection: &Connection, args: &WhoisArgs) -> Result<u8, Failure> {
    let (mut member, file) = find(connection, &args.who)?;
    let gateway = member.gateway(AMBIENT)?;
    let chain = gateway.chain().await?;
    let found = gateway.peer(&chain, &args.aid, None).await?;
    let peer = found.ok_or_else(|| Failure::not_found("agent of this name"))?;
    let mut sealer = enter(&mut member, &file).await?;
    let aids = json!({"aids": [args.aid]});
    let online: QueryOnlineResult = sealer.session().call("message.query_online", &aids).await?;
    let asked = GetPrekeyParams { aid: args.aid.clone() };
    let prekeys: GetPrekeyResult = sealer.session().call("message.e2ee.get_prekey", &asked).await?;
    sealer.close().await;
    let certificate = peer.certificate();
    let is_online = online.online.get(&args.aid).copied().unwrap_or(false);
    let told = json!({"aid": args.aid, "fingerprint": certificate.fingerprint(), "serial": certificate.serial().to_string(),
        "notAfter": certificate.not_after(), "online": is_online, "devices": prekeys.device_prekeys.len()});
    args.output.one(&told, || {
        format!(
            "{}\ncertificate {}, good until {}\n{}, {}\n",
            args.aid,
            certificate.fingerprint(),
            certificate.not_after(),
            if is_online { "connected" } else { "not connected" },
            output::count(prekeys.device_prekeys.len() as i64, "device")
        )
    });
    Ok(exit_codes::OK)
}
