//! Webhooks against receivers that behave well, and against those that do not: what comes once, what comes again and when,
//! and what never leaves this server.

mod restarts;
pub(crate) mod runs;
mod several_servers;

use ostler_client::trust::receiver::{DeliveryError, Receiver};
use ostler_protocol::{
    FailureKind::*,
    trust::webhooks::{
        ATTEMPT_AFTER_S, CONSENT_DELIVERIES_WAITING_MAX, ENDED_DELIVERIES_MAX, JITTER_PERCENT,
        RELATION_DELIVERIES_WAITING_MAX,
    },
};
use ostler_server::clock::Clock;
use ostler_trust::config::WebhooksSection;
use serde_json::{Value, json};

use crate::{
    harness::{Behaviour, Engine, HookReceiver, Setup, Socket, TestServer, both_engines, eventually, id},
    trust::{
        agents::sample_manifest,
        sockets::{new_agent, user},
    },
};

/// The clock does not move, so an attempt that a busy machine lets time out is not repeated: the timeout is long.
fn quick(setup: &mut Setup) {
    setup.config.change(|webhooks: &mut WebhooksSection| webhooks.allow_loopback = true);
    setup.config.change(|webhooks: &mut WebhooksSection| webhooks.poll_ms = 10);
    setup.config.change(|webhooks: &mut WebhooksSection| webhooks.timeout_ms = 30_000);
    setup.config.secrets.key = Some("ab".repeat(32).into());
}

async fn server(engine: Engine) -> TestServer {
    TestServer::with(engine, quick).await
}

/// A server that waits this long for a receiver.
async fn waiting(engine: Engine, timeout_ms: u64) -> TestServer {
    let choose = |setup: &mut Setup| {
        quick(setup);
        setup.config.change(|webhooks: &mut WebhooksSection| webhooks.timeout_ms = timeout_ms);
    };
    TestServer::with(engine, choose).await
}

async fn impatient(engine: Engine) -> TestServer {
    waiting(engine, 2_000).await
}

fn path(agent: &str, rest: &str) -> String {
    format!("/agents/{agent}/webhook{rest}")
}

/// An agent with a webhook, and its secret.
async fn hooked(server: &TestServer, url: &str) -> (String, String) {
    let agent = new_agent(server).await;
    let secret = set(server, &agent, url).await;
    (agent, secret)
}

/// Sets the agent's webhook; the secret.
async fn set(server: &TestServer, agent: &str, url: &str) -> String {
    id(&server.call("PUT", &path(agent, ""), &json!({"url": url})).await.with_status(200), "secret")
}

/// Requests a test delivery. Returns its id.
async fn tell(server: &TestServer, agent: &str) -> String {
    id(&server.send(server.request("POST", &path(agent, "/test"))).await.with_status(202), "delivery_id")
}

async fn delivery(server: &TestServer, agent: &str, delivery: &str) -> Value {
    server.get(&path(agent, &format!("/deliveries/{delivery}"))).await.with_status(200)
}

/// Waits until so many attempts have ended; the delivery then.
async fn attempted(server: &TestServer, agent: &str, id: &str, attempts: i64) -> Value {
    eventually("an attempt ends", async || {
        // No server is sending it, and none was while it was read.
        let found = delivery(server, agent, id).await;
        let is_free = is_free(server, id).await;
        (found["attempts"] == attempts && is_free && delivery(server, agent, id).await == found).then_some(found)
    })
    .await
}

fn now(server: &TestServer) -> jiff::Timestamp {
    server.clock.now()
}

/// No server is sending it.
async fn is_free(server: &TestServer, id: &str) -> bool {
    let sql = format!("SELECT delivery_id FROM webhook_deliveries WHERE delivery_id = '{id}' AND owner IS NULL");
    !server.store(&sql).await.is_empty()
}

/// Past the latest moment at which the attempt after so many can be due.
fn pass(server: &TestServer, attempts: usize) {
    server.clock.advance_ms(ATTEMPT_AFTER_S[attempts] * 10 * (100 + JITTER_PERCENT) + 1);
}

fn failing() -> Behaviour {
    Behaviour::Answer(500, String::new())
}

