//! `kill -9` of one of several servers: followers continue at another server with their last number, the runner continues
//! with its lease, and no event is missed or repeated.

use std::{
    io::BufRead,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    thread::{self, JoinHandle},
};

use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    process::{Server, eventually},
    runner::Writer,
    test_home::{Engine, TestHome},
};

/// The servers that followers try, in this order.
type Addresses = Arc<Mutex<Vec<String>>>;

/// A follower that reconnects with its last number whenever its server goes away, until the run ends.
struct Reader {
    seen: Arc<AtomicI64>,
    /// The received events, and the number of connections.
    done: JoinHandle<(Vec<Value>, usize)>,
}

impl Reader {
    fn start(addresses: &Addresses, token: &str, run_id: &str) -> Self {
        let (addresses, token, run_id) = (addresses.clone(), token.to_owned(), run_id.to_owned());
        let seen = Arc::new(AtomicI64::new(0));
        let last_seq = seen.clone();
        let done = thread::spawn(move || {
            let (mut events, mut connects): (Vec<Value>, usize) = (vec![], 0);
            while events.last().is_none_or(|event| !ends_run(event)) {
                let stream = eventually("some server answers", || {
                    let known = addresses.lock().unwrap().clone();
                    let follow = |address: &String| {
                        Http::with_token(address, Some(&token)).try_follow(&run_id, events.len() as i64).ok()
                    };
                    known.iter().find_map(follow)
                });
                connects += 1;
                read_frames(stream, &mut events, &last_seq);
            }
            (events, connects)
        });
        Self { seen, done }
    }

    fn wait_for(&self, seq: i64) {
        eventually("the follower has seen it", || (self.seen.load(Ordering::SeqCst) >= seq).then_some(()));
    }
}

fn ends_run(event: &Value) -> bool {
    event["type"] == "terminal_status" && event["commandId"].is_null()
}

/// Reads until the stream ends or breaks. An incomplete frame is dropped.
fn read_frames(mut stream: impl BufRead, events: &mut Vec<Value>, last_seq: &AtomicI64) {
    let mut data = None;
    loop {
        let mut line = String::new();
        // The last chunk of a response is empty.
        if !stream.read_line(&mut line).is_ok_and(|bytes| bytes > 0) || line == "0\r\n" {
            return;
        }
        match line.strip_prefix("data: ") {
            Some(text) => data = serde_json::from_str::<Value>(text.trim_end()).ok(),
            None if line == "\n" => {
                if let Some(event) = data.take() {
                    last_seq.store(event["seq"].as_i64().unwrap(), Ordering::SeqCst);
                    events.push(event);
                }
            }
            None => {}
        }
    }
}

fn last_acked(writer: &Writer) -> i64 {
    *writer.acked.keys().last().unwrap()
}

fn write(writer: &mut Writer, http: &mut Http, batches: usize) {
    for _ in 0..batches {
        let batch = writer.next_batch();
        assert_eq!(writer.append(http, &batch).unwrap().status, 200);
    }
}

/// Writes through a server that is killed concurrently, then sends the batch in doubt to another one.
fn write_through_a_kill(writer: &mut Writer, dying: Server, other: &mut Http, reader: &Reader) {
    let enough = last_acked(writer) + 50;
    let mut http = Http::new(&dying);
    thread::scope(|scope| {
        scope.spawn(|| writer.write_until_cut_off(&mut http));
        reader.wait_for(enough);
        dying.kill();
    });
    let batch = writer.doubt.clone().expect("it was cut off");
    assert_eq!(writer.append(other, &batch).unwrap().status, 200);
}

#[test]
fn followers_and_the_runner_continue_at_another_server() {
    let home = TestHome::on_disk(Engine::Postgres).without_runner();
    let (first, second) = (home.serve(), home.serve());
    let (token, addresses) = (first.token.clone(), Addresses::default());
    *addresses.lock().unwrap() = vec![first.address.clone(), second.address.clone()];
    let mut http = Http::new(&second);
    let mut writer = Writer::new(&mut http, "runner-a");
    writer.claim(&mut http);
    let moving = Reader::start(&addresses, &token, &writer.run_id);
    write(&mut writer, &mut http, 20);
    moving.wait_for(last_acked(&writer));

    // The follower's server dies; events written in the meantime are read from the other one.
    first.kill();
    write(&mut writer, &mut http, 20);
    moving.wait_for(last_acked(&writer));

    // The runner's server dies, with a follower of its own and one on the other server.
    let third = home.serve();
    let only_third = Arc::new(Mutex::new(vec![third.address.clone()]));
    let staying = Reader::start(&only_third, &token, &writer.run_id);
    staying.wait_for(last_acked(&writer));
    *addresses.lock().unwrap() = vec![second.address.clone(), third.address.clone()];
    let mut http = Http::new(&third);
    write_through_a_kill(&mut writer, second, &mut http, &staying);
    write(&mut writer, &mut http, 20);
    let end = json!({"runnerId": writer.runner_id, "leaseEpoch": writer.epoch, "status": "completed"});
    http.patch(&format!("/api/v1/runs/{}/status", writer.run_id), &end).good();

    writer.check(&mut http);
    let whole = http.events(&writer.run_id);
    assert_eq!(moving.done.join().unwrap(), (whole.clone(), 3));
    assert_eq!(staying.done.join().unwrap(), (whole, 1));
    third.stop();
    home.assert_verified();
}
