//! Rows of a dialect that are written together with a request to the kernel: both are durable, or neither.

use futures_util::future::join_all;
use ostler_protocol::{
    daemon::{
        clients::DaemonClient,
        sessions::{DaemonSession, SessionScope},
    },
    ids::SessionId,
    kernel::{
        operations::{CreateSessionOp, Op, Request, SessionChange},
        sessions::Session,
    },
};
use ostler_store::{
    daemon::{clients, sessions},
    kernel,
    lane::LaneError,
};

use crate::{
    build::{TENANT, change_session, create_session},
    store_process::{StoreProcess, refused_by},
    test_store::{TestStore, both_engines},
};

fn opened(session: &Session, scope: SessionScope) -> DaemonSession {
    DaemonSession {
        session: session.session,
        tenant_id: TENANT.into(),
        owner: "owner".into(),
        workspace: String::new(),
        scope,
        model_id: None,
        language: None,
        output_language: None,
        approval_mode: None,
        opened_at: session.created_at,
        closed_at: None,
        followed_at: None,
    }
}

fn client(session: &Session, client_id: &str) -> DaemonClient {
    DaemonClient {
        client_id: client_id.into(),
        session: session.session,
        principal: "owner".into(),
        registered_at: session.created_at,
        last_seen_at: session.created_at,
        left_at: None,
    }
}

fn create(session: Session, client: &DaemonClient) -> Request {
    let session_id = session.session;
    let op = CreateSessionOp { session, by: "test".into(), participant: Some(client.client_id.clone()) };
    Request { session: session_id, run_id: None, op: Op::CreateSession(Box::new(op)) }
}

async fn stored(process: &StoreProcess, session: SessionId, client_id: &str) -> (bool, bool, bool) {
    let db = &process.db;
    let session_row = kernel::sessions::get(db, session).await.unwrap().is_some();
    let daemon_row = sessions::get(db, session).await.unwrap().is_some();
    (session_row, daemon_row, clients::get(db, client_id).await.unwrap().is_some())
}

#[both_engines]
async fn rows_whose_place_is_taken_leave_no_session(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let new: Vec<_> = (0..6).map(|_| process.mint.session(None, process.now())).collect();
    let lanes = &process.lanes;
    let creates = new.iter().enumerate().map(|(number, session)| {
        let client = client(session, &format!("client_{number}"));
        let rows = sessions::rows_of_new(&opened(session, SessionScope::Single), &client, 3);
        lanes.submit_with(create(session.clone(), &client), rows)
    });
    let answers = join_all(creates).await;
    let mut written = 0;
    for (number, (session, answer)) in new.iter().zip(&answers).enumerate() {
        let is_new = answer.is_ok();
        assert!(is_new || matches!(answer, Err(LaneError::Taken)), "{answer:?}");
        let found = stored(&process, session.session, &format!("client_{number}")).await;
        assert_eq!(found, (is_new, is_new, is_new), "all or nothing");
        written += usize::from(is_new);
    }
    assert_eq!(written, 1, "clients share one session");
}

#[both_engines]
async fn requests_of_one_commit_count_against_the_limit(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let new: Vec<_> = (0..6).map(|_| process.mint.session(None, process.now())).collect();
    let creates = new.iter().enumerate().map(|(number, session)| {
        let client = client(session, &format!("client_{number}"));
        let rows = sessions::rows_of_new(&opened(session, SessionScope::Thread), &client, 3);
        process.lanes.submit_with(create_session(session.clone()), rows)
    });
    let created = join_all(creates).await.iter().filter(|answer| answer.is_ok()).count();
    assert_eq!(created, 3);
}

#[both_engines]
async fn a_refused_request_leaves_no_rows(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let session = process.mint.session(None, process.now());
    process.ask(create_session(session.clone())).await;
    process.ask(change_session(session.session, SessionChange::Close)).await;
    let client = client(&session, "client_late");
    let join = change_session(session.session, SessionChange::Join { participant: client.client_id.clone() });
    let answer = process.lanes.submit_with(join, clients::rows_of_new(&client)).await;
    assert_eq!(refused_by(&answer), "session-closed");
    assert_eq!(stored(&process, session.session, "client_late").await, (true, false, false));
}