#[both_engines]
async fn a_receiver_accepts_each_delivery_once(engine: Engine) {
    let (server, hook) = (server(engine).await, HookReceiver::start([]).await);
    let (agent, secret) = hooked(&server, &hook.url()).await;
    let told = tell(&server, &agent).await;
    let request = hook.received(1).await.remove(0);
    assert_eq!(request.path, "/hook");
    assert_eq!(request.headers["content-type"], "application/json");
    let receiver = Receiver::new(&secret).unwrap();
    let received = receiver.verify(&request.headers, &request.body, now(&server)).unwrap();
    assert_eq!((received.delivery_id.to_string(), received.agent_id.to_string()), (told.clone(), agent.clone()));
    let again = receiver.verify(&request.headers, &request.body, now(&server));
    assert_eq!(again, Err(DeliveryError::Repeated));
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    let created_at = &body["metadata"]["created_at"];
    assert_eq!(
        body,
        json!({"type": "webhook.test", "version": "v1", "payload": {}, "metadata": {"created_at": created_at}})
    );
    let shown = attempted(&server, &agent, &told, 1).await;
    assert_eq!((&shown["status"], &shown["last_status"]), (&json!("delivered"), &json!(200)));
    assert_eq!(shown["body"], body);
    server.clock.advance_ms(301_000);
    let stale = Receiver::new(&secret).unwrap().verify(&request.headers, &request.body, now(&server));
    assert_eq!(stale, Err(DeliveryError::Stale));
    let mut changed = request.body.clone();
    changed.push(b' ');
    assert_eq!(receiver.verify(&request.headers, &changed, now(&server)), Err(DeliveryError::Signature));
}

#[both_engines]
async fn a_delivery_without_a_response_is_tried_again_under_the_same_id(engine: Engine) {
    let (server, hook) = (impatient(engine).await, HookReceiver::start([Behaviour::Silence]).await);
    let (agent, secret) = hooked(&server, &hook.url()).await;
    let told = tell(&server, &agent).await;
    let waiting = attempted(&server, &agent, &told, 1).await;
    assert_eq!(waiting["last_error"], "no answer within 2000 ms");
    pass(&server, 1);
    let requests = hook.received(2).await;
    let header = |at: usize, name: &str| requests[at].headers[name].to_str().unwrap().to_owned();
    assert_eq!(header(0, "x-hashee-delivery-id"), header(1, "x-hashee-delivery-id"));
    assert_ne!(header(0, "x-hashee-timestamp"), header(1, "x-hashee-timestamp"));
    let receiver = Receiver::new(&secret).unwrap();
    assert!(receiver.verify(&requests[1].headers, &requests[1].body, now(&server)).is_ok());
    assert_eq!(attempted(&server, &agent, &told, 2).await["status"], "delivered");
}

#[both_engines]
async fn a_redirect_is_not_followed(engine: Engine) {
    let target = HookReceiver::start([]).await;
    for status in [301, 302, 307, 308] {
        let server = server(engine).await;
        let hook = HookReceiver::start([Behaviour::Answer(status, format!("location: {}\r\n", target.url()))]).await;
        let (agent, _) = hooked(&server, &hook.url()).await;
        let told = tell(&server, &agent).await;
        let waiting = attempted(&server, &agent, &told, 1).await;
        assert_eq!((&waiting["status"], &waiting["last_status"]), (&json!("pending"), &json!(status)));
    }
    assert_eq!(target.connections(), 0);
}

