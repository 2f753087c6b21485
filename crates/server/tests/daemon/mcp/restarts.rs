//! Servers after a restart of the process.

use super::*;

#[one_engine]
async fn servers_are_connected_again_for_sessions_from_before_a_restart(engine: Engine) {
    for way in ["attach", "load", "prompt"] {
        let mut desk = Desk::start(engine, |setup| configure_servers(setup, &[("good", "good")])).await;
        desk.until("good", "connected").await;
        desk.server.restart().await;
        assert_eq!(desk.status().await["discoveryState"], "not_started", "{way}: nothing was used yet");
        let path = format!("/session/{}", desk.session);
        match way {
            "attach" => assert_eq!(desk.server.open().await["sessionId"], desk.session.as_str()),
            "load" => drop(desk.post(&format!("{path}/load"), &json!({})).await.with_status(200)),
            _ => {
                let body = json!({"prompt": [{"type": "text", "text": "hi"}]});
                desk.post(&format!("{path}/prompt"), &body).await.with_status(202);
            }
        }
        desk.until("good", "connected").await;
    }
}
