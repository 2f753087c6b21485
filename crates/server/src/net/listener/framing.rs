//! Where one request of a connection ends and the next begins, as far as the listener must know it: hyper accepts lines of a
//! head that end with a bare line feed, which a proxy in front may interpret differently, and its timer does not distinguish a
//! head that arrives slowly from an idle connection.

/// How many bytes of a head's line are stored: enough for the headers that give the length of the body.
const LINE_BYTES_MAX: usize = 128;

#[derive(Debug, Default)]
pub(super) struct Framing {
    state: FramingState,
    line: Vec<u8>,
    /// The byte before the current one, within a line.
    last: u8,
    body: BodyFraming,
    has_bare_feed: bool,
    /// The current line is longer than what is stored of it.
    is_cut: bool,
    /// Bytes of empty lines since the last request.
    blanks: usize,
    has_request: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum FramingState {
    /// Between requests.
    #[default]
    Idle,
    Head,
    /// This many bytes of the body are missing.
    Body(u64),
    ChunkSize,
    ChunkData(u64),
    ChunkEnd,
    Trailer,
    /// The length of the body is not understood here. Hyper may understand it, so where the next request begins is unknown.
    Unknown,
}

/// The length of the body, according to the head.
#[derive(Clone, Copy, Debug, Default)]
enum BodyFraming {
    #[default]
    None,
    Length(u64),
    Chunked,
    Unknown,
}

impl Framing {
    /// Whether a head has begun and not ended. Empty lines before a request begin its head, too: otherwise a peer that sends
    /// nothing else would count as idle. One empty line after a request is ignored, because old clients send it with a body.
    pub(super) fn is_in_head(&self) -> bool {
        let blanks_ignored = if self.has_request { "\r\n".len() } else { 0 };
        self.state == FramingState::Head || self.blanks > blanks_ignored
    }

    /// Whether a line of a head, or of a chunked body's frame, ended without a carriage return.
    pub(super) fn has_bare_feed(&self) -> bool {
        self.has_bare_feed
    }

    /// Whether it is unknown where the next request begins. Then no request may be served any more.
    pub(super) fn is_lost(&self) -> bool {
        self.state == FramingState::Unknown
    }

    pub(super) fn read(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let taken = match &mut self.state {
                FramingState::Unknown => return,
                FramingState::Body(left) | FramingState::ChunkData(left) => {
                    let taken = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                    *left -= taken as u64;
                    taken
                }
                _ => self.read_line(bytes),
            };
            bytes = &bytes[taken..];
            match self.state {
                FramingState::Body(0) => self.state = FramingState::Idle,
                FramingState::ChunkData(0) => self.state = FramingState::ChunkEnd,
                _ => {}
            }
        }
    }

    /// Reads up to the end of the line, and interprets it.
    fn read_line(&mut self, bytes: &[u8]) -> usize {
        if self.state == FramingState::Idle {
            // Empty lines before a request are ignored, as hyper does.
            if matches!(bytes[0], b'\r' | b'\n') {
                self.has_bare_feed |= bytes[0] == b'\n' && self.last != b'\r';
                self.last = if bytes[0] == b'\r' { b'\r' } else { 0 };
                self.blanks = self.blanks.saturating_add(1);
                return 1;
            }
            (self.state, self.body) = (FramingState::Head, BodyFraming::None);
            (self.last, self.blanks, self.has_request) = (0, 0, true);
        }
        let end = memchr::memchr(b'\n', bytes);
        let part = &bytes[..end.unwrap_or(bytes.len())];
        self.last = part.last().copied().unwrap_or(self.last);
        // Most lines arrive whole and are interpreted where they are.
        let is_whole = end.is_some() && self.line.is_empty() && part.len() <= LINE_BYTES_MAX;
        if !is_whole {
            self.keep(part);
        }
        if end.is_none() {
            return bytes.len();
        }
        self.has_bare_feed |= self.last != b'\r';
        let stored = std::mem::take(&mut self.line);
        let line = if is_whole { part } else { stored.as_slice() };
        self.last = 0;
        self.end_line(line.strip_suffix(b"\r").unwrap_or(line));
        self.is_cut = false;
        part.len() + 1
    }

    /// Stores the beginning of the line. Blanks before a header's value, of which there may be any number, are left out.
    fn keep(&mut self, part: &[u8]) {
        for &byte in part {
            let is_blank = matches!(byte, b' ' | b'\t' | b'\r');
            if self.line.len() < LINE_BYTES_MAX {
                let is_before_value = self.state == FramingState::Head && self.line.last() == Some(&b':');
                if !is_before_value || !is_blank {
                    self.line.push(byte);
                }
            } else if !is_blank {
                self.is_cut = true;
                break;
            }
        }
    }

