//! Lines that a person types, or that a program writes to stdin.

use tokio::sync::mpsc;

/// Lines that were typed and not read yet.
const LINES_WAITING_MAX: usize = 16;

pub(crate) struct TypedLines(mpsc::Receiver<String>);

impl TypedLines {
    /// Reads lines from stdin in a thread of its own: a read that waits for a person cannot be cancelled, and must not keep
    /// the program from ending.
    pub(crate) fn stdin() -> Self {
        let (sender, receiver) = mpsc::channel(LINES_WAITING_MAX);
        std::thread::spawn(move || {
            loop {
                let mut line = String::new();
                match std::io::stdin().read_line(&mut line) {
                    Ok(1..) if sender.blocking_send(line).is_ok() => {}
                    _ => return,
                }
            }
        });
        Self(receiver)
    }

    /// The next line, with its line end. `None` if the input has ended.
    pub(crate) async fn next(&mut self) -> Option<String> {
        self.0.recv().await
    }

    /// Discards what was typed so far: a line that was typed before a question is no answer to it.
    pub(crate) fn discard(&mut self) {
        let _ = rustix::termios::tcflush(std::io::stdin(), rustix::termios::QueueSelector::IFlush);
        while self.0.try_recv().is_ok() {}
    }
}
