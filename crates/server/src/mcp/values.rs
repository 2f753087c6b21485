//! Resolves the values of a server's configuration that may be secrets. The redactor learns each of them before it is used.

use std::collections::BTreeMap;

use ostler_protocol::mcp::config::McpValue;
use secrecy::{ExposeSecret, SecretString};

use super::problem::McpProblem;
use crate::app::App;

/// Most bytes of a file with a secret.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// The values by their names. Fails with the name of a value that is missing.
pub(super) async fn resolve(
    app: &App,
    values: &BTreeMap<String, McpValue>,
) -> Result<Vec<(String, SecretString)>, McpProblem> {
    let mut resolved = vec![];
    for (name, value) in values {
        let text = match value {
            McpValue::Text(text) => Some(text.clone()),
            McpValue::Variable(reference) => app.config.environment.text(&reference.env).map(Into::into),
            McpValue::File(reference) => read(&reference.file).await,
        };
        let missing = || McpProblem::ValueMissing(name.clone());
        let text = text.filter(|text| !text.expose_secret().contains('\0')).ok_or_else(missing)?;
        resolved.push((name.clone(), text));
    }
    app.redactor.learn(resolved.iter().map(|(_, text)| text.expose_secret()));
    Ok(resolved)
}

/// `None` if the file cannot be read, is too large or is not text.
async fn read(path: &str) -> Option<SecretString> {
    let size = tokio::fs::metadata(path).await.ok()?.len();
    let text = if size <= FILE_BYTES_MAX { tokio::fs::read_to_string(path).await.ok()? } else { return None };
    Some(text.trim().to_owned().into())
}
