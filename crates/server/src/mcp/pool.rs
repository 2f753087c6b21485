//! The connections of this process, and the budget that they count against.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use ostler_protocol::mcp::{
    budget::{McpBudget, Reservation},
    config::{McpServer, McpTransport},
    states::ConnectionState,
    tools::McpTool,
};
use parking_lot::Mutex;
use tokio::{
    sync::{OnceCell, Semaphore, broadcast},
    time::Instant,
};

use super::{
    backoff::Backoffs,
    callable::CallableCache,
    entry::{ConnectionView, Entry, EntryKey, Lease, Timing},
    events::{BudgetUse, McpNotice},
    problem::McpProblem,
    process,
    registered::{RegisteredServer, ServerOrigin},
    slots::Slot,
};
use crate::{app::App, config::McpSection};

/// How many notices a slow receiver may be behind.
const NOTICES_MAX: usize = 256;
/// Most connections that are remembered after they have ended.
const ENDED_MAX: usize = 256;
/// How many servers may be added at once. Each of them may take its whole deadline to connect.
const ADDITIONS_MAX: usize = 8;

/// The MCP servers of this process, and its connections to them.
pub struct Mcp {
    /// Servers that callers have added, by their names.
    pub(super) added: Mutex<BTreeMap<String, McpServer>>,
    /// The servers that are being connected in order to be added.
    pub(super) additions: Semaphore,
    pub(super) callable: CallableCache,
    /// In the order in which they were made. Those that have ended stay until another one of the same name replaces them.
    entries: Mutex<Vec<Arc<Entry>>>,
    budget: Arc<Mutex<McpBudget>>,
    /// Names that the last attempt to connect them found no slot for.
    refused: Mutex<BTreeSet<String>>,
    timing: Timing,
    pub(super) backoffs: Arc<Backoffs>,
    notices: broadcast::Sender<McpNotice>,
    /// Done once, before the first process is started.
    swept: OnceCell<()>,
}

/// No slot of the budget is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused;

/// One connection of a server.
#[derive(Clone, Debug)]
pub struct McpConnection {
    /// Its place among the connections of its name.
    pub index: usize,
    pub view: ConnectionView,
}

/// What became of the restart of one connection.
pub(super) struct Restart {
    pub index: usize,
    pub outcome: Result<Duration, McpProblem>,
}

/// The connection of a server that is made, or is being made.
fn find_live<'a>(entries: &'a [Arc<Entry>], registered: &RegisteredServer, scope: &str) -> Option<&'a Arc<Entry>> {
    let is_of =
        |key: &EntryKey| key.name == registered.name && key.fingerprint == registered.fingerprint && key.scope == scope;
    entries.iter().find(|entry| is_of(&entry.key) && entry.state().is_live())
}

impl Mcp {
    pub(crate) fn new(section: &McpSection) -> Self {
        let timing = Timing {
            drain: Duration::from_millis(section.drain_ms),
            idle: Duration::from_millis(section.idle_ms),
            reconnect_ms: section.reconnect_ms,
        };
        Self {
            added: Mutex::default(),
            additions: Semaphore::new(ADDITIONS_MAX),
            callable: CallableCache::default(),
            entries: Mutex::default(),
            budget: Arc::new(Mutex::new(McpBudget::new(section.mode(), section.client_budget))),
            refused: Mutex::default(),
            timing,
            backoffs: Arc::default(),
            notices: broadcast::Sender::new(NOTICES_MAX),
            swept: OnceCell::new(),
        }
    }

    /// The MCP servers of this server.
    pub fn of(app: &App) -> &Self {
        app.state()
    }

    /// What happens to the budget from now on.
    pub fn notices(&self) -> broadcast::Receiver<McpNotice> {
        self.notices.subscribe()
    }

    fn usage(&self, entries: &[Arc<Entry>]) -> BudgetUse {
        let live: BTreeSet<_> = entries
            .iter()
            .filter(|entry| entry.state() == ConnectionState::Connected)
            .map(|entry| entry.key.name.as_str())
            .collect();
        let budget = self.budget.lock();
        BudgetUse {
            mode: budget.mode(),
            slots_max: budget.slots_max(),
            live: u32::try_from(live.len()).unwrap_or(u32::MAX),
            reserved: budget.reserved(),
        }
    }

