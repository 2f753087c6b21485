//! `kill -9` of a server under load: every acknowledged batch is stored once, in order, at its number; an unacknowledged one
//! is stored whole or not at all.

use std::thread;

use crate::fixtures::{
    http::Http,
    process::{Server, random_ms},
    runner::Writer,
    test_home::{Engine, TestHome, both_engines},
};

const ROUNDS: usize = 5;
const WRITERS: usize = 4;

#[both_engines]
fn every_acknowledged_event_survives_the_servers_death(engine: Engine) {
    let home = TestHome::on_disk(engine).without_runner();
    let mut server = home.serve();
    let mut http = Http::new(&server);
    let mut writers: Vec<_> = (0..WRITERS).map(|n| Writer::new(&mut http, &format!("runner-{n}"))).collect();
    let mut last_acked = 0;
    for _ in 0..ROUNDS {
        write_and_kill(server, &mut writers);
        server = home.serve();
        for writer in &mut writers {
            take_up(writer, &mut Http::new(&server), engine);
        }
        let acked: usize = writers.iter().map(|writer| writer.acked.len()).sum();
        assert!(acked > last_acked, "a round without a single acknowledged event shows nothing");
        last_acked = acked;
    }
    server.stop();
    home.assert_verified();
    println!("{engine:?}: {last_acked} events acknowledged over {ROUNDS} kills, none lost");
}

fn write_and_kill(server: Server, writers: &mut [Writer]) {
    thread::scope(|scope| {
        for writer in writers {
            let mut http = Http::new(&server);
            scope.spawn(move || writer.write_until_cut_off(&mut http));
        }
        thread::sleep(random_ms(100, 400));
        server.kill();
    });
}

/// After the restart: compares the store with the record, and sends the batch in doubt again.
fn take_up(writer: &mut Writer, http: &mut Http, engine: Engine) {
    let there = writer.check(http);
    let Some(batch) = writer.doubt.clone() else { return };
    let answer = writer.append(http, &batch).unwrap();
    match engine {
        // The lease outlives the process: the same batch gets the same response, or is appended now.
        Engine::Postgres => assert_eq!(answer.status, 200, "{answer:?}"),
        // The lease ended with the former process: a stored batch is acknowledged, any other needs a new claim.
        Engine::Sqlite => {
            assert_eq!(answer.status == 200, there, "{answer:?}");
            if !there {
                assert_eq!(answer.refusal(), (409, "runner-lease-conflict".into(), "lease-expired".into()));
            }
            writer.claim(http);
        }
    }
    writer.check(http);
}
