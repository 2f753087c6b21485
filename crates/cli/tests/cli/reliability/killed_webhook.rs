//! `kill -9` of a server that reports runs to webhooks: the receiver has the end of every run at least once, and under one
//! delivery id.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use crate::fixtures::{
    http::Http,
    process::{Server, eventually, random_ms},
    runner::run_request,
    test_home::{Engine, TestHome, both_engines},
    webhook_receiver::WebhookReceiver,
};

const KILLS: usize = 6;
const AGENTS: usize = 4;
/// A delivery is under way for at least this long, so that most kills interrupt some.
const RESPONSE_DELAY: Duration = Duration::from_millis(10);

/// A client that creates runs of its agent, and ends them.
struct Client {
    agent_id: String,
    /// Every run that the server acknowledged. At the end all of them have ended.
    runs: BTreeSet<String>,
    /// The run whose end was requested without a response.
    doubt: Option<String>,
}

impl Client {
    fn new(http: &mut Http, hook: &str, name: &str) -> Self {
        let agent = http.post("/agents", &json!({"name": name})).good();
        let agent_id = agent["id"].as_str().unwrap().to_owned();
        let body = json!({"url": hook}).to_string();
        http.send("PUT", &format!("/agents/{agent_id}/webhook"), &[], &body).unwrap().good();
        Self { agent_id, runs: BTreeSet::new(), doubt: None }
    }

    /// Creates and ends runs until the server is gone. Counts those whose end was acknowledged.
    fn end_runs_until_cut_off(&mut self, http: &mut Http, ended: &AtomicUsize) {
        let mut body = run_request();
        body["agentId"] = self.agent_id.as_str().into();
        let body = body.to_string();
        while let Ok(created) = http.send("POST", "/api/v1/runs", &[], &body) {
            let run_id = created.good()["runId"].as_str().unwrap().to_owned();
            self.runs.insert(run_id.clone());
            match http.send("POST", &cancel_path(&run_id), &[], "{}") {
                Ok(cancelled) => {
                    cancelled.good();
                    ended.fetch_add(1, Ordering::SeqCst);
                }
                Err(_) => {
                    self.doubt = Some(run_id);
                    return;
                }
            }
        }
    }

    /// Ends the run in doubt, which may have ended.
    fn take_up(&mut self, http: &mut Http) {
        if let Some(run_id) = self.doubt.take() {
            http.post(&cancel_path(&run_id), &json!({})).good();
        }
    }

    /// All deliveries of the agent's webhook, as the server lists them.
    fn deliveries(&self, http: &mut Http) -> Vec<Value> {
        let (mut deliveries, mut cursor) = (vec![], String::new());
        loop {
            let path = format!("/agents/{}/webhook/deliveries?limit=100{cursor}", self.agent_id);
            let page = http.get(&path).good();
            deliveries.extend(page["deliveries"].as_array().unwrap().iter().cloned());
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return deliveries,
            }
        }
    }
}

fn cancel_path(run_id: &str) -> String {
    format!("/api/v1/runs/{run_id}/cancel")
}

#[both_engines]
fn the_end_of_every_run_reaches_the_webhook_under_one_id_however_often_the_server_dies(engine: Engine) {
    let mut home = TestHome::on_disk(engine).without_runner();
    home.set("OSTLER_WEBHOOKS__ALLOW_LOOPBACK", "true");
    home.set("OSTLER_WEBHOOKS__POLL_MS", "10");
    let hook = WebhookReceiver::start(RESPONSE_DELAY);
    let mut server = home.serve();
    let mut http = Http::new(&server);
    let mut clients: Vec<_> = (0..AGENTS).map(|n| Client::new(&mut http, &hook.url, &format!("agent-{n}"))).collect();
    for _ in 0..KILLS {
        end_runs_and_kill(server, &mut clients);
        // The claims of the dead server expire at once instead of in half a minute.
        home.execute("UPDATE webhook_deliveries SET due_at = 0 WHERE status = 'pending' AND owner IS NOT NULL");
        server = home.serve();
        for client in &mut clients {
            client.take_up(&mut Http::new(&server));
        }
    }
    let runs: BTreeSet<_> = clients.iter().flat_map(|client| client.runs.iter().cloned()).collect();
    eventually(&format!("the receiver has the ends of {} runs", runs.len()), || {
        let reported = hook.received().iter().map(|delivery| delivery.run_id().to_owned()).collect::<BTreeSet<_>>();
        (reported == runs).then_some(())
    });
    let mut http = Http::new(&server);
    for client in &clients {
        check_stored(client, &mut http);
    }
    let received = hook.received();
    let mut ids: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for delivery in &received {
        assert_eq!(delivery.body["type"], "run.ended", "{delivery:?}");
        assert_eq!(delivery.body["payload"]["state"], "cancelled", "{delivery:?}");
        ids.entry(delivery.run_id()).or_default().insert(&delivery.delivery_id);
    }
    let several: Vec<_> = ids.iter().filter(|(_, ids)| ids.len() != 1).collect();
    assert!(several.is_empty(), "runs with several delivery ids: {several:#?}");
    server.stop();
    home.assert_verified();
    let repeated = received.len() - runs.len();
    println!("{engine:?}: {} runs ended over {KILLS} kills, {repeated} deliveries repeated", runs.len());
}

fn end_runs_and_kill(server: Server, clients: &mut [Client]) {
    let ended = AtomicUsize::new(0);
    thread::scope(|scope| {
        for client in clients {
            let (mut http, ended) = (Http::new(&server), &ended);
            scope.spawn(move || client.end_runs_until_cut_off(&mut http, ended));
        }
        eventually("each client has ended a run", || (ended.load(Ordering::SeqCst) >= AGENTS).then_some(()));
        thread::sleep(random_ms(0, 200));
        server.kill();
    });
}

/// Waits until nothing is pending. Then there is one delivery for each run, and it was delivered.
fn check_stored(client: &Client, http: &mut Http) {
    let deliveries = eventually("nothing is pending", || {
        let deliveries = client.deliveries(http);
        deliveries.iter().all(|delivery| delivery["status"] != "pending").then_some(deliveries)
    });
    let delivered = |delivery: &Value| {
        assert_eq!(delivery["status"], "delivered", "{delivery}");
        delivery["body"]["payload"]["run_id"].as_str().unwrap().to_owned()
    };
    let mut described: Vec<_> = deliveries.iter().map(delivered).collect();
    described.sort();
    assert!(described.iter().eq(&client.runs), "{described:#?} of {:#?}", client.runs);
}