#[both_engines]
async fn a_receiver_that_is_gone_gets_no_deliveries_until_it_is_set_again(engine: Engine) {
    let (server, hook) = (server(engine).await, HookReceiver::start([Behaviour::Answer(410, String::new())]).await);
    let (mut owner, _) = Socket::introduce(&server, "/ws/human", &server).await;
    let (agent, _) = hooked(&server, &hook.url()).await;
    let told = tell(&server, &agent).await;
    let dead = attempted(&server, &agent, &told, 1).await;
    assert_eq!((&dead["status"], &dead["last_status"]), (&json!("dead"), &json!(410)));
    let frame = owner.hear().await;
    assert_eq!((&frame["type"], &frame["payload"]["agent_id"]), (&json!("webhook.disabled"), &json!(agent)));
    assert!(server.get(&path(&agent, "")).await.ok()["disabled_at"].is_string());
    let refused = server.send(server.request("POST", &path(&agent, "/test"))).await;
    refused.refused_by(StateConflict, "webhook-disabled");
    let replay = || server.send(server.request("POST", &path(&agent, &format!("/deliveries/{told}/replay"))));
    replay().await.refused_by(StateConflict, "webhook-disabled");
    // A user who was not connected is notified on connect.
    let (mut later, _) = Socket::introduce(&server, "/ws/human", &server).await;
    assert_eq!(later.hear().await, frame);
    set(&server, &agent, &hook.url()).await;
    assert_eq!(replay().await.with_status(202)["status"], "pending");
    let requests = hook.received(2).await;
    assert_eq!(requests[0].headers["x-hashee-delivery-id"], requests[1].headers["x-hashee-delivery-id"]);
    assert_eq!(attempted(&server, &agent, &told, 1).await["status"], "delivered");
}

#[both_engines]
async fn what_happens_while_a_webhook_is_disabled_can_be_replayed(engine: Engine) {
    let (server, hook) = (server(engine).await, HookReceiver::start([Behaviour::Answer(410, String::new())]).await);
    let (agent, _) = hooked(&server, &hook.url()).await;
    let told = tell(&server, &agent).await;
    attempted(&server, &agent, &told, 1).await;
    let body = json!({"capability_manifest": sample_manifest()});
    server.clock.advance_ms(1);
    server.patch(&format!("/agents/{agent}"), &body).await.with_status(200);
    server.clock.advance_ms(1);
    server.post("/h2a/relations", &json!({"agent_id": agent, "granted_scopes": []})).await.with_status(201);
    let listed = server.get(&path(&agent, "/deliveries?status=dead")).await.ok();
    let lost: Vec<_> = listed["deliveries"].as_array().unwrap().iter().take(2).cloned().collect();
    let said: Vec<_> = lost.iter().map(|one| (&one["type"], &one["last_error"], &one["attempts"])).collect();
    let reason = json!("the webhook is disabled");
    let expected = ["relation.established", "h2a.reauth_required"].map(|event_type| json!(event_type));
    assert_eq!(said, [(&expected[0], &reason, &json!(0)), (&expected[1], &reason, &json!(0))]);
    set(&server, &agent, &hook.url()).await;
    for (count, one) in lost.iter().rev().enumerate() {
        let replay = path(&agent, &format!("/deliveries/{}/replay", one["delivery_id"].as_str().unwrap()));
        server.send(server.request("POST", &replay)).await.with_status(202);
        let request = hook.received(count + 2).await.pop().unwrap();
        let received: Value = serde_json::from_slice(&request.body).unwrap();
        assert_eq!(received["type"], one["type"]);
    }
}

#[both_engines]
async fn an_old_receiver_that_is_gone_does_not_disable_the_new_one(engine: Engine) {
    let server = server(engine).await;
    let (old, new) = (HookReceiver::start([Behaviour::Held(410)]).await, HookReceiver::start([]).await);
    let (agent, _) = hooked(&server, &old.url()).await;
    let told = tell(&server, &agent).await;
    old.received(1).await;
    set(&server, &agent, &new.url()).await;
    old.go_on();
    let request = &new.received(1).await[0];
    assert_eq!(request.headers["x-hashee-delivery-id"], told.as_str(), "what waited goes to the new one");
    assert_eq!(attempted(&server, &agent, &told, 2).await["status"], "delivered");
    assert_eq!(server.get(&path(&agent, "")).await.ok()["disabled_at"], Value::Null);
}

#[both_engines]
async fn no_more_is_replayed_than_may_wait(engine: Engine) {
    let (server, hook) = (server(engine).await, HookReceiver::start([Behaviour::Answer(410, String::new())]).await);
    let (agent, _) = hooked(&server, &hook.url()).await;
    let told = tell(&server, &agent).await;
    attempted(&server, &agent, &told, 1).await;
    set(&server, &agent, &hook.url()).await;
    fill(&server, &agent, CONSENT_DELIVERIES_WAITING_MAX).await;
    let replay = || server.send(server.request("POST", &path(&agent, &format!("/deliveries/{told}/replay"))));
    replay().await.refused_by(RateLimited, "deliveries-waiting");
    server.store("DELETE FROM webhook_deliveries WHERE delivery_id = 'waits-1'").await;
    replay().await.with_status(202);
}

