//! A streamed reply, read piece by piece within limits. Only an end that the provider states is an end: a stream that
//! stops without one was cut.

use std::collections::VecDeque;

use ostler_client::sse::Parser;
use ostler_protocol::{FailureKind, limits::NAME_BYTES_MAX};
use reqwest::Response;
use serde_json::{Map, Value};
use tokio::time::{Duration, timeout};

use super::{
    error::{ProviderError, error_text},
    wire::{CallPiece, ChatUsage, Chunk, WireCall},
};
use crate::{
    front_end::{ARGUMENTS_BYTES_MAX, CALLS_MAX},
    text_cutter::TextCutter,
};

const SILENCE_MS_MAX: u64 = 120_000;
const REPLY_BYTES_MAX: usize = 16 * 1024 * 1024;

#[derive(Debug, PartialEq)]
pub(super) enum ReplyPiece {
    Text(String),
    Reasoning(String),
}

pub(super) struct ReplyStream {
    response: Response,
    parser: Parser,
    bytes: usize,
    ready: VecDeque<ReplyPiece>,
    state: StreamState,
    has_ended: bool,
    cutter: TextCutter,
}

/// What is known at the end of a reply.
pub(super) struct StreamEnd {
    pub(super) usage: Map<String, Value>,
    pub(super) calls: Vec<WireCall>,
    /// Why the reply ended, if the model did not end it itself.
    pub(super) cut_short: Option<String>,
}

#[derive(Default)]
struct StreamState {
    /// The model's name in our request.
    requested: String,
    /// The model's name in the reply.
    model: Option<String>,
    usage: Option<ChatUsage>,
    calls: Vec<WireCall>,
    finish_reason: Option<String>,
}

impl ReplyStream {
    pub(super) fn new(response: Response, model: String, cutter: TextCutter) -> Self {
        let state = StreamState { requested: model, ..StreamState::default() };
        Self { response, parser: Parser::default(), bytes: 0, ready: VecDeque::new(), state, has_ended: false, cutter }
    }

    /// The next piece. `None` at the end. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Option<ReplyPiece>, ProviderError> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Ok(Some(piece));
            }
            if self.has_ended {
                return Ok(None);
            }
            match timeout(Duration::from_millis(SILENCE_MS_MAX), self.response.chunk()).await {
                Err(_) => return Err(stream_cut("fell silent in the middle of its reply")),
                Ok(Err(_)) => return Err(stream_cut("broke off in the middle of its reply")),
                Ok(Ok(Some(bytes))) => self.read(&bytes)?,
                Ok(Ok(None)) if self.state.finish_reason.is_some() => self.has_ended = true,
                Ok(Ok(None)) => return Err(stream_cut("ended its reply without stating that it is complete")),
            }
        }
    }

    pub(super) fn into_end(self) -> StreamEnd {
        let reason = self
            .state
            .finish_reason
            .filter(|reason| !matches!(reason.as_str(), "stop" | "tool_calls" | "function_call"));
        StreamEnd {
            usage: usage_payload(self.state.requested, self.state.model, self.state.usage),
            calls: self.state.calls,
            cut_short: reason,
        }
    }

    fn read(&mut self, bytes: &[u8]) -> Result<(), ProviderError> {
        self.bytes += bytes.len();
        if self.bytes > REPLY_BYTES_MAX {
            return Err(invalid_stream("a reply without end"));
        }
        for frame in self.parser.feed(bytes).map_err(|_| invalid_stream("an event without end"))? {
            if frame.data.trim() == "[DONE]" {
                self.has_ended = true;
                break;
            }
            let chunk: Chunk =
                serde_json::from_str(&frame.data).map_err(|_| invalid_stream("an event that is not JSON"))?;
            if chunk.error.is_some() {
                let message = error_text(&self.cutter, frame.data.as_bytes());
                return Err(ProviderError::new(
                    FailureKind::ProviderUnavailable,
                    format!("the provider failed: {message}"),
                ));
            }
            self.state.add_chunk(chunk, &mut self.ready)?;
        }
        Ok(())
    }
}

