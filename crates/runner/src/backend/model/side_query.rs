//! A side query to a model: one completion without tools, sent once.

use std::collections::BTreeMap;

use secrecy::SecretString;

use super::{
    endpoint::Endpoint,
    error::ProviderError,
    messages::request_messages,
    stream::{ReplyPiece, ReplyStream},
    tools::ModelTools,
};
use crate::{backend::turn::TurnEnd, environment::BackendEnvironment, side_queries::SideQuery};

/// A model behind an OpenAI-compatible endpoint, and its key. `None`: the endpoint needs no key.
pub(in crate::backend) struct KeyedModel {
    pub base_url: String,
    pub model: String,
    pub key: Option<SecretString>,
}

/// The text of the model's reply, as far as it was read: at least `chars_max` characters of it.
pub(in crate::backend) async fn ask(
    base_url: &str,
    model: &str,
    (environment, files): (&BackendEnvironment, &BTreeMap<String, SecretString>),
    query: &SideQuery,
    chars_max: usize,
) -> Result<String, TurnEnd> {
    let endpoint = Endpoint::of_files(base_url, model, files, environment.outgoing.as_ref());
    complete(&endpoint.map_err(ProviderError::into_end)?, query, chars_max).await
}

/// As [`ask`], for a model whose key is not in the file of the model backend.
pub(in crate::backend) async fn ask_keyed(
    model: KeyedModel,
    environment: &BackendEnvironment,
    query: &SideQuery,
    chars_max: usize,
) -> Result<String, TurnEnd> {
    let KeyedModel { base_url, model, key } = model;
    let endpoint = Endpoint::with_key(&base_url, &model, key, environment.outgoing.as_ref());
    complete(&endpoint.map_err(ProviderError::into_end)?, query, chars_max).await
}

async fn complete(endpoint: &Endpoint, query: &SideQuery, chars_max: usize) -> Result<String, TurnEnd> {
    let messages = request_messages(&query.conversation, &[], &query.prompt(), &[]);
    let body = endpoint.body(&messages, &ModelTools::default());
    let stream = endpoint.send(&body).await.map_err(ProviderError::into_end)?;
    read(stream, chars_max).await.map_err(ProviderError::into_end)
}

async fn read(mut stream: ReplyStream, chars_max: usize) -> Result<String, ProviderError> {
    let mut text = String::new();
    while let Some(piece) = stream.next().await? {
        let ReplyPiece::Text(piece) = piece else { continue };
        text.push_str(&piece);
        if text.len() > chars_max && text.chars().nth(chars_max).is_some() {
            break;
        }
    }
    Ok(text)
}
