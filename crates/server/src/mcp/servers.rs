//! The servers that there are: those of the configuration in its order, then those that callers have added. An added one takes
//! the place of a configured one of the same name.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use ostler_protocol::{
    Failure, Rule,
    mcp::config::{McpServer, SERVERS_MAX},
};
use ostler_store::{
    self as store,
    kernel::workspace_switches::{SwitchNoun, SwitchPlace},
};

use super::{
    callable::CallableServers,
    entry::{ConnectionView, Entry},
    pool::{Mcp, Refused},
    problem::McpProblem,
    registered::{RegisteredServer, ServerOrigin},
};
use crate::{app::App, dialect::Dialects};

/// Most tools of a workspace that can be switched off.
const DISABLED_TOOLS_MAX: usize = 1_000;

/// Why a restart was not tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RestartSkipped {
    InFlight,
    Disabled,
    BudgetWouldExceed,
}

/// A server that was added.
#[derive(Debug)]
pub struct McpAddition {
    pub view: ConnectionView,
    /// Whether one of the same name had been added before.
    pub replaced: bool,
}

/// Why a server was not added.
#[derive(Debug)]
pub enum AddRefused {
    /// No slot of the budget is free.
    Budget,
    /// Too many servers are being added.
    Busy,
    /// The server could not be connected.
    Problem(McpProblem),
    Failed(Failure),
}

/// Checks that another server of this name can be added.
fn check_room(added: &BTreeMap<String, McpServer>, name: &str) -> Result<(), AddRefused> {
    if added.len() >= SERVERS_MAX && !added.contains_key(name) {
        let message = format!("at most {SERVERS_MAX} servers can be added");
        return Err(AddRefused::Failed(Failure::rule(Rule::McpServerLimit, message)));
    }
    Ok(())
}

/// What became of a restart: for each connection how long it took, or why it failed.
pub type Restarted = Vec<(usize, Result<Duration, McpProblem>)>;

/// The workspace whose switches apply. Its path is empty if the server is bound to none.
fn place(app: &App) -> SwitchPlace {
    let path = app.config.server.workspace.as_ref();
    let workspace = path.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
    SwitchPlace { tenant_id: Dialects::of(app).workspace_tenant(&app.config).unwrap_or_default(), workspace }
}

impl Mcp {
    /// Every server, whether it is enabled or not.
    pub async fn servers(&self, app: &App) -> Result<Vec<RegisteredServer>, Failure> {
        let switches = store::kernel::workspace_switches::list(&app.db, &place(app), SwitchNoun::McpServer).await?;
        let switches: BTreeMap<_, _> = switches.into_iter().collect();
        let configured = &app.config.mcp.servers;
        let added = self.added.lock().clone();
        let only_added = added.keys().filter(|name| !configured.contains_key(*name));
        let names: Vec<_> = configured.keys().chain(only_added).cloned().collect();
        let known = names.into_iter().filter_map(|name| {
            let (server, origin) = match (added.get(&name), configured.get(&name)) {
                (Some(server), shadowed) => (server, ServerOrigin::Added { shadows: shadowed.is_some() }),
                (None, server) => (server?, ServerOrigin::Configured),
            };
            let is_enabled = switches.get(&name).copied().unwrap_or(server.enabled);
            let (server, fingerprint) = (server.clone(), server.fingerprint());
            Some(RegisteredServer { server, fingerprint, origin, is_enabled, name })
        });
        Ok(known.collect())
    }

    pub async fn server(&self, app: &App, name: &str) -> Result<Option<RegisteredServer>, Failure> {
        Ok(self.servers(app).await?.into_iter().find(|known| known.name == name))
    }

    /// The servers that agents get, in order: those that are enabled, as many as an enforced budget allows.
    pub async fn for_agents(&self, app: &App) -> Result<Vec<RegisteredServer>, Failure> {
        let budget = self.budget();
        let is_enforced = budget.mode == ostler_protocol::mcp::budget::BudgetMode::Enforce;
        let count = budget.slots_max.filter(|_| is_enforced).map_or(usize::MAX, |slots| slots as usize);
        let servers = self.servers(app).await?.into_iter().filter(|known| known.is_enabled);
        Ok(servers.take(count).collect())
    }

    /// What calls of tools depend on. Changes of this process are seen at once, those of other servers of the store after a while.
    pub(crate) async fn callable(&self, app: &App) -> Result<Arc<CallableServers>, Failure> {
        if let Some(found) = self.callable.get(app.has_others()) {
            return Ok(found);
        }
        let read = self.callable.begin_read();
        let (servers, disabled_tools) = (self.for_agents(app).await?, disabled_tools(app).await?);
        let found = Arc::new(CallableServers { servers, disabled_tools });
        self.callable.put(&read, found.clone());
        Ok(found)
    }

