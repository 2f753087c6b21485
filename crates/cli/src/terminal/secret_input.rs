//! Reads a secret that a person types. It is not echoed, and the terminal is always restored. While it is typed no key sends
//! a signal, so that Ctrl-C cannot leave a terminal behind that does not echo.

use std::io::{self, BufRead};

use ostler_protocol::{Failure, FailureKind};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use secrecy::SecretString;

use crate::terminal::output;

const INTERRUPT: u8 = 0x03;
const END: u8 = 0x04;
const BACKSPACE: [u8; 2] = [0x08, 0x7f];
const ERASE_LINE: u8 = 0x15;

pub(crate) fn ask(question: &str, bytes_max: usize) -> Result<SecretString, Failure> {
    let _echo_off = EchoOff::start(question).map_err(Failure::internal)?;
    let typed = read(io::stdin().lock(), bytes_max).map_err(Failure::internal)?;
    typed.ok_or_else(|| Failure::new(FailureKind::Cancelled, "nothing was changed"))
}

struct EchoOff {
    before: Termios,
}

impl EchoOff {
    fn start(question: &str) -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut settings = before.clone();
        settings.local_modes.remove(LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG);
        settings.special_codes[SpecialCodeIndex::VMIN] = 1;
        settings.special_codes[SpecialCodeIndex::VTIME] = 0;
        tcsetattr(io::stdin(), OptionalActions::Flush, &settings)?;
        output::message(question);
        Ok(Self { before })
    }
}

impl Drop for EchoOff {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.before);
        output::message("\n");
    }
}

/// Reads a line, with the editing keys that a terminal would provide. `None` if it was cancelled.
fn read(from: impl BufRead, bytes_max: usize) -> io::Result<Option<SecretString>> {
    let mut bytes = vec![];
    for byte in from.bytes() {
        match byte? {
            INTERRUPT => return Ok(None),
            b'\r' | b'\n' | END => break,
            ERASE_LINE => bytes.clear(),
            byte if BACKSPACE.contains(&byte) => {
                // A character may be several bytes.
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
    fn a_line_can_be_edited_and_cancelled() {
        assert_eq!(typed("sk-1\nmore").as_deref(), Some("sk-1"));
        assert_eq!(typed("wrong\x15sk-ü\x7f2\r").as_deref(), Some("sk-2"));
        assert_eq!(typed("\x7f\x08sk\x04").as_deref(), Some("sk"));
        assert_eq!(typed("sk-\x03\n"), None);
        assert_eq!(
            typed("0123456789\n").map(|typed| typed.len()),
            Some(9),
            "one byte more than the limit is enough to reject it"
        );
    }
}
