//! A side query to a model: one completion without tools, sent once.

use super::{
    endpoint::Endpoint,
    error::ProviderError,
    messages::request_messages,
    stream::{ReplyPiece, ReplyStream},
    tools::ModelTools,
};
use crate::{backend::turn::TurnEnd, environment::BackendEnvironment, side_queries::SideQuery};

/// The text of the model's reply, as far as it was read: at least `chars_max` characters of it.
pub(in crate::backend) async fn ask(
    base_url: &str,
    model: &str,
    environment: &BackendEnvironment,
    query: &SideQuery,
    chars_max: usize,
) -> Result<String, TurnEnd> {
    let (home, outgoing) = (environment.home.as_deref(), environment.outgoing.as_ref());
    let endpoint = Endpoint::open(base_url, model, home, outgoing).await.map_err(ProviderError::into_end)?;
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
