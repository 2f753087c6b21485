//! Deliveries of a server that stops or dies.

use super::*;

#[both_engines]
async fn what_waits_outlives_the_server(engine: Engine) {
    let mut server = server(engine).await;
    let hook = HookReceiver::start([failing()]).await;
    let (agent, secret) = hooked(&server, &hook.url()).await;
    let told = tell(&server, &agent).await;
    attempted(&server, &agent, &told, 1).await;
    server.restart().await;
    pass(&server, 1);
    let requests = hook.received(2).await;
    let receiver = Receiver::new(&secret).unwrap();
    assert!(receiver.verify(&requests[1].headers, &requests[1].body, now(&server)).is_ok());
    assert_eq!(attempted(&server, &agent, &told, 2).await["status"], "delivered");
}

#[both_engines]
async fn what_a_dead_server_had_begun_is_taken_up_when_its_time_is_over(engine: Engine) {
    let (server, hook) = (server(engine).await, HookReceiver::start([failing()]).await);
    let (agent, _) = hooked(&server, &hook.url()).await;
    let told = tell(&server, &agent).await;
    attempted(&server, &agent, &told, 1).await;
    let until = now(&server).as_microsecond() + 45_000_000;
    let begun = format!(
        "UPDATE webhook_deliveries SET owner = 'gone', due_at = {until}, attempts = 2 WHERE delivery_id = '{told}'
         RETURNING owner"
    );
    server.store(&begun).await;
    server.clock.advance_ms(44_000);
    // Another agent's delivery shows that the worker has looked in the meantime.
    let other = HookReceiver::start([]).await;
    let (another, _) = hooked(&server, &other.url()).await;
    tell(&server, &another).await;
    other.received(1).await;
    assert_eq!(hook.requests().len(), 1);
    server.clock.advance_ms(1_001);
    assert_eq!(attempted(&server, &agent, &told, 3).await["status"], "delivered");
    assert_eq!(hook.requests().len(), 2);
}
