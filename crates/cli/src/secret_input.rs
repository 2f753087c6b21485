//! A secret that a person types: it is not shown, and however the typing ends, the terminal is as it was before. While it is
//! asked for no key sends a signal, so that Ctrl-C cannot leave a terminal behind that shows nothing.

use std::io::{self, BufRead};

use ostler_protocol::{Failure, FailureKind};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use secrecy::SecretString;

use crate::output;

const INTERRUPT: u8 = 0x03;
const END: u8 = 0x04;
const BACKSPACE: [u8; 2] = [0x08, 0x7f];
const ERASE_LINE: u8 = 0x15;

pub fn ask(question: &str, bytes_max: usize) -> Result<SecretString, Failure> {
    let _silent = Silent::start(question).map_err(Failure::internal)?;
    let typed = read(io::stdin().lock(), bytes_max).map_err(Failure::internal)?;
    typed.ok_or_else(|| Failure::new(FailureKind::Cancelled, "nothing was changed"))
}

struct Silent {
    before: Termios,
}

impl Silent {
    fn start(question: &str) -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        silent.special_codes[SpecialCodeIndex::VMIN] = 1;
        silent.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(io::stdin(), OptionalActions::Flush, &silent)?;
        output::words(question);
        Ok(Self { before })
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.before);
        output::words("\n");
    }
}

/// A line, with the few keys for mending it that a terminal would have given. `None`: they left.
fn read(from: impl BufRead, bytes_max: usize) -> io::Result<Option<SecretString>> {
    let mut bytes = vec![];
    for byte in from.bytes() {
        match byte? {
            INTERRUPT => return Ok(None),
            b'\r' | b'\n' | END => break,
            ERASE_LINE => bytes.clear(),
            byte if BACKSPACE.contains(&byte) => {
                // A letter may be several bytes.
                while bytes.pop().is_some_and(|byte: u8| byte & 0xc0 == 0x80) {}
            }
            byte if bytes.len() <= bytes_max => bytes.push(byte),
            _ => {}
        }
    }
    Ok(Some(String::from_utf8(bytes).map_err(io::Error::other)?.into()))
}

#[cfg(test)]
mod tests {
    use secrecy::ExposeSecret;

    use super::*;

    fn typed(keys: &str) -> Option<String> {
        read(keys.as_bytes(), 8).unwrap().map(|typed| typed.expose_secret().to_owned())
    }

    #[test]
    fn a_line_can_be_mended_and_left() {
        assert_eq!(typed("sk-1\nmore").as_deref(), Some("sk-1"));
        assert_eq!(typed("wrong\x15sk-ü\x7f2\r").as_deref(), Some("sk-2"));
        assert_eq!(typed("\x7f\x08sk\x04").as_deref(), Some("sk"));
        assert_eq!(typed("sk-\x03\n"), None);
        assert_eq!(
            typed("0123456789\n").map(|typed| typed.len()),
            Some(9),
            "one more than fits is enough to refuse it"
        );
    }
}
