//! The dialects of one server.

use ostler_protocol::{
    Failure,
    capabilities::{self, Capability, Toggles},
};
use ostler_store::kernel::erasures::SessionTables;

use super::{Chore, Dialect, Erasure, Holding, Opening, PersonNotice, RetentionStep, States, Topic};
use crate::{
    app::App,
    auth::TokenKind,
    config::{Config, SectionType},
    holdings, metrics,
};

#[derive(Clone, Default)]
pub struct Dialects(Vec<Dialect>);

impl Dialects {
    pub fn new(dialects: impl IntoIterator<Item = Dialect>) -> Self {
        Self(dialects.into_iter().collect())
    }

    #[must_use]
    pub fn with(mut self, dialect: Dialect) -> Self {
        self.0.push(dialect);
        self
    }

    /// The dialects of this server. The engine keeps them with their states.
    pub(crate) fn of(app: &App) -> &Self {
        app.state()
    }

    pub(crate) fn iter(&self) -> std::slice::Iter<'_, Dialect> {
        self.0.iter()
    }

    /// The sections of the configuration that they own.
    pub fn sections(&self) -> Vec<SectionType> {
        self.iter().flat_map(|dialect| dialect.sections.iter().copied()).collect()
    }

    /// Every capability of a server with these dialects.
    pub fn capabilities(&self) -> impl Iterator<Item = &'static Capability> {
        capabilities::ENGINE
            .iter()
            .chain(self.iter().flat_map(|dialect| dialect.capabilities.iter().copied().flatten()))
    }

    /// The toggles that are on in a server with these dialects.
    pub fn toggles(&self, config: &Config) -> Toggles {
        let mut toggles = config.toggles();
        toggles.extend(self.iter().flat_map(|dialect| (dialect.toggles)(config)));
        toggles
    }

    /// The toggles that are on now in this server.
    pub(crate) async fn current_toggles(&self, app: &App) -> Toggles {
        let mut toggles = self.toggles(&app.config);
        for read in self.iter().filter_map(|dialect| dialect.live_toggles.as_ref()) {
            toggles.extend(read(app.clone()).await);
        }
        toggles
    }

    /// Every table and file that a server with these dialects keeps.
    pub fn holdings(&self) -> impl Iterator<Item = &'static Holding> {
        holdings::ENGINE.iter().chain(self.iter().flat_map(|dialect| dialect.holdings))
    }

    /// The tables from which the erasure of a session deletes rows.
    pub(crate) fn session_tables(&self) -> SessionTables {
        let erased = |erasure| {
            let holdings = self.holdings().filter(move |holding| holding.erasure == erasure);
            holdings.filter_map(|holding| holding.location.table()).collect()
        };
        SessionTables { by_run: erased(Erasure::OfRuns), by_session: erased(Erasure::OfSession) }
    }

    /// How their nouns are removed when they are older than their limits.
    pub fn retention_steps(&self) -> impl Iterator<Item = &RetentionStep> {
        self.iter().flat_map(|dialect| &dialect.retention)
    }

    /// Name, type, labels and meaning of every metric of a server with these dialects.
    pub fn metrics(&self) -> impl Iterator<Item = (&'static str, &'static str, &'static str, &'static str)> {
        let of_engine = metrics::ENGINE_METRICS.iter();
        let of_dialects = self.iter().flat_map(|dialect| &dialect.metrics);
        of_engine
            .map(|metric| (metric.name, metric.kind, metric.labels, metric.help))
            .chain(of_dialects.map(|metric| (metric.name, metric.kind, metric.labels, metric.help)))
    }

    pub(crate) fn tokens(&self) -> Vec<TokenKind> {
        self.iter().flat_map(|dialect| dialect.tokens.iter().cloned()).collect()
    }

    pub(crate) fn topics(&self) -> impl Iterator<Item = &Topic> {
        self.iter().flat_map(|dialect| &dialect.topics)
    }

    /// The chores of each round of housekeeping.
    pub(crate) fn chores(&self) -> Vec<(&'static str, Chore)> {
        self.iter().flat_map(|dialect| dialect.chores.iter().chain(&dialect.user_chores)).cloned().collect()
    }

    /// Opens the state of each, in their order.
    pub(crate) async fn open(&self, opening: impl Fn() -> Opening) -> Result<States, Failure> {
        let mut states = States::new();
        for open in self.iter().filter_map(|dialect| dialect.open.as_ref()) {
            states.merge(open(opening()).await?);
        }
        Ok(states)
    }

    /// The tenant of the workspace that the server is bound to.
    pub(crate) fn workspace_tenant(&self, config: &Config) -> Option<String> {
        self.iter().find_map(|dialect| dialect.workspace_tenant).map(|tenant_of| tenant_of(config))
    }

    /// The tools of configured MCP servers that users' runs are offered.
    pub(crate) fn mcp_tools(&self, config: &Config) -> Vec<String> {
        self.iter().filter_map(|dialect| dialect.mcp_tools).flat_map(|tools_of| tools_of(config)).collect()
    }

    /// Whether runs of this tenant may work in the workspace that the server is bound to.
    pub(crate) fn may_use_workspace(&self, config: &Config, tenant_id: &str) -> bool {
        self.iter().filter_map(|dialect| dialect.workspace_tenant).any(|tenant_of| tenant_of(config) == tenant_id)
    }

    /// Whether an anonymous route of a dialect responds under this host name.
    pub(crate) fn has_host(&self, app: &App, name: &str) -> bool {
        self.iter().filter_map(|dialect| dialect.hosts).any(|is_own| is_own(app, name))
    }

    /// What waits for a user in the nouns of all dialects.
    pub async fn pending_notices(app: &App, user_id: &str) -> Result<Vec<PersonNotice>, Failure> {
        let mut notices = vec![];
        for list in Self::of(app).iter().filter_map(|dialect| dialect.pending_notices.as_ref()) {
            notices.extend(list(app.clone(), user_id.to_owned()).await?);
        }
        Ok(notices)
    }

    /// Sends a user's connections what is pending, because something was added. The user who is not connected receives it later.
    pub fn notify_person(app: &App, user_id: &str) {
        Self::of(app).iter().filter_map(|dialect| dialect.notify_person).for_each(|notify| notify(app, user_id));
    }

    /// Runs the chores that follow the removal of a user. If interrupted, the next round of housekeeping runs them again.
    pub(crate) async fn after_user_removed(&self, app: &App) -> Result<(), Failure> {
        for (_, chore) in self.iter().flat_map(|dialect| &dialect.user_chores) {
            chore(app.clone()).await?;
        }
        Ok(())
    }
}
