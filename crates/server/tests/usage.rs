//! What runs have used: a fold of the log that equals a scan of all its events, by run and by day.

use std::collections::BTreeMap;

use ostler_protocol::{
    FailureKind::*,
    Timestamp,
    kernel::usage::{day_of, day_text, nanos},
};
use serde_json::{Value, json};

use crate::{
    harness::{Caller, Engine, TestServer, both_engines, id},
    run_input::runs::{THREAD, user},
};

const DAY_MS: i64 = 86_400_000;

/// Numbers that look random, and are the same in each run of the test.
struct Dice(u64);

impl Dice {
    fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % most
    }
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Sums {
    runs: i64,
    turns: i64,
    tokens: i64,
    cost_nano_usd: i64,
    active_ms: i64,
}

impl Sums {
    fn read(group: &Value) -> Self {
        let whole = |field: &str| group[field].as_i64().unwrap_or_else(|| panic!("{field}: {group}"));
        Self {
            runs: whole("runs"),
            turns: whole("turns"),
            tokens: whole("tokens"),
            cost_nano_usd: nanos(group["costUsd"].as_f64().unwrap()),
            active_ms: whole("activeMs"),
        }
    }

    fn add(&mut self, more: &Self) {
        self.runs += more.runs;
        self.turns += more.turns;
        self.tokens += more.tokens;
        self.cost_nano_usd += more.cost_nano_usd;
        self.active_ms += more.active_ms;
    }
}

async fn report(caller: &Caller, query: &str) -> BTreeMap<Option<String>, Sums> {
    let report = caller.get(&format!("/api/v1/usage?{query}")).await.ok();
    let groups = report["groups"].as_array().unwrap();
    let groups: BTreeMap<_, _> =
        groups.iter().map(|group| (group["key"].as_str().map(str::to_owned), Sums::read(group))).collect();
    let mut total = Sums::default();
    groups.values().for_each(|sums| total.add(sums));
    assert_eq!(Sums::read(&report["total"]), total, "{report}");
    assert_eq!(report["truncated"], false);
    groups
}

fn time(value: &Value) -> Timestamp {
    value.as_str().unwrap().parse().unwrap()
}

/// All events of a run, read one by one: what it has used on each day.
async fn scan(server: &Caller, run_id: &str, taken_up: &BTreeMap<String, Timestamp>) -> BTreeMap<i64, Sums> {
    let mut days: BTreeMap<i64, Sums> = BTreeMap::new();
    let run = server.run(run_id).await;
    days.entry(day_of(time(&run["createdAt"]))).or_default().runs += 1;
    for event in server.events(run_id).await {
        let at = time(&event["createdAt"]);
        let Some(command_id) = event["commandId"].as_str() else { continue };
        let sums = match event["type"].as_str().unwrap() {
            "usage" => Sums {
                tokens: event["payload"]["totalTokens"].as_i64().unwrap_or(0),
                cost_nano_usd: nanos(event["payload"]["costUsd"].as_f64().unwrap_or(0.0)),
                ..Sums::default()
            },
            "terminal_status" => match taken_up.get(command_id) {
                Some(since) => Sums {
                    turns: 1,
                    active_ms: (at - *since).get_milliseconds() + (at - *since).get_seconds() * 1_000,
                    ..Sums::default()
                },
                None => continue,
            },
            _ => continue,
        };
        days.entry(day_of(at)).or_default().add(&sums);
    }
    days
}