    /// Connects a server, and adds it until this process ends. One that cannot be connected is not added. No lock is held while the
    /// server connects, so that a slow one delays no other. Of concurrent additions of the same name, the one that connects last
    /// is in force.
    pub async fn add(&self, app: &App, name: &str, server: McpServer) -> Result<McpAddition, AddRefused> {
        let Ok(_permit) = self.additions.try_acquire() else { return Err(AddRefused::Busy) };
        check_room(&self.added.lock(), name)?;
        let (entry, lease) = self.start_apart(app, name, &server).await.map_err(|Refused| AddRefused::Budget)?;
        let added = lease.ready().await.map_err(AddRefused::Problem).and_then(|view| {
            let mut added = self.added.lock();
            check_room(&added, name)?;
            let previous = added.insert(name.to_owned(), server);
            // Connections of the one that was in force end; its users connect to the new one.
            self.adopt(entry.clone());
            self.callable.changed();
            Ok((view, previous))
        });
        let (view, previous) = added.inspect_err(|_| entry.stop())?;
        let replaced = previous.is_some();
        // A switch was for an earlier server of this name: the new one is enabled as configured. It is deleted last, because an
        // addition that is refused must not enable a server that was switched off.
        if let Err(failure) = self.delete_switch(app, name).await {
            self.withdraw(&entry, previous);
            return Err(AddRefused::Failed(failure));
        }
        Ok(McpAddition { view, replaced })
    }

    /// Undoes an addition, unless another one of the same name has replaced it.
    fn withdraw(&self, entry: &Arc<Entry>, previous: Option<McpServer>) {
        let name = &entry.key.name;
        let mut added = self.added.lock();
        if !self.of_name(name).iter().any(|other| Arc::ptr_eq(other, entry)) {
            return;
        }
        match previous {
            Some(previous) => added.insert(name.clone(), previous),
            None => added.remove(name),
        };
        self.callable.changed();
        self.forget(name);
    }

    async fn delete_switch(&self, app: &App, name: &str) -> Result<(), Failure> {
        let deleted =
            store::kernel::workspace_switches::delete(&app.db, &place(app), SwitchNoun::McpServer, name).await;
        // Also if it failed: it may have been done.
        self.callable.changed();
        deleted?;
        Ok(())
    }

    /// Removes a server that was added. Returns whether there was one.
    pub fn remove(&self, name: &str) -> bool {
        let removed = self.added.lock().remove(name);
        self.callable.changed();
        if removed.is_some() {
            self.forget(name);
        }
        removed.is_some()
    }

    /// Switches a server on or off, also for later processes. Returns whether that changed something.
    pub async fn switch(&self, app: &App, known: &RegisteredServer, enabled: bool) -> Result<bool, Failure> {
        let (db, place, noun) = (&app.db, place(app), SwitchNoun::McpServer);
        let switched = match enabled == known.server.enabled {
            true => store::kernel::workspace_switches::delete(db, &place, noun, &known.name).await,
            false => store::kernel::workspace_switches::update(db, &place, noun, &known.name, enabled, app.now()).await,
        };
        // Also if it failed: it may have been done.
        self.callable.changed();
        switched?;
        if !enabled {
            self.disconnect(&known.name);
        }
        Ok(known.is_enabled != enabled)
    }

    /// Makes the connections of a server again, without a pause after earlier failures. If it has none, one is made.
    pub async fn restart(
        &self,
        app: &App,
        known: &RegisteredServer,
        index: Option<usize>,
    ) -> Result<Restarted, RestartSkipped> {
        use ostler_protocol::mcp::states::ConnectionState::Connecting;
        if !known.is_enabled {
            return Err(RestartSkipped::Disabled);
        }
        let connections = self.connections(&known.name);
        if connections.iter().any(|connection| connection.view.state == Connecting) {
            return Err(RestartSkipped::InFlight);
        }
        if self.would_refuse(&known.name) {
            return Err(RestartSkipped::BudgetWouldExceed);
        }
        self.backoffs.reset(&known.name);
        if connections.is_empty() {
            let began = tokio::time::Instant::now();
            let lease = self.lease(app, known, "").await.map_err(|_| RestartSkipped::BudgetWouldExceed)?;
            return Ok(vec![(0, lease.ready().await.map(|_| began.elapsed()))]);
        }
        let restarts = self.restart_connections(app, known, index).await;
        Ok(restarts.into_iter().map(|restart| (restart.index, restart.outcome)).collect())
    }
}

/// The tools of the workspace that are switched off, by the names under which agents call them.
pub async fn disabled_tools(app: &App) -> Result<BTreeSet<String>, Failure> {
    let switches = store::kernel::workspace_switches::list(&app.db, &place(app), SwitchNoun::Tool).await?;
    Ok(switches.into_iter().filter(|(_, enabled)| !enabled).map(|(name, _)| name).collect())
}

/// Switches a tool on or off, for agents that are started later. Returns whether that changed something.
pub async fn switch_tool(app: &App, name: &str, enabled: bool) -> Result<bool, Failure> {
    let (db, place, callable) = (&app.db, place(app), &Mcp::of(app).callable);
    if enabled {
        let deleted = store::kernel::workspace_switches::delete(db, &place, SwitchNoun::Tool, name).await;
        callable.changed();
        return Ok(deleted?);
    }
    let disabled = disabled_tools(app).await?;
    if disabled.len() >= DISABLED_TOOLS_MAX && !disabled.contains(name) {
        let message = format!("at most {DISABLED_TOOLS_MAX} tools of a workspace can be switched off");
        return Err(Failure::rule(Rule::ToolLimit, message));
    }
    let updated = store::kernel::workspace_switches::update(db, &place, SwitchNoun::Tool, name, false, app.now()).await;
    callable.changed();
    Ok(updated?)
}