#[both_engines]
async fn deliveries_that_any_user_can_cause_leave_room_for_a_re_consent(engine: Engine) {
    let (server, hook) = (server(engine).await, HookReceiver::start([]).await);
    let (agent, _) = hooked(&server, &hook.url()).await;
    fill(&server, &agent, RELATION_DELIVERIES_WAITING_MAX).await;
    let other = tell(&server, &agent).await;
    assert_eq!(delivery(&server, &agent, &other).await["status"], "dead");
    let body = json!({"capability_manifest": sample_manifest()});
    server.patch(&format!("/agents/{agent}"), &body).await.with_status(200);
    let received = hook.received(1).await;
    let received: Value = serde_json::from_slice(&received[0].body).unwrap();
    assert_eq!(received["type"], "h2a.reauth_required");
}

#[both_engines]
async fn deliveries_that_any_user_can_cause_do_not_pile_up(engine: Engine) {
    let choose = |setup: &mut Setup| {
        quick(setup);
        setup.config.sessions.gc_interval_ms = 50;
    };
    let (server, hook) = (TestServer::with(engine, choose).await, HookReceiver::start([]).await);
    let (agent, _) = hooked(&server, &hook.url()).await;
    let (most, now) = (i64::from(ENDED_DELIVERIES_MAX), now(&server).as_microsecond());
    fill(&server, &agent, most + 600).await;
    // They all died, one after the other; the oldest of them, and a few more, were re-consents.
    server.store(&format!("UPDATE webhook_deliveries SET status = 'dead', due_at = NULL, updated_at = {now}, created_at =
        CAST(SUBSTR(delivery_id, 7) AS BIGINT), event_type = CASE WHEN delivery_id IN ('waits-1', 'waits-7', 'waits-700')
        THEN 'h2a.reauth_required' ELSE 'relation.revoked' END")).await;
    eventually("the oldest are forgotten", async || {
        let page = server.send(server.request("GET", "/metrics")).await.text;
        page.contains("\nostler_webhook_deliveries_dropped_total 597\n").then_some(())
    })
    .await;
    let left = server.store("SELECT delivery_id FROM webhook_deliveries ORDER BY created_at").await;
    let numbers: Vec<i64> = left.iter().map(|id| id.trim_start_matches("waits-").parse().unwrap()).collect();
    assert_eq!(numbers[..4], [1, 7, 600, 601]);
    assert_eq!((numbers.len() as i64, numbers.last()), (most + 3, Some(&(most + 600))));
}

/// Deliveries that wait for ever.
async fn fill(server: &TestServer, agent: &str, count: i64) {
    let never = i64::MAX;
    let fill = format!(
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
         INSERT INTO webhook_deliveries (delivery_id, agent_id, event_type, body, status, attempts, due_at, created_at,
             updated_at)
         SELECT 'waits-' || i, '{agent}', 'webhook.test', '{{}}', 'pending', 0, {never}, 0, 0 FROM n"
    );
    server.store(&fill).await;
}

#[both_engines]
async fn a_delivery_counts_if_the_receiver_answers_and_drops_the_connection(engine: Engine) {
    let (server, hook) = (server(engine).await, HookReceiver::start([Behaviour::Drop]).await);
    let (agent, _) = hooked(&server, &hook.url()).await;
    let told = tell(&server, &agent).await;
    assert_eq!(attempted(&server, &agent, &told, 1).await["status"], "delivered");
    pass(&server, 1);
    // The next one arrives; the delivered one is not sent again before it.
    let next = tell(&server, &agent).await;
    attempted(&server, &agent, &next, 1).await;
    assert_eq!(hook.requests().len(), 2);
}

#[both_engines]
async fn an_answer_without_an_end_is_not_read(engine: Engine) {
    let behaviours = [Behaviour::Endless(200), Behaviour::Endless(500)];
    let (server, hook) = (server(engine).await, HookReceiver::start(behaviours).await);
    let (agent, _) = hooked(&server, &hook.url()).await;
    let told = tell(&server, &agent).await;
    assert_eq!(attempted(&server, &agent, &told, 1).await["status"], "delivered");
    let failed = tell(&server, &agent).await;
    assert_eq!(attempted(&server, &agent, &failed, 1).await["last_status"], 500);
    // What the two systems' buffers took, and no more.
    assert!(hook.endless_bytes() < 64 * 1024 * 1024, "{}", hook.endless_bytes());
}

#[both_engines]
async fn addresses_that_are_not_public_are_refused(engine: Engine) {
    let server = TestServer::with(engine, |setup| {
        setup.config.change(|webhooks: &mut WebhooksSection| webhooks.allow_loopback = false)
    })
    .await;
    let agent = new_agent(&server).await;
    for url in [
        "http://agent.example/",
        "https://10.0.0.1/",
        "https://localhost/",
        "https://hook.localhost/",
        "https://[::1]/",
        "https://169.254.169.254/",
        "nonsense",
    ] {
        let answer = server.call("PUT", &path(&agent, ""), &json!({"url": url})).await;
        answer.refused_by(SchemaInvalid, "webhook-url");
    }
    server.get(&path(&agent, "")).await.refused(NotFound);
}

#[both_engines]
async fn a_webhook_is_its_agents_owners_alone(engine: Engine) {
    let (server, hook) = (server(engine).await, HookReceiver::start([]).await);
    let ((_, ada), (_, eve)) = (user(&server, "ada").await, user(&server, "eve").await);
    let agent = new_agent(&ada).await;
    let asked = json!({"url": hook.url()});
    ada.call("PUT", &path(&agent, ""), &asked).await.with_status(200);
    let told = id(&ada.send(ada.request("POST", &path(&agent, "/test"))).await.with_status(202), "delivery_id");
    hook.received(1).await;
    // The operator is the user `local`, who does not own it either.
    for stranger in [&eve, &*server] {
        stranger.call("PUT", &path(&agent, ""), &asked).await.refused_by(Forbidden, "not-owner");
        let one = format!("/deliveries/{told}");
        for (method, rest) in [
            ("GET", ""),
            ("DELETE", ""),
            ("POST", "/test"),
            ("GET", "/deliveries"),
            ("GET", &one),
            ("POST", &format!("{one}/replay")),
        ] {
            let answer = stranger.send(stranger.request(method, &path(&agent, rest))).await;
            answer.refused_by(Forbidden, "not-owner");
        }
    }
    assert_eq!(ada.get(&path(&agent, "")).await.ok()["url"], hook.url());
    let unknown = "agt_00000000000000000000000000000001";
    ada.call("PUT", &path(unknown, ""), &asked).await.refused(NotFound);
}

#[both_engines]
async fn what_fails_for_days_is_dead_and_can_be_replayed(engine: Engine) {
    let attempts = ATTEMPT_AFTER_S.len();
    let (server, hook) = (server(engine).await, HookReceiver::start(vec![failing(); attempts]).await);
    let (agent, _) = hooked(&server, &hook.url()).await;
    let told = tell(&server, &agent).await;
    for made in 1..attempts {
        assert_eq!(attempted(&server, &agent, &told, made as i64).await["status"], "pending");
        pass(&server, made);
    }
    let dead = attempted(&server, &agent, &told, attempts as i64).await;
    assert_eq!(
        (&dead["status"], &dead["last_error"], &dead["due_at"]),
        (&json!("dead"), &json!("answered 500"), &Value::Null)
    );
    let listed = server.get(&path(&agent, "/deliveries?status=dead")).await.ok();
    assert_eq!(listed["deliveries"].as_array().unwrap().len(), 1);
    let replay = || server.send(server.request("POST", &path(&agent, &format!("/deliveries/{told}/replay"))));
    replay().await.with_status(202);
    assert_eq!(attempted(&server, &agent, &told, 1).await["status"], "delivered");
    replay().await.refused_by(StateConflict, "delivery-not-dead");
    assert_eq!(hook.requests().len(), attempts + 1);
}

#[both_engines]
async fn a_receiver_is_left_alone_for_as_long_as_it_asks(engine: Engine) {
    let later = Behaviour::Answer(503, "retry-after: 3600\r\n".into());
    let (server, hook) = (server(engine).await, HookReceiver::start([later]).await);
    let (agent, _) = hooked(&server, &hook.url()).await;
    let told = tell(&server, &agent).await;
    let waiting = attempted(&server, &agent, &told, 1).await;
    let due: jiff::Timestamp = waiting["due_at"].as_str().unwrap().parse().unwrap();
    let wait_s = due.duration_since(now(&server)).as_secs();
    assert!((3_600..=4_320).contains(&wait_s), "{wait_s}");
}

#[both_engines]
async fn one_receiver_that_hangs_holds_up_no_other(engine: Engine) {
    let server = waiting(engine, 600_000).await;
    let (hanging, good) = (HookReceiver::start([Behaviour::Silence]).await, HookReceiver::start([]).await);
    let (agent, _) = hooked(&server, &hanging.url()).await;
    let (other, _) = hooked(&server, &good.url()).await;
    let first = tell(&server, &agent).await;
    hanging.received(1).await;
    let second = tell(&server, &agent).await;
    for _ in 0..3 {
        let told = tell(&server, &other).await;
        assert_eq!(attempted(&server, &other, &told, 1).await["status"], "delivered");
    }
    // One at a time.
    assert_eq!(hanging.connections(), 1);
    assert_eq!(delivery(&server, &agent, &first).await["attempts"], 1);
    assert_eq!(delivery(&server, &agent, &second).await["attempts"], 0);
}

#[both_engines]
async fn the_secret_is_shown_once_and_stored_sealed(engine: Engine) {
    let (server, hook) = (server(engine).await, HookReceiver::start([]).await);
    let (agent, first) = hooked(&server, &hook.url()).await;
    let second = set(&server, &agent, &hook.url()).await;
    assert_ne!(first, second);
    assert!(!server.get(&path(&agent, "")).await.text.contains(&second));
    let sealed = server.store("SELECT sealed_secret FROM webhooks").await;
    assert!(sealed.len() == 1 && !sealed[0].contains(&second));
    for (file, bytes) in server.everything_kept() {
        assert!(!bytes.windows(second.len()).any(|part| part == second.as_bytes()), "{}", file.display());
    }
    tell(&server, &agent).await;
    let request = hook.received(1).await.remove(0);
    let verify = |secret: &str| Receiver::new(secret).unwrap().verify(&request.headers, &request.body, now(&server));
    assert!(verify(&second).is_ok());
    assert_eq!(verify(&first), Err(DeliveryError::Signature));
}

#[both_engines]
async fn a_removed_webhook_gets_no_deliveries(engine: Engine) {
    let (server, hook) = (server(engine).await, HookReceiver::start([failing()]).await);
    let (agent, _) = hooked(&server, &hook.url()).await;
    let told = tell(&server, &agent).await;
    attempted(&server, &agent, &told, 1).await;
    let remove = || server.send(server.request("DELETE", &path(&agent, "")));
    remove().await.with_status(200);
    remove().await.refused(NotFound);
    let dead = delivery(&server, &agent, &told).await;
    assert_eq!((&dead["status"], &dead["last_error"]), (&json!("dead"), &json!("the webhook was removed")));
    server.send(server.request("POST", &path(&agent, "/test"))).await.refused(NotFound);
}

#[both_engines]
async fn deliveries_are_listed_newest_first(engine: Engine) {
    let (server, hook) = (server(engine).await, HookReceiver::start([]).await);
    let (agent, _) = hooked(&server, &hook.url()).await;
    let mut told = vec![];
    for _ in 0..3 {
        told.push(tell(&server, &agent).await);
        server.clock.advance_ms(1);
    }
    let (mut listed, mut query) = (vec![], "?limit=2".to_owned());
    loop {
        let page = server.get(&path(&agent, &format!("/deliveries{query}"))).await.ok();
        listed.extend(page["deliveries"].as_array().unwrap().iter().map(|found| id(found, "delivery_id")));
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        query = format!("?limit=2&cursor={cursor}");
    }
    told.reverse();
    assert_eq!(listed, told);
    let wrong = told[0].clone();
    server.get(&path(&new_agent(&server).await, &format!("/deliveries/{wrong}"))).await.refused(NotFound);
}
