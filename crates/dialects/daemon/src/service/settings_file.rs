//! The settings file of the workspace: reading tolerates that it is missing or broken, writing does not.

use ostler_protocol::{
    Failure, Rule,
    daemon::{
        cells::{CellErrorKind, StatusCell},
        settings::{SETTINGS_BYTES_MAX, SETTINGS_FILE, SettingRow, set_member},
    },
    json::text_of,
};
use ostler_server::app::App;
use serde_json::{Map, Value};

use super::documents::{self, Document, DocumentPlace, WriteOutcome, invalid_file};

const PLACE: DocumentPlace = DocumentPlace::Workspace(SETTINGS_FILE);
/// The kind of the cell that reports a problem of the file.
const CELL: &str = "settings_file";

/// Why the file, or a value in it, cannot be used.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FileProblem {
    error_kind: CellErrorKind,
    error: String,
    /// Line and column of the first fault, from 1.
    position: Option<(usize, usize)>,
}

impl FileProblem {
    fn new(error_kind: CellErrorKind, error: impl Into<String>) -> Self {
        Self { error_kind, error: error.into(), position: None }
    }

    /// The problem of a text that is not JSON. The message of the parser would quote the file.
    fn of_json(error: &serde_json::Error) -> Self {
        // The parser counts columns from 0 behind a line break.
        let (line, column) = (error.line().max(1), error.column().max(1));
        let message = format!("no valid JSON in line {line}, column {column}");
        Self { position: Some((line, column)), ..Self::new(CellErrorKind::ParseError, message) }
    }

    /// The problem of a value that cannot be used.
    pub(crate) fn of_value(key: &str) -> Self {
        Self::new(CellErrorKind::InvalidConfig, format!("the value of {key} cannot be used"))
    }

    pub(crate) fn cell(&self) -> StatusCell {
        StatusCell::error(CELL, self.error_kind, format!("{SETTINGS_FILE}: {}", self.error))
    }

    /// The failure of a request that cannot change the file because of this problem.
    fn failure(&self) -> Failure {
        let failure = invalid_file(SETTINGS_FILE, &self.error);
        match self.position {
            Some((line, column)) => failure.detail("line", line).detail("column", column),
            None => failure,
        }
    }

    /// Whether the whole file is unusable.
    pub(crate) fn is_of_file(&self) -> bool {
        self.error_kind != CellErrorKind::InvalidConfig
    }
}

/// The object in the file. A file that is missing has no settings.
pub(crate) async fn read(app: &App) -> Result<Map<String, Value>, FileProblem> {
    let document = documents::read(app, PLACE).await.map_err(|failure| unreadable(&failure))?;
    parse(document.as_ref())
}

fn unreadable(failure: &Failure) -> FileProblem {
    FileProblem::new(CellErrorKind::StatFailed, failure.message.as_str())
}

fn parse(document: Option<&Document>) -> Result<Map<String, Value>, FileProblem> {
    let Some(Document { text, .. }) = document else { return Ok(Map::new()) };
    if text.len() > SETTINGS_BYTES_MAX {
        let error = format!("{} bytes, the limit is {SETTINGS_BYTES_MAX}", text.len());
        return Err(FileProblem::new(CellErrorKind::ParseError, error));
    }
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_str(text) {
        Ok(Value::Object(members)) => Ok(members),
        Ok(_) => Err(FileProblem::new(CellErrorKind::ParseError, "not an object")),
        Err(error) => Err(FileProblem::of_json(&error)),
    }
}

/// Stores one setting, and leaves the rest of the file as it is. A null value removes it.
pub(crate) async fn write(app: &App, setting: &SettingRow, value: &Value) -> Result<(), Failure> {
    let contended = || persist_error(format!("{SETTINGS_FILE} is being changed by others"));
    let mut attempts = documents::attempts(contended);
    loop {
        attempts.start_next()?;
        let document = documents::read(app, PLACE).await.map_err(not_read)?;
        let mut members = parse(document.as_ref()).map_err(|problem| problem.failure())?;
        let before = members.clone();
        set_member(&mut members, setting, value.clone())?;
        if members == before {
            return Ok(());
        }
        let mut text = serde_json::to_string_pretty(&members).unwrap_or_else(|_| text_of(&members));
        text.push('\n');
        if text.len() > SETTINGS_BYTES_MAX {
            return Err(persist_error(format!("{SETTINGS_FILE} would be over {SETTINGS_BYTES_MAX} bytes")));
        }
        let written = documents::write(app, PLACE, text, document.as_ref()).await;
        match written.map_err(|failure| persist_error(failure.message))? {
            WriteOutcome::Done => return Ok(()),
            WriteOutcome::Outdated => {}
        }
    }
}

/// The failure of a write that could not read the file before.
fn not_read(failure: Failure) -> Failure {
    match failure.broken_rule() {
        Some(Rule::WorkspaceFileInvalid) => failure,
        _ => persist_error(failure.message),
    }
}

fn persist_error(message: impl Into<String>) -> Failure {
    Failure::rule(Rule::PersistError, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<usize, CellErrorKind> {
        let document = Document { text: text.to_owned(), ..Document::default() };
        parse(Some(&document)).map(|members| members.len()).map_err(|problem| problem.error_kind)
    }

    #[test]
    fn a_missing_or_empty_file_has_no_settings() {
        assert_eq!(parse(None).unwrap().len(), 0);
        assert_eq!((parsed(""), parsed(" \n"), parsed("{\"ui\": {}}")), (Ok(0), Ok(0), Ok(1)));
    }

    #[test]
    fn a_broken_file_is_reported_without_its_text() {
        for text in ["{", "[]", "7", &" ".repeat(SETTINGS_BYTES_MAX + 1)] {
            assert_eq!(parsed(text), Err(CellErrorKind::ParseError));
        }
        let document = Document { text: "{\n\"apiKey\": pl4nted}".to_owned(), ..Document::default() };
        let problem = parse(Some(&document)).unwrap_err();
        let cell = problem.cell().error.unwrap();
        assert!(cell.starts_with(".ostler/settings.json: no valid JSON in line 2, column "), "{cell}");
        let failure = problem.failure();
        assert_eq!((failure.broken_rule(), failure.kind.row().status), (Some(Rule::WorkspaceFileInvalid), 409));
        let details = failure.details.unwrap();
        assert_eq!((&details["path"], &details["line"]), (&Value::from(SETTINGS_FILE), &Value::from(2)));
        for text in ["{\n", "{\"a\": \n", "\n{\n\n"] {
            let document = Document { text: text.to_owned(), ..Document::default() };
            let (line, column) = parse(Some(&document)).unwrap_err().position.unwrap();
            assert!(line >= 1 && column >= 1, "{text:?}: {line}, {column}");
        }
    }
}