    /// A lease of the connection to a server, which is made if there is none.
    async fn lease_in_scope(&self, app: &App, registered: &RegisteredServer, scope: &str) -> Result<Lease, Refused> {
        self.swept.get_or_init(|| process::sweep(app)).await;
        let mut entries = self.entries.lock();
        if let Some(entry) = find_live(&entries, registered, scope) {
            return Ok(entry.lease());
        }
        let key = EntryKey {
            name: registered.name.clone(),
            fingerprint: registered.fingerprint.clone(),
            scope: scope.to_owned(),
        };
        let slot = self.reserve(&registered.name, true, &entries)?;
        let is_replaced = |entry: &Entry| entry.key.name == key.name && entry.key.scope == key.scope;
        entries.retain(|entry| entry.state().is_live() || !is_replaced(entry));
        if entries.len() >= ENDED_MAX {
            entries.retain(|entry| entry.state().is_live());
        }
        let is_restricted = matches!(registered.origin, ServerOrigin::Added { .. });
        let (server, backoffs) = (registered.server.clone(), self.backoffs.clone());
        let (entry, lease) = Entry::start(app, key, server, is_restricted, self.timing, backoffs, slot);
        entries.push(entry);
        Ok(lease)
    }

    /// Reserves a slot of the budget for one connection of a server, and sends the warning if this crosses its threshold. If no
    /// slot is free, the status of a known server shows it from now on. Other names are not remembered: callers can send any
    /// number of them.
    fn reserve(&self, name: &str, is_known: bool, entries: &[Arc<Entry>]) -> Result<Slot, Refused> {
        let reservation = self.budget.lock().reserve(name);
        let Reservation::Granted { warns } = reservation else {
            if is_known {
                self.refused.lock().insert(name.to_owned());
            }
            return Err(Refused);
        };
        self.refused.lock().remove(name);
        if warns {
            let _ = self.notices.send(McpNotice::Warning(self.usage(entries)));
        }
        Ok(Slot { budget: self.budget.clone(), name: name.to_owned() })
    }

    /// Starts a connection to a server that is not known yet. Nothing else uses it, or waits for it, before [`Mcp::adopt`].
    pub(super) async fn start_apart(
        &self,
        app: &App,
        name: &str,
        server: &McpServer,
    ) -> Result<(Arc<Entry>, Lease), Refused> {
        self.swept.get_or_init(|| process::sweep(app)).await;
        let key = EntryKey { name: name.to_owned(), fingerprint: server.fingerprint(), scope: String::new() };
        let is_known = app.config.mcp.servers.contains_key(name) || self.added.lock().contains_key(name);
        let reserved = self.reserve(name, is_known, &self.entries.lock());
        let slot = reserved.inspect_err(|Refused| self.notify_refused(vec![(name.to_owned(), server.transport())]))?;
        Ok(Entry::start(app, key, server.clone(), true, self.timing, self.backoffs.clone(), slot))
    }

    /// Puts a connection that was started apart in the place of all others of its name.
    pub(super) fn adopt(&self, entry: Arc<Entry>) {
        let name = entry.key.name.clone();
        let mut entries = self.entries.lock();
        entries.iter().filter(|other| other.key.name == name).for_each(|other| other.stop());
        entries.retain(|other| other.key.name != name);
        entries.push(entry);
        self.refused.lock().remove(&name);
    }

    pub(super) fn of_name(&self, name: &str) -> Vec<Arc<Entry>> {
        self.entries.lock().iter().filter(|entry| entry.key.name == name).cloned().collect()
    }

    /// A lease of the connection to a server. `scope` is the session that it is for, if connections are not shared.
    /// A refusal is a pass of its own.
    pub async fn lease(&self, app: &App, registered: &RegisteredServer, scope: &str) -> Result<Lease, Refused> {
        let leased = self.lease_in_scope(app, registered, self.scope(app, scope)).await;
        if leased.is_err() {
            self.notify_refused(vec![(registered.name.clone(), registered.server.transport())]);
        }
        leased
    }

    /// The tools of a server that is connected. Not a use of the connection, and `None` if there is none.
    pub(crate) fn connected_tools(
        &self,
        app: &App,
        registered: &RegisteredServer,
        scope: &str,
    ) -> Option<Arc<Vec<McpTool>>> {
        let entries = self.entries.lock();
        find_live(&entries, registered, self.scope(app, scope))?.connected().map(|view| view.tools)
    }

