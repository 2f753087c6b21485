//! Lists of sessions find what they show by an index, however many sessions there are, and what they show is right while a
//! reader is settled bit by bit.

use futures_util::{StreamExt, TryStreamExt, stream};
use jiff::SignedDuration;
use ostler_protocol::{
    Timestamp,
    cursors::Cursor,
    kernel::sessions::{ExecutionState, Session},
};
use ostler_store::{
    Db,
    kernel::{
        readers::{self, Settled},
        sessions::{self, SessionFilter},
    },
};
use sqlx::{Connection, Executor, PgConnection};

use crate::{
    build::create_session,
    store_process::StoreProcess,
    test_store::{Engine, TestStore, both_engines},
};

const SESSIONS: i64 = 1_300;
const AT_ONCE: usize = 16;
const READER: &str = "reader";

/// Every tenth runs, every eleventh has ended nothing yet; all were used one after the other.
async fn fill(process: &mut StoreProcess) -> Vec<Session> {
    let all: Vec<Session> = (0..SESSIONS)
        .map(|number| {
            let at = process.now().checked_add(SignedDuration::from_secs(number)).unwrap();
            let mut session = process.mint.session(None, at);
            if number % 11 != 0 {
                session.has_ended_one(at);
                session.execution_state = ExecutionState::Terminal;
            }
            if number % 10 == 0 {
                session.execution_state = ExecutionState::Running;
            }
            session
        })
        .collect();
    let inserts = stream::iter(&all).map(|session| process.lanes.submit(create_session(session.clone())));
    inserts.buffer_unordered(AT_ONCE).try_for_each(async |_| Ok(())).await.unwrap();
    all
}

fn filter(open: Option<Settled>, tenants: Option<&str>) -> SessionFilter {
    let tenants = tenants.map(|tenant| vec![tenant.to_owned()]);
    SessionFilter { tenants, reader_id: READER.into(), open, ..SessionFilter::default() }
}

fn later(process: &StoreProcess) -> Timestamp {
    process.now().checked_add(SignedDuration::from_hours(1)).unwrap()
}

#[both_engines]
async fn a_first_page_is_found_by_an_index(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let all = fill(&mut process).await;
    // Settled first, so that each mark leaves an entry of the index behind: Postgres then takes the index for large.
    readers::update_version(&process.db, all[0].session, READER, all[0].version, process.now()).await.unwrap();
    while readers::settle(&process.db, READER, later(&process)).await.unwrap() == Settled::No {}
    let marks = stream::iter(&all[..1_295])
        .map(|session| readers::update_version(&process.db, session.session, READER, session.version, process.now()));
    marks.buffer_unordered(AT_ONCE).try_for_each(async |()| Ok(())).await.unwrap();
    if test_store.engine() == Engine::Postgres {
        // As its own daemon would, sooner or later.
        PgConnection::connect(&test_store.url()).await.unwrap().execute("VACUUM ANALYZE").await.unwrap();
    }
    let settled = Settled::Until(later(&process));
    let cursor = Cursor { created_at_us: all[600].created_at.as_microsecond(), id: all[600].session.to_string() };
    for after in [None, Some(&cursor)] {
        for (open, indexes) in [
            (None, vec!["sessions_created"]),
            (Some(Settled::No), vec!["sessions_running", "sessions_used"]),
            (Some(settled), vec!["sessions_running", "session_unread", "sessions_ended"]),
        ] {
            let plan = sessions::explain_list(&process.db, &filter(open, None), after, 50).await.unwrap().join("\n");
            for index in indexes {
                assert!(plan.contains(index), "{open:?} does not use {index}:\n{plan}");
            }
            let walked =
                |line: &&str| line.contains("Seq Scan") || (line.starts_with("SCAN") && !line.contains("INDEX"));
            assert_eq!(plan.lines().find(walked), None, "{open:?}:\n{plan}");
        }
        let plan =
            sessions::explain_list(&process.db, &filter(None, Some("local")), after, 50).await.unwrap().join("\n");
        assert!(plan.contains("sessions_tenant") || plan.contains("sessions_created"), "{plan}");
    }
}

/// What the list must show, newest first.
fn expected(all: &[Session], read: impl Fn(&Session) -> bool) -> Vec<String> {
    let shown = |session: &&Session| {
        session.execution_state == ExecutionState::Running || (session.version > 0 && !read(session))
    };
    all.iter().rev().filter(shown).map(|session| session.session.to_string()).collect()
}

/// The whole list, page by page.
async fn walk(db: &Db, open: Settled) -> Vec<String> {
    let (mut all, mut after): (Vec<String>, Option<Cursor>) = (vec![], None);
    loop {
        let page = sessions::list(db, &filter(Some(open), None), after.as_ref(), 170).await.unwrap();
        let Some(last) = page.last().map(|row| &row.session) else { return all };
        after = Some(Cursor { created_at_us: last.created_at.as_microsecond(), id: last.session.to_string() });
        all.extend(page.iter().map(|row| row.session.session.to_string()));
    }
}

#[both_engines]
async fn a_reader_is_settled_bit_by_bit_and_the_list_stays_right(test_store: TestStore) {
    let mut process = StoreProcess::open(&test_store).await;
    let all = fill(&mut process).await;
    let (db, now) = (&process.db, later(&process));
    assert_eq!(readers::settle(db, READER, now).await.unwrap(), Settled::No, "who marked nothing is not settled");
    assert_eq!(walk(db, Settled::No).await, expected(&all, |_| false));
    readers::update_version(db, all[700].session, READER, 1, now).await.unwrap();
    let mut settles = 0;
    let until = loop {
        settles += 1;
        let settled = readers::settle(db, READER, now).await.unwrap();
        assert_eq!(walk(db, settled).await, expected(&all, |session| *session == all[700]));
        if let Settled::Until(until) = settled {
            break until;
        }
    };
    assert!(settles > 1, "there were more than one takes");
    assert!(until > all[1_299].created_at);
    // From here on nothing is walked: marks are found, and what is read is not.
    for session in &all[..1_200] {
        readers::update_version(db, session.session, READER, session.version, now).await.unwrap();
    }
    let read = |session: &Session| all[..1_200].contains(session);
    assert_eq!(walk(db, Settled::Until(until)).await, expected(&all, read));
    // A mark never goes back, and one that is behind the session leaves it unread.
    readers::update_version(db, all[1].session, READER, 0, now).await.unwrap();
    readers::update_version(db, all[1_250].session, READER, 0, now).await.unwrap();
    assert_eq!(walk(db, Settled::Until(until)).await, expected(&all, read));
}