    fn end_line(&mut self, line: &[u8]) {
        self.state = match (self.state, line) {
            (FramingState::Head, []) => match self.body {
                BodyFraming::None | BodyFraming::Length(0) => FramingState::Idle,
                BodyFraming::Length(bytes) => FramingState::Body(bytes),
                BodyFraming::Chunked => FramingState::ChunkSize,
                BodyFraming::Unknown => FramingState::Unknown,
            },
            (FramingState::Head, line) => {
                self.read_header(line);
                FramingState::Head
            }
            (FramingState::ChunkSize, line) => {
                match chunk_size(line).filter(|_| !self.is_cut || line.contains(&b';')) {
                    Some(0) => FramingState::Trailer,
                    Some(bytes) => FramingState::ChunkData(bytes),
                    None => FramingState::Unknown,
                }
            }
            (FramingState::ChunkEnd, _) => FramingState::ChunkSize,
            (FramingState::Trailer, []) => FramingState::Idle,
            (state, _) => state,
        };
    }

    fn read_header(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { return };
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"transfer-encoding") {
            self.body = BodyFraming::Chunked;
        } else if name.eq_ignore_ascii_case(b"content-length") && !matches!(self.body, BodyFraming::Chunked) {
            let bytes = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).filter(|_| !self.is_cut);
            self.body = bytes.map_or(BodyFraming::Unknown, BodyFraming::Length);
        }
    }
}

fn chunk_size(line: &[u8]) -> Option<u64> {
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii();
    u64::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = "\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n\
        POST / HTTP/1.1\r\nContent-Length: 5\r\n\r\na\nb\n\n\
        POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n3;x=y\r\n\n\n\n\r\nA\r\n0123456\n89\r\n0\r\nTrailer: x\r\n\r\n\
        GET / HTTP/1.1\r\n\r\n";

    fn read(text: &str, pieces: &[usize]) -> Framing {
        let (mut framing, mut rest) = (Framing::default(), text.as_bytes());
        for piece in pieces.iter().copied().cycle() {
            if rest.is_empty() {
                break;
            }
            let (now, later) = rest.split_at(piece.clamp(1, rest.len()));
            framing.read(now);
            rest = later;
        }
        framing
    }

    #[test]
    fn a_bare_feed_is_found_in_every_line_of_a_head() {
        for bad in [
            "GET / HTTP/1.1\nHost: a\r\n\r\n",
            "\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "\r\n\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n\nGET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n\n",
            "GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\n",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\n",
            "POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nxGET / HTTP/1.1\n",
        ] {
            assert!(read(bad, &[usize::MAX]).has_bare_feed(), "{bad:?}");
        }
    }

    #[test]
    fn a_head_is_open_from_its_first_byte_to_its_empty_line() {
        for (text, open) in [
            ("", false),
            ("\r\n", true),
            ("\r\n\r\n", true),
            ("GET / HTTP/1.1\r\n\r\n\r\n", false),
            ("GET / HTTP/1.1\r\n\r\n\r\n\r\n", true),
            ("POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nx\r\n", false),
            ("G", true),
            ("GET / HTTP/1.1\r\n", true),
            ("GET / HTTP/1.1\r\n\r\n", false),
            ("POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nx", false),
            ("POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\nxG", true),
            ("POST / HTTP/1.1\r\nContent-Length: x\r\n\r\nG\n", false),
        ] {
            assert_eq!(read(text, &[usize::MAX]).is_in_head(), open, "{text:?}");
        }
    }

    #[test]
    fn padding_does_not_hide_how_long_a_body_is() {
        let pad = " \t".repeat(LINE_BYTES_MAX);
        for header in [
            format!("Content-Length:{pad}1"),
            format!("Content-Length: 1{pad}"),
            format!("Content-Length:{pad}1{pad}"),
            format!("Transfer-Encoding:{pad}chunked"),
        ] {
            let body = if header.starts_with('C') { "x" } else { "1\r\nx\r\n0\r\n\r\n" };
            for piece in [usize::MAX, 100, 1] {
                let framing = read(&format!("POST / HTTP/1.1\r\n{header}\r\n\r\n{body}G"), &[piece]);
                assert!(framing.is_in_head() && !framing.is_lost(), "{header:?}: {framing:?}");
            }
        }
    }

    #[test]
    fn an_unsupported_length_is_detected() {
        let zeros = "0".repeat(LINE_BYTES_MAX);
        for text in [
            format!("POST / HTTP/1.1\r\nContent-Length: {zeros}1\r\n\r\n"),
            "POST / HTTP/1.1\r\nContent-Length: 1x\r\n\r\n".to_owned(),
            format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{zeros}1\r\n"),
        ] {
            assert!(read(&text, &[usize::MAX]).is_lost(), "{text:?}");
        }
        let long = format!("GET / HTTP/1.1\r\nX-Long: {zeros}\r\n\r\nPOST / HTTP/1.1\r\n");
        assert!(!read(&long, &[7]).is_lost());
        let extended = format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;x={zeros}\r\nx\r\n0\r\n\r\nG");
        assert!(read(&extended, &[7]).is_in_head());
    }

    proptest! {
        #[test]
        fn the_result_does_not_depend_on_how_the_bytes_are_split(pieces in prop::collection::vec(1_usize..40, 1..20)) {
            let framing = read(GOOD, &pieces);
            prop_assert!(!framing.has_bare_feed() && framing.state == FramingState::Idle, "{:?}", framing);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            Framing::default().read(&bytes);
        }
    }
}
