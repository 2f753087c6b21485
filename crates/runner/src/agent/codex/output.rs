//! What a command prints, as Codex tells it: in pieces while it runs, and whole at its end. Codex begins to listen a moment
//! after the command has begun to talk, so the pieces may lack the beginning, and only the whole has it.
//!
//! The rule: what was heard first may be the rest of a credential whose beginning was not, and nobody would know it for one.
//! So the beginning of what was heard waits for the whole, and goes out together with what was missed before it; everything
//! after it goes out at once. When there is no whole it never goes out. Each part is told once, within one bound.

use crate::holdback;

/// Output of one tool that is told; it is the end of a build that never stops talking.
const OUTPUT_BYTES_MAX: usize = 64 * 1024;

#[derive(Default)]
pub struct Output {
    /// What came in pieces, up to the bound.
    heard: String,
    /// The end of what was heard first. `None`: it is not known yet.
    opening: Option<usize>,
    /// How far it has been told, from the opening on.
    told: usize,
    /// There was more than is told.
    is_cut: bool,
}

/// Something to be told.
#[derive(Debug, Default, PartialEq)]
pub struct Piece {
    pub text: String,
    /// Something is left out of it, or after it.
    pub is_cut: bool,
    /// It comes late: it stands before all that was told.
    pub is_beginning: bool,
}

impl Output {
    pub fn hear(&mut self, delta: &str) -> Vec<Piece> {
        let room = OUTPUT_BYTES_MAX - self.heard.len();
        let fits = &delta[..delta.floor_char_boundary(room)];
        self.heard.push_str(fits);
        let is_news = fits.len() < delta.len() && !std::mem::replace(&mut self.is_cut, true);
        if self.opening.is_none() {
            self.opening = holdback::opening(&self.heard);
            self.told = self.opening.unwrap_or_default();
        }
        let Some(opening) = self.opening else { return vec![] };
        debug_assert!(opening <= self.told, "what was heard first waits");
        let rest = &self.heard[self.told..];
        let text = rest[..holdback::settled(rest)].to_owned();
        self.told += text.len();
        let piece = Piece { text, is_cut: is_news, is_beginning: false };
        if piece.text.is_empty() && !is_news { vec![] } else { vec![piece] }
    }

    /// The command has ended; `whole` is all it printed, if that is known.
    pub fn end(&mut self, whole: Option<&str>) -> Vec<Piece> {
        let heard = std::mem::take(&mut self.heard);
        let opening = self.opening.unwrap_or(heard.len());
        let (first, last) = (&heard[..opening], &heard[self.told.max(opening)..]);
        let around = whole.and_then(|whole| Some((whole, whole.rfind(&heard)?)));
        let Some((whole, at)) = around else {
            let lost = !first.is_empty();
            return pieces([ended(last.to_owned(), usize::MAX, self.is_cut || lost)]);
        };
        let (missed, after) = (&whole[..at], &whole[at + heard.len()..]);
        let room = OUTPUT_BYTES_MAX - heard.len();
        if self.told <= opening {
            // Nothing was told, so all of it can be told in its order.
            return pieces([ended(whole.to_owned(), OUTPUT_BYTES_MAX, false)]);
        }
        let beginning = ended(format!("{missed}{first}"), room + first.len(), false);
        let room = room.saturating_sub(missed.len()) + last.len();
        let last = if self.is_cut { Piece::default() } else { ended(format!("{last}{after}"), room, false) };
        pieces([last, Piece { is_beginning: true, ..beginning }])
    }
}

/// Nothing follows on this: it is cut only for its length, and then between words.
fn ended(text: String, bytes_max: usize, is_cut: bool) -> Piece {
    let shown = &text[..text.floor_char_boundary(bytes_max)];
    if shown.len() == text.len() {
        return Piece { text, is_cut, is_beginning: false };
    }
    Piece { text: shown[..holdback::settled(shown)].to_owned(), is_cut: true, is_beginning: false }
}

fn pieces<const N: usize>(pieces: [Piece; N]) -> Vec<Piece> {
    pieces.into_iter().filter(|piece| !piece.text.is_empty() || piece.is_cut).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told of a command whose pieces are these and whose whole is that: as it goes, and at its end.
    fn told(heard: &[&str], whole: Option<&str>) -> (String, Vec<(String, bool)>) {
        let mut output = Output::default();
        let live: String = heard.iter().flat_map(|delta| output.hear(delta)).map(|piece| piece.text).collect();
        let end = output.end(whole).into_iter().map(|piece| (piece.text, piece.is_beginning)).collect();
        (live, end)
    }

    #[test]
    fn a_credential_whose_beginning_was_missed_is_told_whole_or_not_at_all() {
        let heard = ["cdefgh", "ij0123\nafter that\n", "tail\n"];
        let (live, end) = told(&heard, Some("key sk-abcdefghij0123\nafter that\ntail\n"));
        assert_eq!(live, "after that\ntail\n");
        assert_eq!(end, [("key sk-abcdefghij0123\n".to_owned(), true)]);
        let (live, end) = told(&heard, None);
        assert_eq!(
            (live.as_str(), end),
            ("after that\ntail\n", vec![(String::new(), false)]),
            "it says that it is cut"
        );
    }

    #[test]
    fn what_was_not_told_before_the_end_is_told_in_order() {
        assert_eq!(told(&[], Some("all of it\n")), (String::new(), vec![("all of it\n".into(), false)]));
        assert_eq!(told(&["of", " it"], Some("all of it!\n")).1, [("all of it!\n".into(), false)]);
        let (live, end) = told(&["one\n", "two\n", "thr"], Some("one\ntwo\nthree\n"));
        assert_eq!(live, "two\n");
        assert_eq!(end, [("three\n".into(), false), ("one\n".into(), true)]);
    }

    #[test]
    fn however_much_there_is_no_more_than_the_bound_is_told() {
        let line = "a line of some length\n";
        let (missed, heard) = (line.repeat(500), line.repeat(4_000));
        for parts in [vec![heard.as_str()], heard.split_inclusive('\n').collect(), vec![]] {
            let (live, end) = told(&parts, Some(&format!("{missed}{heard}")));
            let bytes = live.len() + end.iter().map(|(text, _)| text.len()).sum::<usize>();
            assert!(bytes <= OUTPUT_BYTES_MAX && bytes > OUTPUT_BYTES_MAX / 2, "{bytes}");
        }
        let mut output = Output::default();
        let cut: usize = (0..9_000).flat_map(|_| output.hear(line)).filter(|piece| piece.is_cut).count();
        assert_eq!(cut, 1, "it is said once");
    }
}