/// A few runs of two tenants over several days, through these servers in turn. Returns the runs with their tenants, and when
/// each turn was taken up.
async fn play(servers: &[&TestServer], seed: u64) -> (Vec<(String, &'static str)>, BTreeMap<String, Timestamp>) {
    let (mut dice, mut runs, mut taken_up) = (Dice(seed), vec![], BTreeMap::new());
    for number in 0..6 {
        let server = servers[number % servers.len()];
        let tenant = if dice.below(3) == 0 { "unidesk" } else { "hwlab" };
        let run_id = server.create_run_with(|run| run["tenantId"] = tenant.into()).await;
        for turn in 0..1 + dice.below(3) {
            let command_id = server.turn(&run_id, "x").await;
            if dice.below(5) == 0 {
                // Never taken up, and so no turn that was worked on.
                server.cancel_command(&command_id).await;
                continue;
            }
            let mut runner = server.claim(&run_id, &format!("runner-{turn}")).await;
            taken_up.insert(command_id.clone(), time(&runner.ack(&command_id).await["ackedAt"]));
            for _ in 0..dice.below(5) {
                // The next server has not seen what this one wrote.
                runner.caller = (**servers[dice.below(servers.len() as u64) as usize]).clone();
                let cost = dice.below(1_000_000) as f64 * 1e-9;
                let used = match dice.below(3) {
                    0 => json!({"totalTokens": dice.below(5_000)}),
                    1 => json!({"inputTokens": 0, "costUsd": cost}),
                    _ => json!({"totalTokens": dice.below(5_000), "costUsd": cost}),
                };
                runner.tell(&command_id, "usage", used).await;
                runner.tell(&command_id, "custom", json!({"name": "n"})).await;
                server.clock.advance_ms(dice.below(900) as i64);
            }
            runner.end(&command_id, "completed").await;
            runner.release().await;
            server.clock.advance_ms((DAY_MS / 3) * dice.below(4) as i64);
        }
        runs.push((run_id, tenant));
    }
    (runs, taken_up)
}

#[both_engines]
async fn usage_equals_a_scan_of_all_events(engine: Engine) {
    let first = TestServer::start(engine).await;
    let second = match engine {
        Engine::Sqlite => None,
        Engine::Postgres => Some(first.start_another(|_| ()).await),
    };
    let servers: Vec<_> = [Some(&first), second.as_ref()].into_iter().flatten().collect();
    for seed in 0..3 {
        let (runs, taken_up) = play(&servers, seed).await;
        for (run_id, _) in runs {
            let mut sum = Sums::default();
            scan(&first, &run_id, &taken_up).await.values().for_each(|sums| sum.add(sums));
            let mut used = first.run(&run_id).await["usage"].clone();
            used["runs"] = 1.into();
            assert_eq!(Sums::read(&used), sum, "seed {seed}, {run_id}");
        }
    }
    let (mut by_day, mut by_tenant) = (BTreeMap::<_, Sums>::new(), BTreeMap::<_, Sums>::new());
    let mut page = first.get("/api/v1/runs?limit=1000").await.ok();
    for run in page["runs"].as_array_mut().unwrap() {
        let sql = format!(
            "SELECT command_id || ' ' || acked_at FROM commands WHERE run_id = '{}' AND acked_at IS NOT NULL",
            id(run, "runId")
        );
        let taken_up = first.store(&sql).await.into_iter().map(|row| {
            let (command_id, at) = row.split_once(' ').unwrap();
            (command_id.to_owned(), Timestamp::from_microsecond(at.parse().unwrap()).unwrap())
        });
        for (day, sums) in scan(&first, &id(run, "runId"), &taken_up.collect()).await {
            by_day.entry(day_text(day)).or_default().add(&sums);
            by_tenant.entry(Some(id(run, "tenantId"))).or_default().add(&sums);
        }
    }
    assert!(by_day.len() > 3 && by_tenant.len() == 2, "{by_day:?}");
    let last = by_day.keys().next_back().cloned().flatten().unwrap();
    let period = format!("since=2025-12-01&until={last}");
    for server in servers {
        assert_eq!(report(server, &format!("by=day&{period}")).await, by_day);
        assert_eq!(report(server, &format!("by=tenant&{period}")).await, by_tenant);
        let hwlab = report(server, &format!("by=tenant&tenantId=hwlab&{period}")).await;
        assert_eq!(
            hwlab.into_iter().collect::<Vec<_>>(),
            [by_tenant.first_key_value().unwrap()].map(|(k, v)| (k.clone(), v.clone()))
        );
        // A part of the period is the sum of its days.
        let (day, sums) = by_day.iter().nth(1).unwrap();
        let day = day.clone().unwrap();
        let only = report(server, &format!("by=profile&since={day}&until={day}")).await;
        assert_eq!(only[&Some("scripted".to_owned())], *sums);
    }
}

/// A run with one turn that used this much.
async fn used(server: &Caller, tokens: i64, cost_usd: f64) -> String {
    used_by(server, server, tokens, cost_usd).await
}

/// A run that this client creates, and the operator plays the runner of.
async fn used_by(client: &Caller, server: &Caller, tokens: i64, cost_usd: f64) -> String {
    let run_id = client.create_run().await;
    let command_id = server.turn(&run_id, "x").await;
    let runner = server.claim(&run_id, "runner").await;
    runner.tell(&command_id, "usage", json!({"totalTokens": tokens, "costUsd": cost_usd})).await;
    runner.end(&command_id, "completed").await;
    runner.release().await;
    run_id
}

#[both_engines]
async fn runs_are_sorted_by_what_they_used_and_by_when_they_were_created(engine: Engine) {
    let server = TestServer::start(engine).await;
    let mut runs = vec![];
    for (tokens, cost) in [(10, 0.3), (30, 0.1), (20, 0.1), (0, 0.0)] {
        runs.push(used(&server, tokens, cost).await);
        server.clock.advance_ms(10);
    }
    let listed = async |query: &str| -> Vec<usize> {
        let (mut all, mut cursor) = (vec![], String::new());
        loop {
            let page = server.get(&format!("/api/v1/runs?limit=1&{query}{cursor}")).await.ok();
            all.extend(
                page["runs"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|run| runs.iter().position(|known| *known == id(run, "runId")).unwrap()),
            );
            match page["nextCursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return all,
            }
        }
    };
    assert_eq!(listed("sort=created").await, [3, 2, 1, 0]);
    // Equal ones come by their ids, the latest first.
    assert_eq!(listed("sort=cost").await, [0, 2, 1, 3]);
    assert_eq!(listed("sort=tokens").await, [1, 2, 0, 3]);
    assert_eq!(listed("sort=duration").await.len(), 4);
    let second = id(&server.run(&runs[1]).await, "createdAt");
    assert_eq!(listed(&format!("createdAfter={second}")).await, [3, 2, 1]);
    assert_eq!(listed(&format!("createdAfter={second}&sort=cost&status=pending")).await, [2, 1, 3]);
    server.get("/api/v1/runs?sort=size").await.refused_by(SchemaInvalid, "run-sort");
    server.get("/api/v1/runs?createdAfter=yesterday").await.refused(SchemaInvalid);
}

#[both_engines]
async fn others_usage_is_invisible(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.token("platform", "client", &["unidesk"]);
        setup.token("ours", "client", &["hwlab"]);
    })
    .await;
    used_by(server.caller("ours"), &server, 10, 0.5).await;
    assert_eq!(report(server.caller("platform"), "by=tenant").await, BTreeMap::new());
    let refused = server.caller("platform").get("/api/v1/usage?tenantId=hwlab").await;
    refused.refused(Forbidden);
    let by_user = report(server.caller("ours"), "by=user").await;
    let [(Some(service), sums)] = &by_user.into_iter().collect::<Vec<_>>()[..] else { panic!("one user") };
    assert!(service.starts_with("service:tok_"), "{service}");
    assert_eq!((sums.runs, sums.tokens, sums.cost_nano_usd), (1, 10, 500_000_000));
    // A user sees what is theirs, in whatever dialect they have submitted it.
    let ada = user(&server, "ada", &["hwlab"]).await;
    let bob = user(&server, "bob", &["hwlab"]).await;
    let run_id = ada.create_run().await;
    assert_eq!(report(&bob, "by=user").await, BTreeMap::new());
    let mine = report(&ada, "by=user").await;
    assert_eq!(mine.values().map(|sums| sums.runs).sum::<i64>(), 1, "{mine:?}");
    assert!(mine.keys().all(|key| key.as_deref().is_some_and(|key| key.starts_with("usr_"))), "{mine:?}");
    let named = ada.get("/api/v1/usage?by=user").await.ok()["groups"][0]["name"].clone();
    assert_eq!(named, "ada", "users are shown by name");
    assert_eq!(ada.get(&format!("/api/v1/runs/{run_id}")).await.ok()["usage"]["tokens"], 0);
    server.get("/api/v1/usage?by=colour").await.refused_by(SchemaInvalid, "usage-by");
    server.get("/api/v1/usage?since=2026-02-01&until=2026-01-01").await.refused_by(SchemaInvalid, "usage-period");
    server.get("/api/v1/usage?since=yesterday").await.refused_by(SchemaInvalid, "usage-period");
}

