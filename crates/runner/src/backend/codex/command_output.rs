//! What a command prints, as Codex reports it: in pieces while it runs, and whole at its end. Codex starts to read a moment
//! after the command has started to write, so the pieces may lack the beginning. Only the whole has it.
//!
//! The first piece received may be the rest of a credential whose beginning was missed, and would not be recognised as
//! one. So the beginning of the pieces is held back until the whole output is known, and is sent together with what was
//! missed before it. Everything after it is sent at once. If the whole output never becomes known, the beginning is never
//! sent. Each part is sent once, within one limit.

use crate::{
    text::{doubtful_prefix_len, safe_prefix_len},
    text_cutter::TextCutter,
};

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
    pub(super) fn push(&mut self, cutter: &TextCutter, piece: &str) -> Vec<OutputPart> {
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
        if is_first_cut {
            // Redacted together with what follows: a secret that crosses the limit is recognised only as a whole.
            let whole = format!("{rest}{}", &piece[fits.len()..]);
            let (clean, _) = cutter.cut_bytes(&whole, rest.len());
            let text = clean[..safe_prefix_len(&clean)].to_owned();
            self.sent_len = self.received.len();
            return vec![OutputPart { text, is_cut: true, is_beginning: false }];
        }
        let text = rest[..safe_prefix_len(rest)].to_owned();
        self.sent_len += text.len();
        non_empty([OutputPart { text, is_cut: false, is_beginning: false }])
    }

    /// The command has ended. `whole` is all it printed, if that is known. Returns what has not been sent yet.
    pub(super) fn end(&mut self, cutter: &TextCutter, whole: Option<&str>) -> Vec<OutputPart> {
        let received = std::mem::take(&mut self.received);
        let held_len = self.held_len.unwrap_or(received.len());
        let (first, last) = (&received[..held_len], &received[self.sent_len.max(held_len)..]);
        let found = whole.and_then(|whole| Some((whole, whole.rfind(&received)?)));
        let Some((whole, at)) = found else {
            let lost = !first.is_empty();
            // What was received up to the limit may end with a part of a secret.
            let last = if self.is_cut { "" } else { last };
            return non_empty([OutputPart { text: last.to_owned(), is_cut: self.is_cut || lost, is_beginning: false }]);
        };
        let (missed, after) = (&whole[..at], &whole[at + received.len()..]);
        let room = OUTPUT_BYTES_MAX - received.len();
        if self.sent_len <= held_len {
            // Nothing was sent, so all of it can be sent in order.
            return non_empty([last_part(cutter, whole, OUTPUT_BYTES_MAX)]);
        }
        let beginning = last_part(cutter, &format!("{missed}{first}"), room + first.len());
        let room = room.saturating_sub(missed.len()) + last.len();
        let last = if self.is_cut { OutputPart::default() } else { last_part(cutter, &format!("{last}{after}"), room) };
        non_empty([last, OutputPart { is_beginning: true, ..beginning }])
    }
}

/// A part that nothing follows. It is cut only if it is too long, and then between words.
fn last_part(cutter: &TextCutter, text: &str, bytes_max: usize) -> OutputPart {
    let (text, is_cut) = cutter.cut_bytes(text, bytes_max);
    OutputPart { text: text.into_owned(), is_cut, is_beginning: false }
}

fn non_empty<const N: usize>(parts: [OutputPart; N]) -> Vec<OutputPart> {
    parts.into_iter().filter(|part| !part.text.is_empty() || part.is_cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is sent of a command with these pieces and this whole output: while it runs, and at its end.
    fn sent(pieces: &[&str], whole: Option<&str>) -> (String, Vec<(String, bool)>) {
        let (mut output, cutter) = (CommandOutput::default(), TextCutter::default());
        let live: String = pieces.iter().flat_map(|piece| output.push(&cutter, piece)).map(|part| part.text).collect();
        let end = output.end(&cutter, whole);
        let end = end.into_iter().map(|part| (part.text, part.is_beginning)).collect();
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
    fn a_credential_that_crosses_the_limit_is_not_sent_in_part() {
        let secret = "correct horse battery staple";
        let cutter = TextCutter::new(ostler_protocol::redaction::Redactor::new(&[secret]));
        let line = "a line of some length\n";
        let lines = line.repeat(OUTPUT_BYTES_MAX / line.len());
        for left in 1..secret.len() {
            let before = &lines[..OUTPUT_BYTES_MAX - line.len() - left];
            let whole = format!("{before}{:>22}{secret}\n", "login: ");
            let end = CommandOutput::default().end(&cutter, Some(&whole));
            assert!(end.iter().all(|part| !part.text.contains("corr")), "{left}");
        }
        let mut output = CommandOutput::default();
        let start = format!("{}key ", line.repeat(OUTPUT_BYTES_MAX / line.len() - 1));
        let rest = OUTPUT_BYTES_MAX - start.len() - 8;
        let live = output.push(&cutter, &format!("{start}{} sk-0123456789abcdef", "y".repeat(rest)));
        let end = output.end(&cutter, None);
        assert!(live.iter().chain(&end).all(|part| !part.text.contains("sk-")), "its end was never received");
    }

    #[test]
    fn a_secret_of_two_words_that_crosses_the_limit_of_unfinished_output_is_not_sent_in_part() {
        let secret = "correct horse";
        let cutter = TextCutter::new(ostler_protocol::redaction::Redactor::new(&[secret]));
        let line = "a line of some length\n";
        let lines = line.repeat(OUTPUT_BYTES_MAX / line.len() - 1);
        for left in 1..secret.len() {
            let before = format!("{lines}{}", " ".repeat(OUTPUT_BYTES_MAX - lines.len() - left));
            let pieces = [format!("{before}{secret}\n"), "more\n".to_owned()];
            let mut output = CommandOutput::default();
            let mut sent: Vec<_> = pieces.iter().flat_map(|piece| output.push(&cutter, piece)).collect();
            sent.extend(output.end(&cutter, None));
            assert!(sent.iter().all(|part| !part.text.contains("corr")), "{left}");
            assert!(sent.iter().any(|part| part.text.len() > OUTPUT_BYTES_MAX / 2), "{left}");
        }
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
        let (mut output, cutter) = (CommandOutput::default(), TextCutter::default());
        let cut: usize = (0..9_000).flat_map(|_| output.push(&cutter, line)).filter(|part| part.is_cut).count();
        assert_eq!(cut, 1, "it is reported once");
    }
}
