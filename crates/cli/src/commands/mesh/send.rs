//! `ostler mesh send`: encrypts a message and sends it.

use std::io::Read;

use ostler_protocol::{Failure, Rule, mesh::messages::PAYLOAD_BYTES_MAX};
use serde_json::json;

use super::identity_file::{IdentityArgs, single_use_slot};
use crate::{connection::Connection, errors, exit_codes, terminal::output::Output};

/// Encryption makes a text a third longer and adds an envelope.
const TEXT_BYTES_MAX: usize = PAYLOAD_BYTES_MAX / 4 * 3 - 8 * 1024;

/// Encrypt a message and send it
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler mesh send bobby.localhost.test \"hello\"\n  \
    ostler mesh send bobby \"hello\" --as alice -o json\n  git log -1 | ostler mesh send bobby -")]
pub(crate) struct SendArgs {
    /// The recipient; without a dot, a name of the same domain
    to: String,
    /// The message; `-` reads it from stdin
    text: String,
    #[command(flatten)]
    identity: IdentityArgs,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn send(connection: &Connection, args: &SendArgs) -> Result<u8, Failure> {
    let mut identity = args.identity.find(connection)?;
    let (to, text) = (identity.full_name(&args.to)?, text(&args.text)?);
    let mut sealer = identity.enter(&identity.gateway()?, &single_use_slot()).await?;
    let sent = sealer.send(&to, &json!({"type": "text", "text": text})).await?;
    sealer.close().await;
    args.output.one(&sent, || format!("{}\n", sent.message_id));
    Ok(exit_codes::OK)
}

/// The argument, or for `-` the text of stdin without its last line end.
fn text(typed: &str) -> Result<String, Failure> {
    if typed != "-" {
        return Ok(typed.to_owned());
    }
    let mut text = String::new();
    let read = std::io::stdin().lock().take(TEXT_BYTES_MAX as u64 + 1).read_to_string(&mut text);
    read.map_err(|error| Failure::invalid(Rule::Stdin, format!("stdin: {error}")))?;
    if text.len() > TEXT_BYTES_MAX {
        return Err(errors::usage(
            format!("a message has at most {TEXT_BYTES_MAX} bytes of text"),
            "send less at once",
        ));
    }
    Ok(text.strip_suffix('\n').unwrap_or(&text).to_owned())
}
