//! A client that follows an event stream while the test does something else.

use std::{
    io::{BufRead, BufReader},
    net::TcpStream,
    sync::{Arc, Mutex},
    thread,
};

use serde_json::Value;

use crate::fixtures::process::eventually;

/// Collects the JSON of an event stream in the background, until it ends.
pub(crate) struct Stream(Arc<Mutex<Vec<Value>>>, thread::JoinHandle<()>);

impl Stream {
    pub(crate) fn read(connection: BufReader<TcpStream>) -> Self {
        let received = Arc::new(Mutex::new(vec![]));
        let events = received.clone();
        let reader = thread::spawn(move || {
            for line in connection.lines().map_while(Result::ok) {
                if let Some(data) = line.strip_prefix("data: ") {
                    events.lock().unwrap().push(serde_json::from_str(data).unwrap());
                }
                // The last chunk of a response.
                if line == "0" {
                    break;
                }
            }
        });
        Self(received, reader)
    }

    /// The events that have arrived.
    pub(crate) fn so_far(&self) -> Vec<Value> {
        self.0.lock().unwrap().clone()
    }

    /// Waits for an event that fits.
    #[track_caller]
    pub(crate) fn wait(&self, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
        eventually(what, || self.so_far().into_iter().find(|event| fits(event)))
    }

    /// Everything, of a stream that the server ends.
    pub(crate) fn whole(self) -> Vec<Value> {
        self.1.join().unwrap();
        self.0.lock().unwrap().clone()
    }
}
