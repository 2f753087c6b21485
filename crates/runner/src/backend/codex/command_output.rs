//! What a command prints, as Codex reports it: in pieces while it runs, and whole at its end. Codex starts to read a moment
//! after the command has started to write, so the pieces may lack the beginning. Only the whole has it.
//!
//! The first piece received may be the rest of a credential whose beginning was missed, and would not be recognised as
//! one. So the beginning of the pieces is held back until the whole output is known, and is sent together with what was
//! missed before it. Everything after it is sent at once. If the whole output never becomes known, the beginning is never
//! sent. Each part is sent once, within one limit.

use crate::text::{doubtful_prefix_len, safe_prefix_len};

/// Output of one tool that is reported. A build that never stops writing is cut here.
const OUTPUT_BYTES_MAX: usize = 64 * 1024;

#[derive(Default)]
pub(super) struct CommandOutput {
    /// The pieces, up to the limit.
    received: String,
    /// The length of the beginning that is held back. `None` until it can be determined.
    held_len: Option<usize>,
    /// End of the part that was sent. It starts after the held-back beginning.
    sent_len: usize,
    /// Whether there was more output than the limit.
    is_cut: bool,
}

/// A part of the output that can be sent.
#[derive(Debug, Default, PartialEq)]
pub(super) struct OutputPart {
    pub(super) text: String,
    /// Whether something is left out of it, or after it.
    pub(super) is_cut: bool,
    /// Whether it belongs before everything that was already sent.
    pub(super) is_beginning: bool,
}

impl CommandOutput {
    /// Adds a piece and returns what can be sent now.
    pub(super) fn push(&mut self, piece: &str) -> Vec<OutputPart> {
        let room = OUTPUT_BYTES_MAX - self.received.len();
        let fits = &piece[..piece.floor_char_boundary(room)];
        self.received.push_str(fits);
        let is_first_cut = fits.len() < piece.len() && !std::mem::replace(&mut self.is_cut, true);
        if self.held_len.is_none() {
            self.held_len = doubtful_prefix_len(&self.received);
            self.sent_len = self.held_len.unwrap_or_default();
        }
        let Some(held_len) = self.held_len else { return vec![] };
        debug_assert!(held_len <= self.sent_len, "the beginning is held back");
        let rest = &self.received[self.sent_len..];
        let text = rest[..safe_prefix_len(rest)].to_owned();
        self.sent_len += text.len();
        let part = OutputPart { text, is_cut: is_first_cut, is_beginning: false };
        if part.text.is_empty() && !is_first_cut { vec![] } else { vec![part] }
    }

    /// The command has ended. `whole` is all it printed, if that is known. Returns what has not been sent yet.
    pub(super) fn end(&mut self, whole: Option<&str>) -> Vec<OutputPart> {
        let received = std::mem::take(&mut self.received);
        let held_len = self.held_len.unwrap_or(received.len());
        let (first, last) = (&received[..held_len], &received[self.sent_len.max(held_len)..]);
        let found = whole.and_then(|whole| Some((whole, whole.rfind(&received)?)));
        let Some((whole, at)) = found else {
            let lost = !first.is_empty();
            return non_empty([last_part(last.to_owned(), usize::MAX, self.is_cut || lost)]);
        };
        let (missed, after) = (&whole[..at], &whole[at + received.len()..]);
        let room = OUTPUT_BYTES_MAX - received.len();
        if self.sent_len <= held_len {
            // Nothing was sent, so all of it can be sent in order.
            return non_empty([last_part(whole.to_owned(), OUTPUT_BYTES_MAX, false)]);
        }
        let beginning = last_part(format!("{missed}{first}"), room + first.len(), false);
        let room = room.saturating_sub(missed.len()) + last.len();
        let last = if self.is_cut { OutputPart::default() } else { last_part(format!("{last}{after}"), room, false) };
        non_empty([last, OutputPart { is_beginning: true, ..beginning }])
    }
}

/// A part that nothing follows. It is cut only if it is too long, and then between words.
fn last_part(text: String, bytes_max: usize, is_cut: bool) -> OutputPart {
    let fits = &text[..text.floor_char_boundary(bytes_max)];
    if fits.len() == text.len() {
        return OutputPart { text, is_cut, is_beginning: false };
    }
    OutputPart { text: fits[..safe_prefix_len(fits)].to_owned(), is_cut: true, is_beginning: false }
}

fn non_empty<const N: usize>(parts: [OutputPart; N]) -> Vec<OutputPart> {
    parts.into_iter().filter(|part| !part.text.is_empty() || part.is_cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is sent of a command with these pieces and this whole output: while it runs, and at its end.
    fn sent(pieces: &[&str], whole: Option<&str>) -> (String, Vec<(String, bool)>) {
        let mut output = CommandOutput::default();
        let live: String = pieces.iter().flat_map(|piece| output.push(piece)).map(|part| part.text).collect();
        let end = output.end(whole).into_iter().map(|part| (part.text, part.is_beginning)).collect();
        (live, end)
    }

    #[test]
    fn a_credential_whose_beginning_was_missed_is_sent_whole_or_not_at_all() {
        let pieces = ["cdefgh", "ij0123\nafter that\n", "tail\n"];
        let (live, end) = sent(&pieces, Some("key sk-abcdefghij0123\nafter that\ntail\n"));
        assert_eq!(live, "after that\ntail\n");
        assert_eq!(end, [("key sk-abcdefghij0123\n".to_owned(), true)]);
        let (live, end) = sent(&pieces, None);
        assert_eq!((live.as_str(), end), ("after that\ntail\n", vec![(String::new(), false)]), "it is marked as cut");
    }

    #[test]
    fn output_that_was_held_back_is_sent_in_order_at_the_end() {
        assert_eq!(sent(&[], Some("all of it\n")), (String::new(), vec![("all of it\n".into(), false)]));
        assert_eq!(sent(&["of", " it"], Some("all of it!\n")).1, [("all of it!\n".into(), false)]);
        let (live, end) = sent(&["one\n", "two\n", "thr"], Some("one\ntwo\nthree\n"));
        assert_eq!(live, "two\n");
        assert_eq!(end, [("three\n".into(), false), ("one\n".into(), true)]);
    }

    #[test]
    fn no_more_than_the_limit_is_sent() {
        let line = "a line of some length\n";
        let (missed, received) = (line.repeat(500), line.repeat(4_000));
        for parts in [vec![received.as_str()], received.split_inclusive('\n').collect(), vec![]] {
            let (live, end) = sent(&parts, Some(&format!("{missed}{received}")));
            let bytes = live.len() + end.iter().map(|(text, _)| text.len()).sum::<usize>();
            assert!(bytes <= OUTPUT_BYTES_MAX && bytes > OUTPUT_BYTES_MAX / 2, "{bytes}");
        }
        let mut output = CommandOutput::default();
        let cut: usize = (0..9_000).flat_map(|_| output.push(line)).filter(|part| part.is_cut).count();
        assert_eq!(cut, 1, "it is reported once");
    }
}
