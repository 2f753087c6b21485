//! `ostler verify`: checks the hash chains of the stored events, offline, and names the first inconsistent event of each
//! session.

use ostler_protocol::Failure;
use ostler_server::verify::Report;
use serde_json::json;

use crate::{
    commands::serve::StoreArgs,
    connection::Connection,
    exit_codes,
    terminal::{
        output::{Output, count, line},
        paint::Paint,
    },
};

/// Check that no stored event was changed, removed, reordered or inserted
///
/// Reads the store directly; no server is needed. The exit code is 1 if a session is inconsistent.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  ostler verify\n  ostler verify --data-dir ./data ses_0198…\n  ostler verify -o json"
)]
pub(crate) struct VerifyArgs {
    #[arg(value_name = "SESSION", help = "Only this session")]
    session: Option<String>,
    #[command(flatten)]
    store: StoreArgs,
    #[command(flatten)]
    output: Output,
}

pub(crate) async fn verify(connection: &Connection, args: &VerifyArgs) -> Result<u8, Failure> {
    let config = args.store.load(connection)?;
    let report = ostler_server::verify(&config, args.session.as_deref()).await?;
    args.output.one(&as_json(&report), || render(&report, Paint::stdout()));
    Ok(if report.broken.is_empty() { exit_codes::OK } else { exit_codes::BROKEN })
}

pub(super) fn render(report: &Report, paint: Paint) -> String {
    let mut seen = format!("{}, {}", count(report.sessions as i64, "session"), count(report.events as i64, "event"));
    if report.erased > 0 {
        seen.push_str(&format!(", {} erased", report.erased));
    }
    if report.removed > 0 {
        seen.push_str(&format!(", {} without their payload by retention", report.removed));
    }
    if report.broken.is_empty() {
        return format!("{} {seen}\n", paint.green("ok"));
    }
    let mut out = format!("{} {} of {seen}\n", paint.red("broken"), count(report.broken.len() as i64, "session"));
    for broken in &report.broken {
        out.push_str(&format!("  {} #{}: {}\n", broken.session_id, broken.session_seq, line(&broken.reason, 400)));
    }
    out
}

pub(super) fn as_json(report: &Report) -> serde_json::Value {
    let broken = report
        .broken
        .iter()
        .map(|b| json!({"sessionId": b.session_id, "sessionSeq": b.session_seq, "reason": b.reason}));
    json!({"sessions": report.sessions, "events": report.events, "erased": report.erased, "removed": report.removed,
        "broken": broken.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use ostler_server::verify::BrokenRow;

    use super::*;

    #[test]
    fn a_report_counts_sessions_and_events() {
        let report = Report { sessions: 1, events: 12, erased: 3, removed: 2, broken: vec![] };
        let text = "ok 1 session, 12 events, 3 erased, 2 without their payload by retention\n";
        assert_eq!(render(&report, Paint::PLAIN), text);
        assert_eq!(as_json(&report), json!({"sessions": 1, "events": 12, "erased": 3, "removed": 2, "broken": []}));
    }

    #[test]
    fn the_first_inconsistent_event_is_named() {
        let broken = BrokenRow { session_id: "ses_1".into(), session_seq: 7, reason: "the payload was changed".into() };
        let report = Report { sessions: 2, events: 12, erased: 0, removed: 0, broken: vec![broken] };
        let text = "broken 1 session of 2 sessions, 12 events\n  ses_1 #7: the payload was changed\n";
        assert_eq!(render(&report, Paint::PLAIN), text);
    }
}