#[both_engines]
async fn an_erased_thread_stays_counted_without_its_user(engine: Engine) {
    let server = TestServer::start(engine).await;
    let ada = user(&server, "ada", &["local"]).await;
    let task = id(&ada.say("run-1", "hello").await.with_status(202), "taskId");
    let runner = server.claim(&server.run_of_thread().await, "runner").await;
    runner.tell(&task, "usage", json!({"totalTokens": 7, "costUsd": 0.25})).await;
    let mine = report(&ada, "by=user").await;
    let [(Some(user_id), before)] = &mine.into_iter().collect::<Vec<_>>()[..] else { panic!("one user") };
    assert_eq!((before.runs, before.tokens, before.cost_nano_usd), (1, 7, 250_000_000));
    let request = ada.request("DELETE", &format!("/api/v1/agent/sessions/{THREAD}"));
    ada.send(request).await.with_status(204);
    assert_eq!(report(&ada, "by=user").await, BTreeMap::new());
    let all = report(&server, "by=user").await;
    assert!(!all.contains_key(&Some(user_id.clone())), "{all:?}");
    assert_eq!((all[&None].runs, all[&None].turns, all[&None].tokens), (1, 1, 7));
}

#[both_engines]
async fn sums_beyond_any_number_are_still_sums(engine: Engine) {
    let server = TestServer::start(engine).await;
    for _ in 0..3 {
        used(&server, i64::MAX, 1e300).await;
    }
    let report = server.get("/api/v1/usage").await.ok();
    let most = (1_i64 << 53) - 1;
    assert_eq!(report["total"]["tokens"], 3 * most);
    assert_eq!(report["total"]["costUsd"], 3.0 * (most as f64) / 1e9);
}

