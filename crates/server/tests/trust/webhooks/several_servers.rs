//! Webhooks of servers that share a store.

use super::*;

/// Several servers need Postgres.
#[test]
fn two_servers_deliver_everything_once() {
    crate::harness::run(async {
        let here = server(Engine::Postgres).await;
        let there = here.start_another(|_| ()).await;
        let hooks = futures_util::future::join_all((0..8).map(|_| HookReceiver::start([]))).await;
        let mut told = 0;
        for hook in &hooks {
            let (agent, _) = hooked(&here, &hook.url()).await;
            for number in 0..5 {
                tell(if number % 2 == 0 { &here } else { &there }, &agent).await;
                told += 1;
            }
        }
        let waiting = "SELECT delivery_id FROM webhook_deliveries WHERE status <> 'delivered'";
        eventually("everything is delivered", async || here.store(waiting).await.is_empty().then_some(())).await;
        assert_eq!(hooks.iter().map(|hook| hook.requests().len()).sum::<usize>(), told);
    });
}

/// A change at one server is pushed to connections of the other.
#[test]
fn an_owner_at_another_server_is_notified_that_a_receiver_is_gone() {
    crate::harness::run(async {
        let here = server(Engine::Postgres).await;
        let there = here
            .start_another(|config| config.change(|webhooks: &mut WebhooksSection| webhooks.poll_ms = 3_600_000))
            .await;
        let (mut owner, _) = Socket::introduce(&there, "/ws/human", &there).await;
        let hook = HookReceiver::start([Behaviour::Answer(410, String::new())]).await;
        let (agent, _) = hooked(&here, &hook.url()).await;
        tell(&here, &agent).await;
        assert_eq!(owner.hear().await["payload"]["agent_id"], agent);
    });
}
