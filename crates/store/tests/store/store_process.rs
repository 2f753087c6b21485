//! A store with its lanes, and short functions that send requests to them, for tests that use no script.

use std::sync::Arc;

use ostler_protocol::{
    Timestamp,
    ids::CommandId,
    kernel::{
        commands::CommandType,
        operations::{CreateRunOp, Op, Reply, Request},
    },
};
use ostler_store::{
    Db,
    lane::{Host, LaneError, Lanes},
    mesh::messages::{MailboxLane, MailboxOutcome, MailboxRequest},
};

use crate::{
    build::{Mint, RunRef, create_run},
    host::TestHost,
    test_store::TestStore,
};

/// One process on a store.
pub(crate) struct StoreProcess {
    pub db: Db,
    pub lanes: Lanes,
    mailboxes: MailboxLane,
    pub host: Arc<TestHost>,
    pub mint: Mint,
}

impl StoreProcess {
    pub(crate) async fn post(&self, post: MailboxRequest) -> Result<MailboxOutcome, LaneError> {
        self.mailboxes.submit(post, self.host.clone()).await
    }

    pub(crate) async fn open(test_store: &TestStore) -> Self {
        Self::numbered(test_store, 0).await
    }

    /// Another process on the same store, whose ids are its own.
    pub(crate) async fn numbered(test_store: &TestStore, number: u128) -> Self {
        let host = Arc::new(TestHost::default());
        let db = Db::open(&test_store.config(), host.now()).await.unwrap();
        let lanes = Lanes::start(&db, host.clone()).await.unwrap();
        let mailboxes = MailboxLane::start(&db, &lanes);
        Self { db, lanes, mailboxes, host, mint: Mint::numbered(number) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.host.now()
    }

    /// A request that must be granted.
    pub(crate) async fn ask(&self, request: Request) -> Reply {
        self.lanes.submit(request).await.unwrap()
    }

    /// A new run in a session of its own, not submitted yet.
    pub(crate) fn new_run(&mut self, key: Option<&str>) -> CreateRunOp {
        let session = self.mint.session(None, self.now());
        self.mint.run(&session, true, key.map(str::to_owned), self.now())
    }

    pub(crate) async fn run(&mut self) -> RunRef {
        let op = self.new_run(None);
        let run = RunRef::of(&op);
        self.ask(create_run(op)).await;
        run
    }

    pub(crate) fn new_turn(&mut self, run: &RunRef) -> Request {
        let op = self.mint.command(run, CommandType::Turn, "do it", None, self.now());
        run.request(Op::CreateCommand(Box::new(op)))
    }

    pub(crate) async fn turn(&mut self, run: &RunRef) -> CommandId {
        let request = self.new_turn(run);
        match self.ask(request).await {
            Reply::Command(command, true) => command.command_id,
            other => panic!("a turn was answered with {other:?}"),
        }
    }

    /// Claims the run; answers the epoch.
    pub(crate) async fn claim(&mut self, run: &RunRef, runner: &str) -> i64 {
        let attempt = self.mint.attempt();
        match self.ask(run.claim(runner, 60_000, attempt)).await {
            Reply::Claimed(claimed) => claimed.lease_epoch,
            other => panic!("a claim was answered with {other:?}"),
        }
    }
}

/// The rule that refused, for an assertion that reads well.
pub(crate) fn refused_by(answer: &Result<Reply, LaneError>) -> &str {
    match answer {
        Err(LaneError::Refused(failure)) => failure.rule_name().unwrap_or(failure.kind.as_str()),
        Err(LaneError::Taken) => "taken",
        Err(LaneError::Store(error)) => panic!("the store failed: {error}"),
        Ok(reply) => panic!("was granted: {reply:?}"),
    }
}