impl StreamState {
    fn add_chunk(&mut self, chunk: Chunk, ready: &mut VecDeque<ReplyPiece>) -> Result<(), ProviderError> {
        let model = chunk.model.filter(|name| (1..=NAME_BYTES_MAX).contains(&name.len()));
        self.model = model.or(self.model.take());
        self.usage = chunk.usage.or(self.usage.take());
        for choice in chunk.choices {
            self.finish_reason = choice.finish_reason.or(self.finish_reason.take());
            let Some(delta) = choice.delta else { continue };
            let thought = delta.reasoning_content.or(delta.reasoning).filter(|text| !text.is_empty());
            ready.extend(thought.map(ReplyPiece::Reasoning));
            let text = delta.content.or(delta.refusal).filter(|text| !text.is_empty());
            ready.extend(text.map(ReplyPiece::Text));
            for piece in delta.tool_calls.unwrap_or_default() {
                self.add_call_piece(piece)?;
            }
        }
        Ok(())
    }

    /// Adds a piece of a tool call: by its index, otherwise to the last call, or to a new call if it has an id.
    fn add_call_piece(&mut self, piece: CallPiece) -> Result<(), ProviderError> {
        let last = self.calls.len().saturating_sub(1);
        let index = piece.index.unwrap_or(if piece.id.is_some() { self.calls.len() } else { last });
        if index >= CALLS_MAX {
            return Err(invalid_call("too many calls at once"));
        }
        while self.calls.len() <= index {
            let id = format!("call_{}", self.calls.len() + 1);
            self.calls.push(WireCall { id, ..WireCall::default() });
        }
        let call = &mut self.calls[index];
        if let Some(id) = piece.id.filter(|id| !id.is_empty()) {
            call.id = id;
        }
        let function = piece.function.unwrap_or_default();
        call.name.push_str(&function.name.unwrap_or_default());
        call.arguments.push_str(&function.arguments.unwrap_or_default());
        if call.name.len() > NAME_BYTES_MAX
            || call.id.len() > NAME_BYTES_MAX
            || call.arguments.len() > ARGUMENTS_BYTES_MAX
        {
            return Err(invalid_call("a call that is too long"));
        }
        Ok(())
    }
}

/// The provider's counts under our names. A count that it does not give is left out.
pub(super) fn usage_payload(
    requested: String,
    model: Option<String>,
    counted: Option<ChatUsage>,
) -> Map<String, Value> {
    let counted = counted.unwrap_or_default();
    let (input, output) =
        (counted.prompt_tokens_details.unwrap_or_default(), counted.completion_tokens_details.unwrap_or_default());
    let counts = [
        ("inputTokens", counted.prompt_tokens),
        ("outputTokens", counted.completion_tokens),
        ("totalTokens", counted.total_tokens),
        ("cachedInputTokens", input.cached_tokens),
        ("reasoningTokens", output.reasoning_tokens),
    ];
    let given =
        counts.into_iter().filter_map(|(name, count)| Some((name.to_owned(), i64::try_from(count?).ok()?.into())));
    let other = model.as_ref().filter(|model| **model != requested).map(|_| ("requestedModel", requested.clone()));
    let names = [("model", model.unwrap_or(requested))].into_iter().chain(other);
    names.map(|(name, model)| (name.to_owned(), Value::from(model))).chain(given).collect()
}

/// The stream was cut. A reply that has begun is not requested again, because clients have already received a part.
fn stream_cut(how: &str) -> ProviderError {
    ProviderError::new(FailureKind::ProviderUnavailable, format!("the provider {how}"))
}

fn invalid_stream(what: &str) -> ProviderError {
    ProviderError::new(FailureKind::BackendFailed, format!("the provider sent {what}"))
}

fn invalid_call(what: &str) -> ProviderError {
    ProviderError::new(FailureKind::ProviderInvalidToolCall, format!("the model made {what}"))
}
