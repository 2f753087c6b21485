//! Texts that retention removes from the rows of a finished run: those in the folds and ends of its commands and in the summaries of
//! its jobs. Counts, kinds and usage stay. A row without its texts is marked in its own JSON, so that a sweep finds the others.

use ostler_protocol::{
    RawJson,
    ids::{CommandId, RunId, RunnerJobId},
    json::text_of,
    kernel::{
        fold::CommandFold,
        runner_jobs::{observed_without_text, summary_without_texts},
        runs::Terminal,
    },
};

use super::conditions::unfinished;
use crate::{
    db::Db,
    error::StoreError,
    record::{Reader, Statement, json, text},
};

/// Statements that remove the texts of the next rows of a run, one per row: at most so many.
pub(super) async fn remove_next(db: &Db, run_id: RunId, rows: u32) -> Result<Vec<Statement>, StoreError> {
    let mut statements = commands(db, run_id, rows).await?;
    let rest = rows.saturating_sub(statements.len() as u32);
    if rest > 0 {
        statements.extend(jobs(db, run_id, rest).await?);
    }
    Ok(statements)
}

/// The statement that removes the text from the end of a run. A run that waits for another turn has no end.
pub(super) fn remove_from_end(run_id: RunId, end: Option<Terminal>) -> Option<Statement> {
    let end = end?.without_text();
    let sql = "UPDATE runs SET terminal = $1, cancel_reason = NULL WHERE run_id = $2";
    Some(Statement::new(sql, vec![json(&end), text(run_id)]))
}

/// A fold or an end that cannot be read is left, and those that follow it are not: `ostler verify` reports it.
async fn commands(db: &Db, run_id: RunId, rows: u32) -> Result<Vec<Statement>, StoreError> {
    let sql = format!(
        "SELECT seq, command_id, fold, terminal FROM commands WHERE run_id = $1 AND seq > $2 AND NOT {}
             AND fold NOT LIKE '%\"texts_removed\":true%' ORDER BY seq LIMIT $3",
        unfinished("")
    );
    let decode = |row: &mut Reader<'_>| {
        let seq = row.at("seq")?.int()?;
        let command_id = row.at("command_id")?.id::<CommandId>()?;
        let fold = serde_json::from_str::<CommandFold>(&row.at("fold")?.text()?).ok();
        let end = row.at("terminal")?.opt_text()?.map(|end| serde_json::from_str::<Terminal>(&end)).transpose().ok();
        Ok((seq, command_id, fold.zip(end)))
    };
    let removal = |(_, command_id, readable): (i64, CommandId, Option<(CommandFold, Option<Terminal>)>)| {
        let (mut fold, end) = readable?;
        fold.remove_texts();
        let end = end.map(|end| text_of(&end.without_text()));
        let sql = "UPDATE commands SET fold = $1, terminal = $2, cancel_reason = NULL WHERE command_id = $3";
        Some(Statement::new(sql, vec![json(&fold), end.into(), text(command_id)]))
    };
    let (mut statements, mut after) = (vec![], 0);
    loop {
        let limit = i64::from(rows) - statements.len() as i64;
        let found = db.read(sql.clone(), vec![text(run_id), after.into(), limit.into()], decode).await?;
        let is_last = (found.len() as i64) < limit;
        after = found.last().map_or(after, |(seq, ..)| *seq);
        statements.extend(found.into_iter().filter_map(removal));
        if is_last || statements.len() >= rows as usize {
            return Ok(statements);
        }
    }
}

async fn jobs(db: &Db, run_id: RunId, rows: u32) -> Result<Vec<Statement>, StoreError> {
    let sql = "SELECT runner_job_id, terminal_summary, observed FROM runner_jobs WHERE run_id = $1
        AND phase NOT IN ('pending', 'running') AND terminal_summary NOT LIKE '%\"textsRemoved\":true%'
        ORDER BY runner_job_id LIMIT $2";
    let decode = |row: &mut Reader<'_>| {
        let job_id = row.at("runner_job_id")?.id::<RunnerJobId>()?;
        Ok((job_id, row.at("terminal_summary")?.text()?, row.at("observed")?.text()?))
    };
    let found = db.read(sql, vec![text(run_id), i64::from(rows).into()], decode).await?;
    let removal = |(job_id, summary, observed): (RunnerJobId, String, String)| {
        let raw = |text: String| RawJson::parse(text).unwrap_or_else(|_| RawJson::empty_object());
        let (summary, observed) = (summary_without_texts(&raw(summary)), observed_without_text(&raw(observed)));
        let sql = "UPDATE runner_jobs SET terminal_summary = $1, observed = $2 WHERE runner_job_id = $3";
        Statement::new(sql, vec![(&summary).into(), (&observed).into(), text(job_id)])
    };
    Ok(found.into_iter().map(removal).collect())
}
