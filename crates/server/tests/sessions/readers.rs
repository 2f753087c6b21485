//! Readers at random: sessions run and end, readers mark them, time passes, and every default list shows what runs and what its
//! reader has not read, as a model that remembers everything says.

use std::collections::BTreeMap;

use serde_json::json;

use super::{join, make, read, walk};
use crate::harness::{Engine, TestServer, both_engines};

const READERS: [&str; 2] = ["ann", "bob"];
const STEPS: usize = 120;

#[derive(Default)]
struct Known {
    version: i64,
    /// The run and the turn at work in it.
    active: Option<(String, String)>,
    read: BTreeMap<&'static str, i64>,
}

#[both_engines]
async fn a_default_list_equals_that_of_the_model(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut sessions: Vec<Known> = vec![];
    let mut dice = 0x2545_F491_4F6C_DD1D_u64;
    let mut below = |bound: usize| {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        (dice % bound as u64) as usize
    };
    for step in 0..STEPS {
        let (act, which, reader) = (below(8), below(sessions.len().max(1)), READERS[below(2)]);
        let name = format!("s{which}");
        match (act, sessions.get_mut(which)) {
            (0 | 1, _) | (_, None) => {
                make(&server, &format!("s{}", sessions.len())).await;
                sessions.push(Known::default());
            }
            (2..=4, Some(known)) => match known.active.take() {
                None => {
                    let run_id = join(&server, &name).await;
                    known.active = Some((run_id.clone(), server.turn(&run_id, "hi").await));
                }
                Some((run_id, _)) => {
                    server.cancel_run(&run_id).await;
                    known.version += 2;
                }
            },
            (_, Some(known)) => {
                let version = known.version - (below(3) == 0 && known.version > 0) as i64;
                read(&server, &name, json!({"readerId": reader, "version": version})).await.with_status(200);
                let mark = known.read.entry(reader).or_default();
                *mark = (*mark).max(version);
            }
        }
        // Sometimes everything that ended is old enough to be settled, sometimes nothing is.
        server.clock.advance_ms([1, 700, 61_000][below(3)]);
        for reader in READERS {
            let shown = |known: &Known| {
                known.active.is_some() || known.version > known.read.get(reader).copied().unwrap_or_default()
            };
            let expected: Vec<_> =
                (0..sessions.len()).rev().filter(|n| shown(&sessions[*n])).map(|n| format!("s{n}")).collect();
            let listed = walk(&server, 1 + below(7), &format!("readerId={reader}")).await;
            assert_eq!(listed, expected, "step {step}, {reader}");
        }
    }
    assert!(sessions.len() > 20 && sessions.iter().any(|known| known.version > 2), "the play was worth watching");
}
