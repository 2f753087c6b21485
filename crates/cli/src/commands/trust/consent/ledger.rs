//! `ostler consent export` and `ostler consent verify`: the ledger of consent receipts, and its check without a server.

use std::io::{BufRead, Read};

use ostler_client::Client;
use ostler_protocol::{
    Failure,
    trust::receipts::{Broken, RECEIPT_BYTES_MAX, ReceiptVerifier},
};
use serde_json::json;

use crate::{
    errors, exit_codes,
    terminal::{
        output::{self, Output, count, line},
        paint::Paint,
    },
};

/// Write your consent ledger to stdout, a receipt per line
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler consent export > ledger.jsonl")]
pub(crate) struct ExportLedgerArgs {}

/// Check that no receipt of a ledger was changed, removed, reordered or inserted
///
/// Needs no server. The exit code is 1 if the ledger is inconsistent.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler consent verify ledger.jsonl\n  ostler consent export | ostler consent verify -"
)]
pub(crate) struct VerifyLedgerArgs {
    #[arg(help = "A ledger as `ostler consent export` writes it; - for stdin")]
    file: String,
    /// The hash of the last receipt, if you have stored it: proves that the ledger is complete
    #[arg(long, value_name = "HASH")]
    head: Option<String>,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn export(client: &Client) -> Result<u8, Failure> {
    client
        .ledger(|bytes| {
            output::bytes(bytes);
            Ok(())
        })
        .await?;
    Ok(exit_codes::OK)
}

pub(crate) fn verify(args: &VerifyLedgerArgs) -> Result<u8, Failure> {
    let unreadable = |error: std::io::Error| {
        errors::usage(format!("{}: {error}", args.file), "write it with `ostler consent export > FILE`")
    };
    let mut reader: Box<dyn BufRead> = match args.file.as_str() {
        "-" => Box::new(std::io::stdin().lock()),
        file => Box::new(std::io::BufReader::new(std::fs::File::open(file).map_err(unreadable)?)),
    };
    let mut verifier = ReceiptVerifier::default();
    let mut broken = None;
    let mut bytes = vec![];
    while broken.is_none() {
        bytes.clear();
        let mut bounded = reader.by_ref().take(RECEIPT_BYTES_MAX as u64 + 2);
        if bounded.read_until(b'\n', &mut bytes).map_err(unreadable)? == 0 {
            break;
        }
        let end = bytes.iter().rposition(|byte| !matches!(byte, b'\n' | b'\r')).map_or(0, |last| last + 1);
        broken = verifier.take(&bytes[..end]).err();
    }
    let is_cut = |head: &String| broken.is_none() && !verifier.heads().values().any(|end| end.hash == *head);
    if let Some(head) = args.head.as_ref().filter(|head| is_cut(head)) {
        let reason = format!("no ledger ends with {}", line(head, 80));
        broken = Some(Broken { line: verifier.receipts, id: None, reason });
    }
    if broken.is_none() && verifier.receipts == 0 {
        broken = Some(Broken { line: 0, id: None, reason: "the ledger has no receipts".to_owned() });
    }
    let heads = verifier.heads().iter();
    let heads: Vec<_> =
        heads.map(|(user_id, head)| json!({"user_id": user_id, "seq": head.seq, "hash": head.hash})).collect();
    let report = json!({"receipts": verifier.receipts, "ledgers": heads.len(), "heads": heads, "broken": broken});
    args.output.one(&report, || verdict(&verifier, broken.as_ref(), Paint::stdout()));
    Ok(if broken.is_none() { exit_codes::OK } else { exit_codes::BROKEN })
}

fn verdict(verifier: &ReceiptVerifier, broken: Option<&Broken>, paint: Paint) -> String {
    let Some(broken) = broken else {
        let heads = verifier.heads().iter();
        let heads: String =
            heads.map(|(user, head)| format!("  {} #{} {}\n", line(user, 80), head.seq, head.hash)).collect();
        return format!("{} {}\n{heads}", paint.green("ok"), count(verifier.receipts as i64, "receipt"));
    };
    let id = broken.id.as_deref().unwrap_or("a receipt");
    format!("{} line {}, {}: {}\n", paint.red("broken"), broken.line, line(id, 80), line(&broken.reason, 400))
}