    /// How long lists of tools skip a server that could not be connected. `None` if it may be connected now, or is.
    pub fn pause_left(&self, app: &App, registered: &RegisteredServer) -> Option<Duration> {
        let left = self.backoffs.pause_left(&registered.name, &registered.fingerprint, app.now())?;
        let is_live = self.of_name(&registered.name).iter().any(|entry| entry.state().is_live());
        (!is_live).then_some(left)
    }

    /// Whether a server has been connected before and has not failed since, so that it is worth waiting for.
    pub(crate) fn is_reliable(&self, registered: &RegisteredServer) -> bool {
        self.backoffs.is_reliable(&registered.name, &registered.fingerprint)
    }

    /// Connects servers in this order, as far as the budget allows, except those that pause after a failure. Does not wait for them.
    pub async fn connect_all(&self, app: &App, servers: &[RegisteredServer], scope: &str) {
        let mut refused = vec![];
        for registered in
            servers.iter().filter(|registered| registered.is_enabled && self.pause_left(app, registered).is_none())
        {
            match self.lease_in_scope(app, registered, self.scope(app, scope)).await {
                // The connection is made without a user, and closed if none comes.
                Ok(lease) => drop(lease),
                Err(Refused) => refused.push((registered.name.clone(), registered.server.transport())),
            }
        }
        if !refused.is_empty() {
            self.notify_refused(refused);
        }
    }

    fn scope<'a>(&self, app: &App, scope: &'a str) -> &'a str {
        if app.config.mcp.no_pool { scope } else { "" }
    }

    fn notify_refused(&self, servers: Vec<(String, McpTransport)>) {
        let budget = self.budget();
        let _ = self.notices.send(McpNotice::Refused { servers, budget });
    }

    pub fn budget(&self) -> BudgetUse {
        self.usage(&self.entries.lock())
    }

    /// Whether a new connection of this server would be refused now.
    pub fn would_refuse(&self, name: &str) -> bool {
        self.budget.lock().would_refuse(name)
    }

    /// Whether a new connection of this server would need a slot beyond the budget.
    pub fn would_exceed(&self, name: &str) -> bool {
        self.budget.lock().would_exceed(name)
    }

    /// Whether the last attempt to connect the server found no slot.
    pub fn is_refused(&self, name: &str) -> bool {
        self.refused.lock().contains(name)
    }

    /// The connections of a server, in the order in which they were made.
    pub fn connections(&self, name: &str) -> Vec<McpConnection> {
        let entries = self.of_name(name).into_iter().enumerate();
        entries.map(|(index, entry)| McpConnection { index, view: entry.view() }).collect()
    }

    /// Makes connections of a server again, one after the other: the one with this index, or all.
    pub(super) async fn restart_connections(
        &self,
        app: &App,
        registered: &RegisteredServer,
        index: Option<usize>,
    ) -> Vec<Restart> {
        let entries = self.of_name(&registered.name).into_iter().enumerate();
        let mut restarts = vec![];
        for (index, entry) in entries.filter(|(place, _)| index.is_none_or(|index| index == *place)) {
            let began = Instant::now();
            let restarted = if entry.state().is_live() { entry.restart().await } else { Err(McpProblem::Stopped) };
            let outcome = match restarted {
                // It has ended, perhaps just now.
                Err(McpProblem::Stopped) => self.restart_ended(app, registered, &entry).await,
                outcome => outcome,
            };
            restarts.push(Restart { index, outcome: outcome.map(|()| began.elapsed()) });
        }
        restarts
    }

    async fn restart_ended(&self, app: &App, registered: &RegisteredServer, entry: &Entry) -> Result<(), McpProblem> {
        let lease =
            self.lease_in_scope(app, registered, &entry.key.scope).await.map_err(|Refused| McpProblem::Stopped)?;
        lease.ready().await.map(drop)
    }

    /// Ends all connections of a server.
    pub fn disconnect(&self, name: &str) {
        self.backoffs.reset(name);
        self.of_name(name).iter().for_each(|entry| entry.stop());
        self.refused.lock().remove(name);
    }

    /// Forgets the connections of a server that does not exist any more.
    pub(super) fn forget(&self, name: &str) {
        self.disconnect(name);
        self.entries.lock().retain(|entry| entry.key.name != name);
    }
}
