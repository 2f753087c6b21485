//! The program at a pseudo-terminal, as a person sees it: what it writes goes through a terminal's own parser, and the
//! screen that comes out is what is looked at.

use std::{
    io::{Read, Write},
    num::NonZeroU16,
    sync::{Arc, Mutex},
    thread,
};

use pty_process::blocking::Pty;

use crate::{
    home::Home,
    process::{Guarded, Server, eventually},
};

const LINES: NonZeroU16 = NonZeroU16::new(40).unwrap();
const COLUMNS: NonZeroU16 = NonZeroU16::new(200).unwrap();

pub const CTRL_C: &str = "\x03";

pub struct Terminal {
    pty: Arc<Pty>,
    process: Guarded,
    seen: Arc<Mutex<Seen>>,
    reader: Option<thread::JoinHandle<()>>,
}

struct Seen {
    parser: vt100::Parser,
    raw: Vec<u8>,
}

/// How a command ended, and what was left on the screen.
pub struct Ended {
    pub code: i32,
    pub screen: String,
    /// Everything that was ever written, escapes and all.
    pub raw: String,
}

impl Terminal {
    /// Starts a command on a terminal of its own.
    pub fn start(home: &Home, server: &Server, args: &[&str], environment: &[(&str, &str)]) -> Self {
        Self::start_at(COLUMNS, home, server, args, environment)
    }

    /// The same on a terminal of another width.
    pub fn start_at(
        columns: NonZeroU16,
        home: &Home,
        server: &Server,
        args: &[&str],
        environment: &[(&str, &str)],
    ) -> Self {
        let (pty, pts) = pty_process::blocking::open().unwrap();
        pty.resize(pty_process::Size::new(LINES.get(), columns.get())).unwrap();
        let mut command = pty_process::blocking::Command::new(env!("CARGO_BIN_EXE_ostler"))
            .env_clear()
            .args(args)
            .env("TERM", "xterm-256color")
            .env("OSTLER_SERVER", server.url())
            .env("OSTLER_DATA_DIR", &home.data_dir);
        for (name, value) in environment {
            command = command.env(name, value);
        }
        let process = Guarded(command.spawn(pts).unwrap());
        let seen = Arc::new(Mutex::new(Seen { parser: vt100::Parser::new(LINES, columns, 0), raw: vec![] }));
        let pty = Arc::new(pty);
        let reader = thread::spawn({
            let (pty, seen) = (pty.clone(), seen.clone());
            move || read(&pty, &seen)
        });
        Self { pty, process, seen, reader: Some(reader) }
    }

    pub fn screen(&self) -> String {
        let contents = self.seen.lock().unwrap().parser.screen().contents();
        contents.lines().map(|line| format!("{}\n", line.trim_end())).collect()
    }

    /// Waits until the screen shows this text.
    #[track_caller]
    pub fn shows(&self, text: &str) -> String {
        let mut last = String::new();
        let ask = || {
            last = self.screen();
            last.contains(text).then(|| last.clone())
        };
        let shown = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| eventually(text, ask)));
        shown.unwrap_or_else(|_| panic!("the screen never showed {text:?}; it shows:\n{}", self.screen()))
    }

    /// Whether what is typed is shown.
    pub fn echoes(&self) -> bool {
        rustix::termios::tcgetattr(&*self.pty).unwrap().local_modes.contains(rustix::termios::LocalModes::ECHO)
    }

    /// Types, as a person would.
    pub fn types(&self, text: &str) {
        (&*self.pty).write_all(text.as_bytes()).unwrap();
    }

    pub fn ends(mut self) -> Ended {
        let status = self.process.wait();
        self.reader.take().unwrap().join().unwrap();
        let raw = String::from_utf8_lossy(&self.seen.lock().unwrap().raw).into_owned();
        Ended { code: status.code().unwrap(), screen: self.screen(), raw }
    }
}

/// Until the terminal is closed, which on Linux is an error of its reader.
fn read(pty: &Pty, seen: &Mutex<Seen>) {
    let mut pty = pty;
    let mut piece = [0; 4096];
    while let Ok(length @ 1..) = pty.read(&mut piece) {
        let mut seen = seen.lock().unwrap();
        seen.parser.process(&piece[..length]);
        seen.raw.extend_from_slice(&piece[..length]);
    }
}
