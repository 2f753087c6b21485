//! Prompts whose response is not yet sent. Published clients wait for a prompt's end only once they have read the response that
//! names it, and drop an end that arrives before. So the streams of this server hold back the frames of a prompt until its
//! response is sent. Streams of other servers need not: the event reaches them later than the client its response.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    sync::watch,
    time::{Instant, sleep_until},
};

/// How long frames are held back after the response was given to the socket. The client reads it from another connection than
/// the frames.
const READING_TIME: Duration = Duration::from_millis(30);

/// When the response was sent. `None` if it is not.
type Sent = Option<Instant>;

/// The prompts of this server whose response is not yet sent, or was sent just now.
#[derive(Clone, Default)]
pub(crate) struct PendingReplies(Arc<Mutex<HashMap<String, watch::Sender<Sent>>>>);

impl PendingReplies {
    /// Announces a prompt, before it is stored. Its frames are held back until the guard is dropped.
    pub(crate) fn begin(&self, prompt_id: &str) -> PendingReply {
        let mut prompts = self.0.lock();
        let is_over = |sent: &Sent| sent.is_some_and(|at| at.elapsed() >= READING_TIME);
        prompts.retain(|_, sent| !is_over(&sent.borrow()));
        prompts.insert(prompt_id.to_owned(), watch::Sender::new(None));
        PendingReply { replies: self.clone(), prompt_id: prompt_id.to_owned() }
    }

    /// Resolves when frames of the prompt may be sent. At once for a prompt that this server has not accepted just now.
    pub(crate) async fn replied(&self, prompt_id: &str) {
        let Some(mut sent) = self.0.lock().get(prompt_id).map(watch::Sender::subscribe) else { return };
        // It fails only if the prompt was removed, which is done after its response was sent.
        let at = sent.wait_for(Option::is_some).await.ok().and_then(|at| *at);
        if let Some(at) = at {
            sleep_until(at + READING_TIME).await;
        }
    }
}

impl PendingReplies {
    /// Holds back no further frames of the prompt.
    pub(crate) fn forget(&self, prompt_id: &str) {
        self.0.lock().remove(prompt_id);
    }
}

/// A response that is not yet sent. Drop it with the body of the response.
pub(crate) struct PendingReply {
    replies: PendingReplies,
    prompt_id: String,
}

impl Drop for PendingReply {
    fn drop(&mut self) {
        if let Some(sent) = self.replies.0.lock().get(&self.prompt_id) {
            sent.send_replace(Some(Instant::now()));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn frames_of_a_prompt_wait_for_its_response_and_a_moment_more() {
        let replies = PendingReplies::default();
        replies.replied("unknown").await;
        let pending = replies.begin("a");
        let mut waiting = Box::pin(replies.replied("a"));
        assert!(poll!(&mut waiting).is_pending());
        drop(pending);
        assert!(poll!(&mut waiting).is_pending(), "the client has not read it yet");
        let sent = Instant::now();
        waiting.await;
        assert_eq!(sent.elapsed(), READING_TIME);
    }

    #[tokio::test(start_paused = true)]
    async fn prompts_that_were_answered_are_forgotten() {
        let replies = PendingReplies::default();
        drop(replies.begin("a"));
        let second = replies.begin("b");
        assert_eq!(replies.0.lock().len(), 2, "the first was answered just now");
        tokio::time::sleep(READING_TIME).await;
        drop(replies.begin("c"));
        drop(second);
        assert!(!replies.0.lock().contains_key("a"));
        assert_eq!(replies.0.lock().len(), 2);
    }
}
