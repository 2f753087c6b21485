//! A streamed answer, read piece by piece within bounds. Only an end that the provider states is an end: a stream that
//! stops without one was cut.

use std::collections::VecDeque;

use ostler_client::sse::Parser;
use ostler_protocol::{FailureKind, limits::NAME_BYTES_MAX};
use reqwest::Response;
use serde_json::{Map, Value};
use tokio::time::{Duration, timeout};

use super::{
    endpoint::{Trouble, said},
    wire::{Call, CallPiece, Chunk, Usage},
};

const SILENCE_MS_MAX: u64 = 120_000;
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
const CALLS_MAX: usize = 32;
const ARGUMENTS_BYTES_MAX: usize = 64 * 1024;

#[derive(Debug, PartialEq)]
pub enum Piece {
    Text(String),
    Reasoning(String),
}

pub struct Answer {
    response: Response,
    parser: Parser,
    bytes: usize,
    ready: VecDeque<Piece>,
    said: Said,
    over: bool,
}

/// What is known at the answer's end.
pub struct Ending {
    pub usage: Map<String, Value>,
    pub calls: Vec<Call>,
    /// Why it ended, where that was not the model's own will.
    pub cut_short: Option<String>,
}

#[derive(Default)]
struct Said {
    /// As it was asked for.
    requested: String,
    /// As the provider calls it.
    model: Option<String>,
    usage: Option<Usage>,
    calls: Vec<Call>,
    finish_reason: Option<String>,
}

impl Answer {
    pub fn new(response: Response, model: String) -> Self {
        let said = Said { requested: model, ..Said::default() };
        Self { response, parser: Parser::default(), bytes: 0, ready: VecDeque::new(), said, over: false }
    }

    /// The next piece; `None` at the end. May be dropped and called again.
    pub async fn next(&mut self) -> Result<Option<Piece>, Trouble> {
        loop {
            if let Some(piece) = self.ready.pop_front() {
                return Ok(Some(piece));
            }
            if self.over {
                return Ok(None);
            }
            match timeout(Duration::from_millis(SILENCE_MS_MAX), self.response.chunk()).await {
                Err(_) => return Err(cut("fell silent in the middle of its answer")),
                Ok(Err(_)) => return Err(cut("broke off in the middle of its answer")),
                Ok(Ok(Some(bytes))) => self.read(&bytes)?,
                Ok(Ok(None)) if self.said.finish_reason.is_some() => self.over = true,
                Ok(Ok(None)) => return Err(cut("ended its answer without saying that it is whole")),
            }
        }
    }

    pub fn ending(self) -> Ending {
        let reason = self
            .said
            .finish_reason
            .filter(|reason| !matches!(reason.as_str(), "stop" | "tool_calls" | "function_call"));
        Ending {
            usage: usage(self.said.requested, self.said.model, self.said.usage),
            calls: self.said.calls,
            cut_short: reason,
        }
    }

    fn read(&mut self, bytes: &[u8]) -> Result<(), Trouble> {
        self.bytes += bytes.len();
        if self.bytes > ANSWER_BYTES_MAX {
            return Err(senseless("an answer without end"));
        }
        for frame in self.parser.feed(bytes).map_err(|_| senseless("an event without end"))? {
            if frame.data.trim() == "[DONE]" {
                self.over = true;
                break;
            }
            let chunk: Chunk = serde_json::from_str(&frame.data).map_err(|_| senseless("an event that is no JSON"))?;
            if chunk.error.is_some() {
                let told = said(frame.data.as_bytes());
                return Err(Trouble::new(FailureKind::ProviderUnavailable, format!("the provider failed: {told}")));
            }
            self.said.take(chunk, &mut self.ready)?;
        }
        Ok(())
    }
}

impl Said {
    fn take(&mut self, chunk: Chunk, ready: &mut VecDeque<Piece>) -> Result<(), Trouble> {
        let model = chunk.model.filter(|name| (1..=NAME_BYTES_MAX).contains(&name.len()));
        self.model = model.or(self.model.take());
        self.usage = chunk.usage.or(self.usage.take());
        for choice in chunk.choices {
            self.finish_reason = choice.finish_reason.or(self.finish_reason.take());
            let Some(delta) = choice.delta else { continue };
            let thought = delta.reasoning_content.or(delta.reasoning).filter(|text| !text.is_empty());
            ready.extend(thought.map(Piece::Reasoning));
            let text = delta.content.or(delta.refusal).filter(|text| !text.is_empty());
            ready.extend(text.map(Piece::Text));
            for piece in delta.tool_calls.unwrap_or_default() {
                self.call(piece)?;
            }
        }
        Ok(())
    }

    /// Puts a piece of a tool call where it belongs: by its index, else to the last one unless it brings an id.
    fn call(&mut self, piece: CallPiece) -> Result<(), Trouble> {
        let last = self.calls.len().saturating_sub(1);
        let index = piece.index.unwrap_or(if piece.id.is_some() { self.calls.len() } else { last });
        if index >= CALLS_MAX {
            return Err(invalid_call("too many calls at once"));
        }
        while self.calls.len() <= index {
            let id = format!("call_{}", self.calls.len() + 1);
            self.calls.push(Call { id, ..Call::default() });
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

/// What the provider counted, under our names. What it did not count is left out, not guessed.
fn usage(requested: String, model: Option<String>, counted: Option<Usage>) -> Map<String, Value> {
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
    let known =
        counts.into_iter().filter_map(|(name, count)| Some((name.to_owned(), i64::try_from(count?).ok()?.into())));
    let other = model.as_ref().filter(|model| **model != requested).map(|_| ("requestedModel", requested.clone()));
    let names = [("model", model.unwrap_or(requested))].into_iter().chain(other);
    names.map(|(name, model)| (name.to_owned(), Value::from(model))).chain(known).collect()
}

/// Once an answer has begun it is not asked for again: somebody has read it.
fn cut(how: &str) -> Trouble {
    Trouble::new(FailureKind::ProviderUnavailable, format!("the provider {how}"))
}

fn senseless(what: &str) -> Trouble {
    Trouble::new(FailureKind::BackendFailed, format!("the provider sent {what}"))
}

fn invalid_call(what: &str) -> Trouble {
    Trouble::new(FailureKind::ProviderInvalidToolCall, format!("the model made {what}"))
}