/// What `ostler verify` finds, in a copy of a store that is in use.
async fn differences(server: &TestServer, engine: Engine) -> Vec<String> {
    let mut config = server.config.clone();
    let copy = tempfile::tempdir().unwrap();
    if engine == Engine::Sqlite {
        for file in ["ostler.db", "ostler.db-wal"] {
            std::fs::copy(config.data_dir().unwrap().join(file), copy.path().join(file)).unwrap();
        }
        config.server.data_dir = Some(copy.path().to_owned());
    }
    let report = ostler_server::verify(&config, None).await.unwrap();
    report.broken.into_iter().map(|broken| broken.reason).collect()
}

/// What takes the store back to before the migration, and all later ones.
fn undo(engine: Engine) -> Vec<String> {
    let columns = ["labels", "created_by", "retry_of", "tokens", "cost_nano_usd", "turns", "active_ms"];
    let mut undo: Vec<String> = crate::trust::UNDO_RUN_WEBHOOKS.map(str::to_owned).into();
    undo.extend(match engine {
        Engine::Sqlite => {
            let triggers = ["run", "session"].map(|noun| {
                ["insert", "update", "delete"].map(|when| format!("DROP TRIGGER {noun}_labels_{when}")).to_vec()
            });
            let tables = ["DROP TABLE run_labels", "DROP TABLE session_labels"].map(str::to_owned);
            triggers.concat().into_iter().chain(tables).collect()
        }
        Engine::Postgres => vec![],
    });
    undo.extend(columns.map(|column| format!("ALTER TABLE runs DROP COLUMN {column}")));
    undo.push("ALTER TABLE sessions DROP COLUMN labels".into());
    undo.push("DROP TABLE usage".into());
    undo.push("DELETE FROM schema_migrations WHERE id = '0007_usage'".into());
    undo
}

#[both_engines]
async fn the_migration_counts_what_was_used_before(engine: Engine) {
    let mut server = TestServer::start(engine).await;
    play(&[&server], 7).await;
    used(&server, 5, 0.000_000_1).await;
    let queries = ["by=profile", "by=tenant", "by=agent"].map(|by| format!("{by}&since=2025-12-01&until=2027-01-01"));
    let before: Vec<_> = futures_util::future::join_all(queries.iter().map(|query| report(&server, query))).await;
    let usage = async |server: &TestServer| -> Vec<Value> {
        let page = server.get("/api/v1/runs?limit=1000").await.ok();
        page["runs"].as_array().unwrap().iter().map(|run| run["usage"].clone()).collect()
    };
    let runs = usage(&server).await;
    for statement in undo(engine) {
        server.store(&statement).await;
    }
    server.restart().await;
    let after: Vec<_> = futures_util::future::join_all(queries.iter().map(|query| report(&server, query))).await;
    assert_eq!(after, before);
    assert_eq!(usage(&server).await, runs);
    // Older events do not say who created a run or submitted a command. These do.
    server.store("UPDATE commands SET submitted_by = 'operator'").await;
    server.store("UPDATE runs SET created_by = 'operator'").await;
    server.store("UPDATE usage SET user_id = 'operator'").await;
    assert_eq!(differences(&server, engine).await, [""; 0]);
    // It goes on from there.
    used(&server, 5, 0.5).await;
    assert_eq!(
        report(&server, &queries[0]).await[&Some("scripted".to_owned())].tokens,
        before[0][&Some("scripted".to_owned())].tokens + 5
    );
}
