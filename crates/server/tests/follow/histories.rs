//! Followers at random: they are cut off, fall behind and lose their servers while runs are written, and each must have seen the
//! one history there is: in order, without gap, without repetition, and nothing that was not committed yet.

use std::{
    collections::BTreeMap,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use ostler_server::Config;
use reqwest::RequestBuilder;
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection, Row};
use tokio::{
    sync::{Mutex, watch},
    task::{JoinSet, LocalSet},
};

use crate::harness::{Caller, Engine, Follow, TestServer, both_engines, eventually, id, run_body};

/// Each is a different play; a failure names its own.
const SEEDS: std::ops::Range<u64> = 0..4;
const SESSION: &str = "mine";
const RUNS: u64 = 3;
const BATCHES_PER_RUN: u64 = 30;
const RESTARTS: i64 = 3;
const FOLLOWERS_OF_THE_SESSION: u64 = 3;
const FOLLOWERS_OF_EACH_RUN: u64 = 2;
/// At a heartbeat a follower of the session checks whether the writer has finished. A heartbeat also cancels the read in
/// progress and closes its connection: at 20 ms, on a busy machine, most new connections were closed before their first reply.
const HEARTBEAT_MS: u64 = 100;
/// Between two tries while a server restarts.
const BREATH: Duration = Duration::from_millis(5);

/// Numbers that look random and are the same each time.
struct Dice(u64);

