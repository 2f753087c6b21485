//! Lines that a person types, or that a program writes to stdin, and single keys that answer a question.

use std::{
    io::{self, BufRead, ErrorKind, Stdin},
    sync::{
        Arc,
        atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::{Errno, ioctl_fionread},
    termios::{LocalModes, OptionalActions, QueueSelector, SpecialCodeIndex, Termios, tcflush, tcgetattr, tcsetattr},
};
use tokio::{sync::mpsc, time::Instant};

/// Lines that were typed and not read yet.
const LINES_WAITING_MAX: usize = 16;
/// How long after a question appears its keys are no answers: they may belong to something that a person began to type before.
const SETTLE: Duration = Duration::from_millis(700);
/// The letters that answer a question: yes, no, view.
const LETTERS: [u8; 3] = *b"ynv";

const END: u8 = 0x04;
const BACKSPACE: [u8; 2] = [0x08, 0x7f];
const ERASE_LINE: u8 = 0x15;

/// What was typed.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Typed {
    /// A line, with its end.
    Line(String),
    /// A key that answers a question by itself.
    Key(char),
    /// A line that is not valid UTF-8.
    InvalidLine,
}

/// What was typed, and the number of discards before it was read.
type Numbered = (usize, Typed);

pub(crate) struct TypedLines {
    receiver: mpsc::Receiver<Numbered>,
    shared: Arc<ReaderState>,
    /// The terminal hands over each key, until this is dropped.
    key_mode: Option<KeyMode>,
}

/// What the bytes of a terminal are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum ReadMode {
    /// Lines that the terminal has edited.
    Lines,
    /// Lines that are edited here: the terminal hands over each key, but a question has just appeared.
    Settling,
    /// As before, and the letters and the digits from 1 to this one are keys.
    Keys(u8),
}

/// What the thread that reads has to know.
struct ReaderState {
    /// 0: only lines are read. Else the letters and one digit less than this are keys.
    keys: AtomicU8,
    /// How often everything that was typed before was discarded.
    discards: AtomicUsize,
    began: Instant,
    /// From when on keys are answers, in milliseconds after `began`.
    settled_ms: AtomicU64,
}

impl ReaderState {
    fn new() -> Self {
        Self {
            keys: AtomicU8::new(0),
            discards: AtomicUsize::new(0),
            began: Instant::now(),
            settled_ms: AtomicU64::new(0),
        }
    }

    fn mode(&self) -> ReadMode {
        match self.keys.load(Ordering::Acquire).checked_sub(1) {
            None => ReadMode::Lines,
            Some(_) if self.elapsed_ms() < self.settled_ms.load(Ordering::Acquire) => ReadMode::Settling,
            Some(digits) => ReadMode::Keys(digits),
        }
    }

    fn elapsed_ms(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX)
    }

    fn discards(&self) -> usize {
        self.discards.load(Ordering::Acquire)
    }
}

impl TypedLines {
    /// Reads stdin in a thread of its own: a read that waits for a person cannot be cancelled, and must not keep the program from
    /// ending.
    pub(crate) fn stdin() -> Self {
        let (sender, receiver) = mpsc::channel(LINES_WAITING_MAX);
        let shared = Arc::new(ReaderState::new());
        let state = shared.clone();
        std::thread::spawn(move || read_stdin(&sender, &state));
        Self { receiver, shared, key_mode: None }
    }

    /// The next line or key that was not discarded. `None` if the input has ended.
    pub(crate) async fn next(&mut self) -> Option<Typed> {
        loop {
            let (discards, typed) = self.receiver.recv().await?;
            if discards == self.shared.discards() {
                return Some(typed);
            }
        }
    }

    /// Prepares for a new question: discards what was typed so far, and reads single keys beside lines once the question has been
    /// visible for a moment. If a person was in the middle of a line, only lines answer this question.
    pub(crate) fn expect_answer(&mut self, digits: u8) {
        self.settle();
        self.take_keys(Some(digits));
        self.discard();
    }

    /// For a moment keys are no answers, because a person has to read first.
    pub(crate) fn settle(&self) {
        let settle_ms = u64::try_from(SETTLE.as_millis()).unwrap_or(u64::MAX);
        self.shared.settled_ms.store(self.shared.elapsed_ms().saturating_add(settle_ms), Ordering::Release);
    }

    /// Reads single keys beside lines: the letters, and the digits from 1 to `digits`. `None`: reads only lines.
    pub(crate) fn take_keys(&mut self, digits: Option<u8>) {
        self.key_mode = match digits {
            Some(_) => self.key_mode.take().or_else(KeyMode::start),
            None => None,
        };
        let keys = digits.filter(|_| self.key_mode.is_some()).map_or(0, |digits| digits.saturating_add(1));
        self.shared.keys.store(keys, Ordering::Release);
    }

    /// Discards what was typed so far: a line that was typed before a question is no answer to it.
    pub(crate) fn discard(&mut self) {
        // In this order: what is read with the new number was typed after this.
        let _ = tcflush(io::stdin(), QueueSelector::IFlush);
        self.shared.discards.fetch_add(1, Ordering::AcqRel);
        while self.receiver.try_recv().is_ok() {}
    }
}

