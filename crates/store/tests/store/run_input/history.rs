//! History finds what was said at a time by its index, however long the session is and whatever else it holds.

use jiff::SignedDuration;
use ostler_protocol::kernel::events::EventType;
use ostler_store::run_input::history::{self, Extent, Span};
use serde_json::json;
use sqlx::{Connection, Executor, PgConnection};

use crate::{
    build::event,
    store_process::StoreProcess,
    test_store::{Engine, TestStore, both_engines},
};

const TURNS: usize = 200;
const TURN_MS: i64 = 30_000;

#[both_engines]
async fn messages_are_found_by_their_index(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let run = process.run().await;
    for number in 0..TURNS {
        process.host.advance_ms(TURN_MS);
        let command = Some(process.turn(&run).await);
        let epoch = process.claim(&run, "runner-a").await;
        let delta = event(EventType::AssistantDelta, command, json!({"messageId": "m", "delta": "…"}));
        let mut events = vec![delta; 20];
        events.push(event(EventType::AssistantMessage, command, json!({"messageId": "m", "text": number.to_string()})));
        events.push(event(EventType::BackendStatus, command, json!({"phase": "done"})));
        events.push(event(EventType::TerminalStatus, command, json!({"status": "completed"})));
        process.ask(run.append("runner-a", epoch, None, events)).await;
    }
    if test_store.engine() == Engine::Postgres {
        // As its own daemon would, sooner or later.
        PgConnection::connect(&test_store.url()).await.unwrap().execute("VACUUM ANALYZE").await.unwrap();
    }
    let ago = |turns: i64| process.now().checked_sub(SignedDuration::from_millis(turns * TURN_MS)).unwrap();
    for (oldest, newest) in [(3, 0), (120, 117)] {
        let span = Span { start: ago(oldest), end: ago(newest).checked_add(SignedDuration::from_millis(1)).unwrap() };
        for plan in history::explain(&process.db, run.session, span).await.unwrap() {
            assert!(plan.contains("events_said"), "{plan}");
            let walked =
                |line: &&str| line.contains("Seq Scan") || (line.starts_with("SCAN") && !line.contains("INDEX"));
            assert_eq!(plan.lines().find(walked), None, "{plan}");
        }
        let said = history::list_messages(&process.db, run.session, span, 1_000, usize::MAX).await.unwrap();
        assert_eq!(said.len(), 8, "four turns, asked and answered");
        let few = history::list_messages(&process.db, run.session, span, 3, usize::MAX).await.unwrap();
        assert_eq!(few, said[5..], "the newest, in their order");
        assert_eq!(history::list_turns(&process.db, run.session, span).await.unwrap().len(), 4);
        assert_eq!(history::find_last(&process.db, run.session, span.end).await.unwrap(), Some(ago(newest)));
        assert!(history::has_earlier(&process.db, run.session, span.start).await.unwrap());
    }
    let beginning = ago(TURNS as i64);
    assert!(!history::has_earlier(&process.db, run.session, beginning).await.unwrap());
    assert_eq!(history::find_last(&process.db, run.session, beginning).await.unwrap(), None);
}

#[both_engines]
async fn what_a_turn_had_begun_ends_with_the_turn(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let run = process.run().await;
    for _ in 0..TURNS {
        process.host.advance_ms(TURN_MS);
        let command = Some(process.turn(&run).await);
        let epoch = process.claim(&run, "runner-a").await;
        let delta = event(EventType::AssistantDelta, command, json!({"messageId": "m", "delta": "…"}));
        let mut events = vec![delta; 20];
        events.push(event(
            EventType::TerminalStatus,
            command,
            json!({"status": "failed", "failureKind": "backend-failed"}),
        ));
        process.ask(run.append("runner-a", epoch, None, events)).await;
    }
    if test_store.engine() == Engine::Postgres {
        PgConnection::connect(&test_store.url()).await.unwrap().execute("VACUUM ANALYZE").await.unwrap();
    }
    let start = process.now().checked_sub(SignedDuration::from_millis(3 * TURN_MS)).unwrap();
    let span = Span { start, end: process.now().checked_add(SignedDuration::from_millis(1)).unwrap() };
    let asked = history::list_messages(&process.db, run.session, span, 1_000, usize::MAX).await.unwrap();
    let turns = history::list_turns(&process.db, run.session, span).await.unwrap();
    for asked in &asked {
        let turn = turns.iter().find(|turn| Some(turn.command_id) == asked.command_id).unwrap();
        let extent = Extent::of(turn, asked).unwrap();
        assert_eq!(history::list_turn(&process.db, extent).await.unwrap().len(), 20);
        assert!(extent.end_seq - extent.asked_seq < 40, "its own events and no others: {extent:?}");
        let plan = history::explain_turn(&process.db, extent).await.unwrap();
        // Both ends are in the index: nothing after the turn is walked over.
        let bounded = plan.contains("events_run (run_id=? AND seq>? AND seq<?)")
            || (plan.contains("events_run") && plan.contains("seq >") && plan.contains("seq <"));
        assert!(bounded, "{plan}");
    }
    assert_eq!(asked.len(), 4);
}