impl Dice {
    fn new(seed: u64, player: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ player.wrapping_mul(0xD1B5_4A32_D192_ED03) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// What all players share.
#[derive(Clone)]
struct Stage {
    seed: u64,
    servers: watch::Receiver<Vec<Caller>>,
    /// How many events were acknowledged so far.
    acked: Arc<AtomicI64>,
    /// How many events the session has after all writers are done.
    total: watch::Receiver<Option<usize>>,
    truth: Rc<Mutex<Truth>>,
}

impl Stage {
    fn any_server(&self, dice: &mut Dice) -> Caller {
        let servers = self.servers.borrow();
        servers[dice.below(servers.len() as u64) as usize].clone()
    }

    /// Asks some server, until one gives a whole answer.
    async fn ask(&self, dice: &mut Dice, request: impl Fn(&Caller) -> RequestBuilder) -> (u16, Value) {
        eventually("some server answers", async || {
            let response = request(&self.any_server(dice)).send().await.ok()?;
            let status = response.status().as_u16();
            let text = response.text().await.ok()?;
            // A server that stops reports it; the next try finds another, or the same one come back.
            (status < 500).then(|| (status, serde_json::from_str(&text).unwrap()))
        })
        .await
    }

    async fn post(&self, dice: &mut Dice, path: &str, body: &Value) -> (u16, Value) {
        let send = |caller: &Caller| {
            caller.request("POST", path).header("content-type", "application/json").body(body.to_string())
        };
        self.ask(dice, send).await
    }
}

/// The committed events, read from the store past the server.
struct Truth {
    connection: TruthConnection,
    /// The events read so far by their session's number. An event that was committed stays.
    committed: BTreeMap<i64, StoredEvent>,
}

enum TruthConnection {
    Sqlite(rusqlite::Connection),
    Postgres(PgConnection),
}

/// What identifies an event. A fact of the session itself has no run, and only the session's number.
#[derive(PartialEq)]
struct StoredEvent {
    run_id: Option<String>,
    seq: Option<i64>,
    event_type: String,
}

impl Truth {
    async fn open(config: &Config) -> Self {
        let connection = match &config.store.database_url {
            Some(url) => TruthConnection::Postgres(PgConnection::connect(url.expose_secret()).await.unwrap()),
            None => {
                let file = config.data_dir().unwrap().join("ostler.db");
                TruthConnection::Sqlite(rusqlite::Connection::open(file).unwrap())
            }
        };
        Self { connection, committed: BTreeMap::new() }
    }

    async fn holds(&mut self, event: &Value) -> bool {
        let session_seq = event["sessionSeq"].as_i64().unwrap();
        let run_id = event["runId"].as_str().map(str::to_owned);
        let seq = event["seq"].as_i64().filter(|_| run_id.is_some());
        let wanted = StoredEvent { run_id, seq, event_type: event["type"].as_str().unwrap().to_owned() };
        if !self.committed.contains_key(&session_seq) {
            // All later events at once. If numbers were committed out of order, this one could be an earlier one.
            let last = self.committed.last_key_value().map_or(0, |(last, _)| *last);
            self.read_after(last.min(session_seq - 1)).await;
        }
        self.committed.get(&session_seq) == Some(&wanted)
    }

    async fn read_after(&mut self, after: i64) {
        let sql = "SELECT session_seq, run_id, seq, type FROM events WHERE session_seq > $1";
        match &mut self.connection {
            TruthConnection::Sqlite(connection) => {
                let mut statement = connection.prepare_cached(sql).unwrap();
                let rows = statement.query_map([after], |row| {
                    Ok((row.get(0)?, StoredEvent { run_id: row.get(1)?, seq: row.get(2)?, event_type: row.get(3)? }))
                });
                self.committed.extend(rows.unwrap().map(Result::unwrap));
            }
            TruthConnection::Postgres(connection) => {
                let rows = sqlx::query(sql).bind(after).fetch_all(connection).await.unwrap();
                self.committed.extend(rows.iter().map(|row| {
                    (row.get(0), StoredEvent { run_id: row.get(1), seq: row.get(2), event_type: row.get(3) })
                }));
            }
        }
    }
}

/// A runner that writes one run after the other, whatever becomes of the servers.
struct Writer {
    stage: Stage,
    dice: Dice,
    run_id: String,
    epoch: i64,
    batch_no: i64,
    /// What was acknowledged: run and number, and what was written there.
    acked: BTreeMap<(String, i64), u64>,
}

impl Writer {
    async fn begin_run(&mut self, number: u64) {
        let mut body = run_body();
        body["sessionRef"] = json!({"sessionId": SESSION});
        body["idempotencyKey"] = format!("run-{number}").into();
        let (status, run) = self.stage.post(&mut self.dice, "/api/v1/runs", &body).await;
        assert!(status < 300, "{run}");
        self.run_id = id(&run, "runId");
        self.claim().await;
    }

    async fn claim(&mut self) {
        let path = format!("/api/v1/runs/{}/claim", self.run_id);
        let body = json!({"runnerId": "runner-a", "leaseMs": 60_000});
        let (status, claimed) = self.stage.post(&mut self.dice, &path, &body).await;
        assert_eq!(status, 200, "{claimed}");
        self.epoch = claimed["leaseEpoch"].as_i64().unwrap();
    }

    /// Appends these values. A batch in doubt is sent again; one whose lease went with its server, under a new lease.
    async fn append(&mut self, values: std::ops::Range<u64>) {
        let path = format!("/api/v1/runs/{}/events", self.run_id);
        let event = |n| json!({"type": "custom", "payload": {"name": "note", "value": n}});
        let events: Vec<_> = values.clone().map(event).collect();
        self.batch_no += 1;
        loop {
            let body = json!({"runnerId": "runner-a", "leaseEpoch": self.epoch, "batchNo": self.batch_no,
                "events": events});
            let (status, answer) = self.stage.post(&mut self.dice, &path, &body).await;
            if status == 409 {
                self.claim().await;
                continue;
            }
            assert_eq!(status, 200, "{answer}");
            let first = answer["firstSeq"].as_i64().unwrap();
            self.acked.extend(values.clone().zip(first..).map(|(value, seq)| ((self.run_id.clone(), seq), value)));
            self.stage.acked.fetch_add(events.len() as i64, Ordering::SeqCst);
            return;
        }
    }

    async fn cancel_run(&mut self) {
        let path = format!("/api/v1/runs/{}/cancel", self.run_id);
        let (status, answer) = self.stage.post(&mut self.dice, &path, &json!({})).await;
        assert_eq!(status, 200, "{answer}");
        // The holder of the lease writes last.
        let path = format!("/api/v1/runs/{}/status", self.run_id);
        eventually("the run is over", async || {
            let body = json!({"runnerId": "runner-a", "leaseEpoch": self.epoch, "status": "cancelled"}).to_string();
            let send = |caller: &Caller| {
                caller.request("PATCH", &path).header("content-type", "application/json").body(body.clone())
            };
            self.stage.ask(&mut self.dice, send).await;
            let read = |caller: &Caller| caller.request("GET", &format!("/api/v1/runs/{}", self.run_id));
            (self.stage.ask(&mut self.dice, read).await.1["status"] == "cancelled").then_some(())
        })
        .await;
    }
}

/// What is followed: a run until it ends, or the session until all writers are done.
#[derive(Clone)]
enum Followed {
    Run(String),
    Session,
}

/// Follows to the end and answers everything seen.
async fn follow(stage: Stage, followed: Followed, player: u64) -> (Followed, Vec<Value>) {
    let mut dice = Dice::new(stage.seed, player);
    let mut seen: Vec<Value> = vec![];
    loop {
        let caller = stage.any_server(&mut dice);
        let path = match &followed {
            Followed::Run(run_id) => format!("/api/v1/runs/{run_id}/events"),
            Followed::Session => format!("/api/v1/sessions/{SESSION}/trace"),
        };
        let request = caller.request("GET", &path).header("accept", "text/event-stream");
        let Ok(response) = request.header("last-event-id", seen.len().to_string()).send().await else {
            tokio::time::sleep(BREATH).await;
            continue;
        };
        let mut stream = match followed {
            Followed::Run(_) => Follow::new(response),
            Followed::Session => Follow::of_session(response),
        };
        if stream.status >= 500 {
            continue;
        }
        assert_eq!(stream.status, 200);
        if dice.below(3) == 0 {
            fall_behind(&stage, &mut dice).await;
        }
        let cut_after = seen.len() + 1 + dice.below(80) as usize;
        while seen.len() < cut_after {
            let Ok(Some(frame)) = stream.try_frame().await else { break };
            if frame.id.is_some() {
                let committed = stage.truth.lock().await.holds(&frame.data).await;
                assert!(committed, "seen before it was committed: {}", frame.data);
                seen.push(frame.data);
            }
            let over = match followed {
                Followed::Run(_) => seen.last().is_some_and(|event| event["type"] == "terminal_status"),
                Followed::Session => *stage.total.borrow() == Some(seen.len()),
            };
            if over {
                return (followed, seen);
            }
        }
    }
}

/// Reads nothing until a good deal more was written, or everything.
async fn fall_behind(stage: &Stage, dice: &mut Dice) {
    let until = stage.acked.load(Ordering::SeqCst) + 40 + dice.below(200) as i64;
    eventually("more is written", async || {
        (stage.acked.load(Ordering::SeqCst) >= until || stage.total.borrow().is_some()).then_some(())
    })
    .await;
}

async fn write(mut writer: Writer, readers: &mut JoinSet<(Followed, Vec<Value>)>) -> Writer {
    let mut next = 0;
    for number in 0..RUNS {
        writer.begin_run(number).await;
        for reader in 0..FOLLOWERS_OF_EACH_RUN {
            let followed = Followed::Run(writer.run_id.clone());
            readers.spawn_local(follow(writer.stage.clone(), followed, 100 + number * 10 + reader));
        }
        for _ in 0..BATCHES_PER_RUN {
            let count = 1 + writer.dice.below(25);
            writer.append(next..next + count).await;
            next += count;
        }
        writer.cancel_run().await;
    }
    writer
}

/// Restarts servers as the play goes on.
async fn restart(mut servers: Vec<TestServer>, stage: Stage, now: watch::Sender<Vec<Caller>>) -> Vec<TestServer> {
    let mut dice = Dice::new(stage.seed, 2);
    for _ in 0..RESTARTS {
        let until = stage.acked.load(Ordering::SeqCst) + 100 + dice.below(150) as i64;
        eventually("more is written", async || {
            (stage.acked.load(Ordering::SeqCst) >= until || stage.total.borrow().is_some()).then_some(())
        })
        .await;
        let which = dice.below(servers.len() as u64) as usize;
        servers[which].restart().await;
        now.send_replace(servers.iter().map(|server| (**server).clone()).collect());
    }
    servers
}

#[both_engines]
async fn every_follower_sees_the_one_history(engine: Engine) {
    for seed in SEEDS {
        println!("seed {seed}");
        LocalSet::new().run_until(play(engine, seed)).await;
    }
}

async fn play(engine: Engine, seed: u64) {
    let first = TestServer::with(engine, |setup| setup.config.limits.heartbeat_ms = HEARTBEAT_MS).await;
    let config = first.config.clone();
    let mut servers = vec![first];
    if engine == Engine::Postgres {
        servers.push(servers[0].start_another(|_| ()).await);
    }
    servers[0]
        .post("/api/v1/sessions", &json!({"tenantId": "hwlab", "sessionId": SESSION, "backendProfile": "scripted"}))
        .await
        .with_status(201);
    let (now, known) = watch::channel(servers.iter().map(|server| (**server).clone()).collect());
    let (finished, total) = watch::channel(None);
    let truth = Rc::new(Mutex::new(Truth::open(&config).await));
    let stage = Stage { seed, servers: known, acked: Arc::default(), total, truth };
    let mut readers = JoinSet::new();
    for reader in 0..FOLLOWERS_OF_THE_SESSION {
        readers.spawn_local(follow(stage.clone(), Followed::Session, 10 + reader));
    }
    let restarting = tokio::task::spawn_local(restart(servers, stage.clone(), now));
    let dice = Dice::new(seed, 1);
    let writer = Writer { stage, dice, run_id: String::new(), epoch: 0, batch_no: 0, acked: BTreeMap::new() };
    let mut writer = write(writer, &mut readers).await;

    let path = format!("/api/v1/sessions/{SESSION}/trace?limit=1000");
    let (mut whole, mut more) = (vec![], true);
    while more {
        let after = whole.len();
        let read = |caller: &Caller| caller.request("GET", &format!("{path}&afterSeq={after}"));
        let (_, page) = writer.stage.ask(&mut writer.dice, read).await;
        whole.extend(page["events"].as_array().unwrap().iter().cloned());
        more = page["hasMore"] == true;
    }
    finished.send_replace(Some(whole.len()));
    let numbers = whole.iter().map(|event| event["sessionSeq"].as_i64().unwrap());
    assert!(numbers.eq(1..=whole.len() as i64), "seed {seed}: the session's numbers have a gap");
    for ((run_id, seq), value) in &writer.acked {
        let found = whole.iter().find(|event| event["runId"] == **run_id && event["seq"] == *seq).unwrap();
        assert_eq!(found["payload"]["value"], *value, "seed {seed}: acknowledged at {seq} of {run_id}");
    }
    while let Some(read) = readers.join_next().await {
        let (followed, seen) = read.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let expected: Vec<_> = match &followed {
            Followed::Session => whole.clone(),
            Followed::Run(run_id) => whole.iter().filter(|event| event["runId"] == **run_id).cloned().collect(),
        };
        assert!(seen == expected, "seed {seed}: {} events were seen, of {}", seen.len(), expected.len());
    }
    drop(restarting.await.unwrap());
}