/// A terminal that hands over each key, and that is restored when this is dropped. It echoes, and sends signals, as before: if the
/// program is killed, the terminal stays usable.
struct KeyMode {
    before: Termios,
}

impl KeyMode {
    /// `None` if stdin is no terminal, or if a person is in the middle of a line: the next key is no answer then.
    fn start() -> Option<Self> {
        let before = tcgetattr(io::stdin()).ok()?;
        let mut settings = before.clone();
        // Without ECHOCTL, Enter is shown as the end of a line and not as `^J`.
        settings.local_modes.remove(LocalModes::ICANON | LocalModes::ECHOCTL);
        settings.special_codes[SpecialCodeIndex::VMIN] = 1;
        settings.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(io::stdin(), OptionalActions::Now, &settings).ok()?;
        let mode = Self { before };
        let is_typing = ioctl_fionread(io::stdin()).is_ok_and(|bytes| bytes > 0);
        (!is_typing).then_some(mode)
    }
}

impl Drop for KeyMode {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
    }
}

/// Reads until the input ends, it cannot be read, or the receiver was dropped.
fn read_stdin(sender: &mpsc::Sender<Numbered>, state: &ReaderState) {
    let stdin = io::stdin();
    let (mut text, mut discards) = (TypedText::default(), 0);
    loop {
        let Ok((discarded, bytes)) = read_some(&stdin, state) else { return };
        if discarded != discards {
            text.discard();
            discards = discarded;
        }
        let (typed, is_end) = if bytes.is_empty() { text.end() } else { text.add(&bytes, state.mode()) };
        for typed in typed {
            if sender.blocking_send((discards, typed)).is_err() {
                return;
            }
        }
        if is_end {
            return;
        }
    }
}

/// The next bytes: what the terminal hands over at once. Empty at the end of the input. With the number of discards before them.
///
/// It waits before it reads: a read that began while the terminal handed over keys would miss the end of the input afterwards.
fn read_some(stdin: &Stdin, state: &ReaderState) -> io::Result<(usize, Vec<u8>)> {
    loop {
        match poll(&mut [PollFd::new(stdin, PollFlags::IN)], None) {
            Ok(_) => {}
            Err(Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        }
        // Not after the read: bytes that were typed before a discard must not get its number.
        let discards = state.discards();
        let mut input = stdin.lock();
        match input.fill_buf().map(<[u8]>::to_vec) {
            Ok(bytes) => {
                input.consume(bytes.len());
                return Ok((discards, bytes));
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Bytes that were read, as lines and keys.
#[derive(Default)]
struct TypedText {
    /// The line that has not ended.
    line: Vec<u8>,
    /// The beginning of a line was discarded: the next byte may belong to the rest of it.
    lines_only: bool,
}

impl TypedText {
    /// Discards the line that has not ended. If there was one, there are no keys until the next discard.
    fn discard(&mut self) {
        self.lines_only = !self.line.is_empty();
        self.line.clear();
    }

    /// The lines and keys that these bytes complete, and whether they end the input. Only a byte that comes alone while the line is
    /// empty is a key: a whole line can be pasted.
    fn add(&mut self, bytes: &[u8], mode: ReadMode) -> (Vec<Typed>, bool) {
        if let ([key], ReadMode::Keys(digits)) = (bytes, mode)
            && self.line.is_empty()
            && !self.lines_only
            && is_key(*key, digits)
        {
            return (vec![Typed::Key(char::from(*key))], false);
        }
        let (edits, mut typed) = (mode != ReadMode::Lines, vec![]);
        for byte in bytes {
            match *byte {
                END if edits && self.line.is_empty() => return (typed, true),
                END if edits => {}
                ERASE_LINE if edits => self.line.clear(),
                erased if edits && BACKSPACE.contains(&erased) => {
                    // A character may be several bytes.
                    while self.line.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {}
                }
                byte => {
                    self.line.push(byte);
                    if byte == b'\n' {
                        typed.push(self.take_line());
                    }
                }
            }
        }
        (typed, false)
    }

    /// What is left at the end of the input.
    fn end(&mut self) -> (Vec<Typed>, bool) {
        let last = if self.line.is_empty() { vec![] } else { vec![self.take_line()] };
        (last, true)
    }

    fn take_line(&mut self) -> Typed {
        String::from_utf8(std::mem::take(&mut self.line)).map_or(Typed::InvalidLine, Typed::Line)
    }
}

fn is_key(byte: u8, digits: u8) -> bool {
    LETTERS.contains(&byte.to_ascii_lowercase()) || (byte.is_ascii_digit() && (1..=digits).contains(&(byte - b'0')))
}

#[cfg(test)]
impl TypedLines {
    /// Reads what is sent to the channel instead of stdin.
    pub(crate) fn of_channel() -> (mpsc::Sender<Numbered>, Self) {
        let (sender, receiver) = mpsc::channel(LINES_WAITING_MAX);
        (sender, Self { receiver, shared: Arc::new(ReaderState::new()), key_mode: None })
    }

    pub(crate) fn discards(&self) -> usize {
        self.shared.discards()
    }
}

#[cfg(test)]
mod tests {
    use super::{
        ReadMode::{Keys, Lines, Settling},
        *,
    };

    fn line(text: &str) -> Typed {
        Typed::Line(text.to_owned())
    }

    #[test]
    fn a_key_that_comes_alone_on_an_empty_line_answers() {
        let mut text = TypedText::default();
        for (key, typed) in [(b"y", 'y'), (b"N", 'N'), (b"v", 'v'), (b"1", '1'), (b"2", '2')] {
            assert_eq!(text.add(key, Keys(2)), (vec![Typed::Key(typed)], false));
        }
        assert_eq!(text.add(b"y", Lines), (vec![], false), "no question is shown");
        assert_eq!(text.add(b"y", Keys(2)), (vec![], false), "the line is not empty");
        assert_eq!(text.add(b"\n", Keys(2)), (vec![line("yy\n")], false));
        assert_eq!(text.add(b"y\n", Keys(2)), (vec![line("y\n")], false), "a pasted line");
        for other in [b"0", b"3", b"x"] {
            assert_eq!(text.add(other, Keys(2)), (vec![], false));
        }
        assert_eq!(text.add(b"\n", Keys(2)), (vec![line("03x\n")], false));
    }

    #[test]
    fn keys_of_the_first_moment_are_the_beginning_of_a_line() {
        let mut text = TypedText::default();
        assert_eq!(text.add(b"y", Settling), (vec![], false));
        assert_eq!(text.add(b"y", Keys(2)), (vec![], false), "a key that is held down votes for nothing");
        assert_eq!(text.add(b"\x7f\x7f", Keys(2)), (vec![], false));
        assert_eq!(text.add(b"n", Keys(2)), (vec![Typed::Key('n')], false));
        assert_eq!(text.add(b"y\n", Settling), (vec![line("y\n")], false), "a line is an answer at once");
    }

    #[test]
    fn the_rest_of_a_discarded_line_has_no_keys() {
        let mut text = TypedText::default();
        text.add(b"happil", Keys(2));
        text.discard();
        assert_eq!(text.add(b"y", Keys(2)), (vec![], false));
        assert_eq!(text.add(b"\n", Keys(2)), (vec![line("y\n")], false));
        assert_eq!(text.add(b"y", Keys(2)), (vec![], false), "the same question");
        assert_eq!(text.add(b"\n", Keys(2)), (vec![line("y\n")], false));
        text.discard();
        assert_eq!(text.add(b"y", Keys(2)), (vec![Typed::Key('y')], false), "another question");
    }

    #[tokio::test(start_paused = true)]
    async fn the_keys_of_a_question_count_after_a_moment() {
        let state = ReaderState::new();
        assert_eq!(state.mode(), Lines);
        let (_sender, typed) = TypedLines::of_channel();
        typed.shared.keys.store(3, Ordering::Release);
        typed.settle();
        assert_eq!(typed.shared.mode(), Settling);
        tokio::time::advance(SETTLE).await;
        assert_eq!(typed.shared.mode(), Keys(2));
    }

    #[tokio::test]
    async fn what_was_read_before_a_discard_is_not_delivered_after_it() {
        let (sender, mut typed) = TypedLines::of_channel();
        sender.send((0, line("y\n"))).await.unwrap();
        typed.discard();
        // As the reader does that waited for room in the channel.
        sender.send((0, Typed::Key('y'))).await.unwrap();
        sender.send((1, line("n\n"))).await.unwrap();
        assert_eq!(typed.next().await, Some(line("n\n")));
        drop(sender);
        assert_eq!(typed.next().await, None);
    }

    #[test]
    fn a_line_is_edited_here_while_there_are_keys() {
        let mut text = TypedText::default();
        assert_eq!(text.add("wrong\u{15}1\u{fc}\u{7f}0\n".as_bytes(), Keys(9)), (vec![line("10\n")], false));
        assert_eq!(text.add(b"x\x04", Keys(9)), (vec![], false));
        assert_eq!(text.add(b"\x08\x04", Settling), (vec![], true), "the end of the input");
        // Bytes of a pipe mean nothing else.
        assert_eq!(text.add(b"a\x7f\x04\n", Lines), (vec![line("a\u{7f}\u{4}\n")], false));
    }

    #[test]
    fn lines_come_in_any_pieces_and_the_last_one_needs_no_end() {
        let mut text = TypedText::default();
        assert_eq!(text.add(b"one\ntwo\nthr", Lines), (vec![line("one\n"), line("two\n")], false));
        assert_eq!(text.add(b"ee", Lines), (vec![], false));
        assert_eq!(text.end(), (vec![line("three")], true));
        assert_eq!(text.end(), (vec![], true));
    }

    #[test]
    fn a_line_that_is_not_utf8_costs_no_other_line() {
        let mut text = TypedText::default();
        let typed = vec![line("one\n"), Typed::InvalidLine, line("three\n")];
        assert_eq!(text.add(b"one\n\xff\nthree\n", Lines), (typed, false));
        text.add(b"\xff", Lines);
        assert_eq!(text.end(), (vec![Typed::InvalidLine], true));
    }
}
