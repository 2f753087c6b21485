//! What a dialect registers with the engine. The program that serves composes the dialects; the engine knows none of them.

mod dialects;
mod failures;
mod gate;
mod holdings;
mod metrics;
mod notices;
mod retention;
mod states;
mod topics;

use std::{collections::BTreeSet, sync::Arc};

use axum::routing::MethodRouter;
use futures_util::future::BoxFuture;
use ostler_protocol::{
    Failure, Timestamp,
    capabilities::{Capability, ClientTerms, Toggle},
    ids::AgentId,
    json::value_of,
    kernel::{commands::Command, conversation::HistoryAttachment},
};
use ostler_store::Db;
use serde::Serialize;
use serde_json::Value;
use utoipa::{
    ToSchema,
    openapi::{RefOr, Schema, security::SecurityScheme},
};

use crate::{
    app::App,
    auth::{Access, Principal, TokenKind},
    config::{Config, Section, SectionType},
    net::{api_router::ApiRouter, shapes::Shapes},
    tools::ToolSource,
};

pub use crate::metrics::Samples;
pub use dialects::Dialects;
pub use failures::{FailureEncoder, PROBLEM_JSON, encoded};
pub(crate) use gate::SharedPaths;
pub use gate::{GateRules, RateRules, TierLimit};
pub use holdings::{Backup, ConfiguredPlace, Erasure, Holding, Location, Retention};
pub use metrics::Metric;
pub(crate) use metrics::MetricRead;
pub use notices::PersonNotice;
pub(crate) use notices::{NotifyPerson, PendingNotices};
pub use ostler_store::wakeups::LegacyWord;
pub use retention::{ListRemovable, Ownership, Removable, RemovedItems, RetentionScope, RetentionStep};
pub use states::States;
pub use topics::Topic;

type Worker = Arc<dyn Fn(App) -> BoxFuture<'static, ()> + Send + Sync>;
type Chore = Arc<dyn Fn(App) -> BoxFuture<'static, Result<(), Failure>> + Send + Sync>;
type Count = Arc<dyn Fn(App) -> BoxFuture<'static, Result<Value, Failure>> + Send + Sync>;
type LiveToggles = Arc<dyn Fn(App) -> BoxFuture<'static, Vec<Toggle>> + Send + Sync>;
type Opener = Arc<dyn Fn(Opening) -> BoxFuture<'static, Result<States, Failure>> + Send + Sync>;
type Pictures = Arc<dyn Fn(App, Command) -> BoxFuture<'static, Result<Vec<HistoryAttachment>, Failure>> + Send + Sync>;
type ProfileOf = Arc<dyn Fn(App, AgentId) -> BoxFuture<'static, Result<Option<String>, Failure>> + Send + Sync>;

type GrantedScopes =
    Arc<dyn Fn(App, AgentId, String) -> BoxFuture<'static, Result<BTreeSet<String>, Failure>> + Send + Sync>;

/// Everything that the engine needs to know of a dialect.
#[derive(Clone)]
pub struct Dialect {
    pub name: &'static str,
    pub(crate) routes: fn() -> ApiRouter<App>,
    pub(crate) undocumented: Vec<UndocumentedRoute>,
    pub(crate) unknown_paths: &'static [&'static str],
    pub(crate) failures: FailureEncoder,
    pub(crate) gate: Option<&'static GateRules>,
    pub(crate) shared_paths: Option<SharedPaths>,
    pub(crate) shapes: Option<Shapes>,
    pub(crate) security: Vec<DialectSecurity>,
    pub(crate) tokens: Vec<TokenKind>,
    pub(crate) sections: Vec<SectionType>,
    pub(crate) capabilities: Vec<&'static [Capability]>,
    pub(crate) toggles: fn(&Config) -> Vec<Toggle>,
    pub(crate) client_terms: Option<fn(&Config) -> ClientTerms>,
    pub(crate) operator_token: Option<&'static str>,
    pub(crate) live_toggles: Option<LiveToggles>,
    pub(crate) open: Option<Opener>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) chores: Vec<(&'static str, Chore)>,
    pub(crate) user_chores: Vec<(&'static str, Chore)>,
    pub(crate) topics: Vec<Topic>,
    pub(crate) before_listening: Option<Chore>,
    pub(crate) readiness: Vec<ReadinessSection>,
    pub(crate) deep_health: Option<DeepHealth>,
    pub(crate) metrics: Vec<Metric>,
    pub(crate) hosts: Option<fn(&App, &str) -> bool>,
    pub(crate) workspace_tenant: Option<fn(&Config) -> String>,
    pub(crate) mcp_tools: Option<fn(&Config) -> Vec<String>>,
    pub(crate) profile_of_agent: Option<ProfileOf>,
    pub(crate) granted_scopes: Option<GrantedScopes>,
    pub(crate) pending_notices: Option<PendingNotices>,
    pub(crate) notify_person: Option<NotifyPerson>,
    pub(crate) tool_sources: Vec<Arc<dyn ToolSource>>,
    pub(crate) pictures: Option<Pictures>,
    pub(crate) holdings: &'static [Holding],
    pub(crate) retention: Vec<RetentionStep>,
}

/// A `GET` that is not an operation of the OpenAPI document, such as a WebSocket.
#[derive(Clone)]
pub(crate) struct UndocumentedRoute {
    pub path: &'static str,
    pub access: Access,
    pub handler: MethodRouter<App>,
}

/// A way to prove who calls, other than a token of ours.
#[derive(Clone)]
pub(crate) struct DialectSecurity {
    pub name: &'static str,
    pub access: Access,
    pub scheme: fn() -> SecurityScheme,
}

/// A member of the readiness response.
#[derive(Clone, Copy)]
pub(crate) struct ReadinessSection {
    pub name: &'static str,
    pub read: fn(&App) -> Value,
    pub schemas: fn(&mut Vec<(String, RefOr<Schema>)>),
    pub schema_name: fn() -> String,
}

/// Members of the deep health response.
#[derive(Clone)]
pub(crate) struct DeepHealth {
    pub count: Count,
    pub schema: fn() -> RefOr<Schema>,
}

/// What a dialect opens its state with, before the server accepts requests.
pub struct Opening {
    pub db: Db,
    pub config: Config,
    /// The machine's wall clock.
    pub wall: Timestamp,
}

impl Dialect {
    /// A dialect with nothing but a name. Its failures are plain problems of RFC 9457.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            routes: ApiRouter::new,
            undocumented: vec![],
            unknown_paths: &[],
            failures: FailureEncoder::PLAIN,
            gate: None,
            shared_paths: None,
            shapes: None,
            security: vec![],
            tokens: vec![],
            sections: vec![],
            capabilities: vec![],
            toggles: |_| vec![],
            client_terms: None,
            operator_token: None,
            live_toggles: None,
            open: None,
            workers: vec![],
            chores: vec![],
            user_chores: vec![],
            topics: vec![],
            before_listening: None,
            readiness: vec![],
            deep_health: None,
            metrics: vec![],
            hosts: None,
            workspace_tenant: None,
            mcp_tools: None,
            profile_of_agent: None,
            granted_scopes: None,
            pending_notices: None,
            notify_person: None,
            tool_sources: vec![],
            pictures: None,
            holdings: &[],
            retention: vec![],
        }
    }

    /// The operations of the OpenAPI document. Each declares its access as `security`; one that declares none is closed.
    pub fn routes(mut self, routes: fn() -> ApiRouter<App>) -> Self {
        self.routes = routes;
        self
    }

    /// A `GET` that is not in the document, with its access.
    pub fn route(mut self, path: &'static str, access: Access, handler: MethodRouter<App>) -> Self {
        self.undocumented.push(UndocumentedRoute { path, access, handler });
        self
    }

    /// Paths without an operation that belong to the dialect all the same: requests to them get 404, encoded as the failures of its
    /// routes are. Its clients call operations that other servers of their protocol have.
    pub fn unknown_paths(mut self, paths: &'static [&'static str]) -> Self {
        self.unknown_paths = paths;
        self
    }

    /// What the types of its requests cannot express in the OpenAPI document.
    pub fn shapes(mut self, shapes: Shapes) -> Self {
        self.shapes = Some(shapes);
        self
    }

    /// How failures of its routes are encoded.
    pub fn failures(mut self, failures: FailureEncoder) -> Self {
        self.failures = failures;
        self
    }

    /// Hosts, headers of pages and rate limits of its routes.
    pub fn gate(mut self, rules: &'static GateRules) -> Self {
        self.gate = Some(rules);
        self
    }

    /// Paths of the engine that its clients call too, and the encoding of their failures as `T`. It must have what the engine's
    /// own clients read. The gate's rejections (401 and 403) are encoded as on the dialect's own paths.
    pub fn shared_paths<T: ToSchema>(mut self, paths: &'static [&'static str], failures: FailureEncoder) -> Self {
        self.shared_paths = Some(SharedPaths { paths, failures, schema: T::schema });
        self
    }

    /// A security scheme that its operations may declare instead of `token`, and the access that it grants.
    pub fn security(mut self, name: &'static str, access: Access, scheme: fn() -> SecurityScheme) -> Self {
        self.security.push(DialectSecurity { name, access, scheme });
        self
    }

    /// A kind of token that begins with `name` after our own prefix, and how its caller is found by the token's hash.
    pub fn token<F>(
        mut self,
        name: &'static str,
        find: impl Fn(Db, String, Timestamp) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Result<Option<(Principal, Option<Timestamp>)>, Failure>> + Send + 'static,
    {
        self.tokens.push(TokenKind { name, find: Arc::new(move |db, hash, now| Box::pin(find(db, hash, now))) });
        self
    }

    /// A section of the configuration.
    pub fn section<T: Section>(mut self) -> Self {
        self.sections.push(SectionType::of::<T>());
        self
    }

    /// Features that it offers to clients. A dialect with many has several tables.
    pub fn capabilities(mut self, rows: &'static [Capability]) -> Self {
        self.capabilities.push(rows);
        self
    }

    /// Which of the toggles that its capabilities depend on are on, beside those of the engine.
    pub fn toggles(mut self, toggles: fn(&Config) -> Vec<Toggle>) -> Self {
        self.toggles = toggles;
        self
    }

    /// What its clients have to know before they attach, as part of the capabilities. One dialect of a server states it.
    pub fn client_terms(mut self, terms: fn(&Config) -> ClientTerms) -> Self {
        self.client_terms = Some(terms);
        self
    }

    /// A variable that can hold a token of the operator, beside the one in the data directory.
    pub fn operator_token(mut self, variable: &'static str) -> Self {
        self.operator_token = Some(variable);
        self
    }

    /// Toggles that depend on more than the configuration, such as on what a backend profile runs now. Read for each request of the
    /// capabilities, so it must be cheap.
    pub fn live_toggles<F>(mut self, toggles: impl Fn(App) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Vec<Toggle>> + Send + 'static,
    {
        self.live_toggles = Some(Arc::new(move |app| Box::pin(toggles(app))));
        self
    }

    /// Opens its state when the server starts. Handlers and workers get it with [`App::state`].
    pub fn open<F>(mut self, open: impl Fn(Opening) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<States, Failure>> + Send + 'static,
    {
        self.open = Some(Arc::new(move |opening| Box::pin(open(opening))));
        self
    }

    /// Work that continues for as long as the server runs. It ends by itself when the server stops.
    pub fn worker<F>(mut self, work: impl Fn(App) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.workers.push(Arc::new(move |app| Box::pin(work(app))));
        self
    }

    /// Work that is done every few minutes. Two servers may do it at once, and a failure is retried in the next round.
    pub fn chore<F>(mut self, what: &'static str, chore: impl Fn(App) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.chores.push((what, boxed(chore)));
        self
    }

    /// A chore that is also done as soon as a user is removed.
    pub fn user_chore<F>(mut self, what: &'static str, chore: impl Fn(App) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.user_chores.push((what, boxed(chore)));
        self
    }

    /// A topic for which servers of one store wake each other.
    pub fn topic(mut self, topic: Topic) -> Self {
        self.topics.push(topic);
        self
    }

    /// Runs each time this server starts to receive wake-ups of the others, before it counts as connected to them.
    pub fn before_listening<F>(mut self, chore: impl Fn(App) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<(), Failure>> + Send + 'static,
    {
        self.before_listening = Some(boxed(chore));
        self
    }

    /// A member of `GET /health/readiness`, and of its schema in the document.
    pub fn readiness<T: ToSchema>(mut self, name: &'static str, read: fn(&App) -> Value) -> Self {
        let schema_name = || T::name().into_owned();
        let schemas = |schemas: &mut Vec<_>| {
            schemas.push((T::name().into_owned(), T::schema()));
            T::schemas(schemas);
        };
        self.readiness.push(ReadinessSection { name, read, schemas, schema_name });
        self
    }

    /// Members that `GET /health?deep=1` shows to every caller. If they cannot be read, the server is `degraded` there.
    pub fn deep_health<T, F>(mut self, count: impl Fn(App) -> F + Send + Sync + 'static) -> Self
    where
        T: Serialize + ToSchema,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let count: Count = Arc::new(move |app| {
            let counted = count(app);
            Box::pin(async move { counted.await.map(|counts| value_of(&counts)) })
        });
        self.deep_health = Some(DeepHealth { count, schema: T::schema });
        self
    }

    pub fn metric(mut self, metric: Metric) -> Self {
        self.metrics.push(metric);
        self
    }

    /// Host names under which its anonymous routes respond, beside the server's own.
    pub fn hosts(mut self, is_own: fn(&App, &str) -> bool) -> Self {
        self.hosts = Some(is_own);
        self
    }

    /// The tenant whose runs may work in the workspace that the server is bound to.
    pub fn workspace_tenant(mut self, tenant_of: fn(&Config) -> String) -> Self {
        self.workspace_tenant = Some(tenant_of);
        self
    }

    /// The tools of configured MCP servers that the operator offers to users' runs, by their names. Runs in the workspace that the
    /// server is bound to get all of them.
    pub fn mcp_tools(mut self, tools_of: fn(&Config) -> Vec<String>) -> Self {
        self.mcp_tools = Some(tools_of);
        self
    }

    /// The backend profile of an agent, for runs that name an agent.
    pub fn profile_of_agent<F>(mut self, find: impl Fn(App, AgentId) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Option<String>, Failure>> + Send + 'static,
    {
        self.profile_of_agent = Some(Arc::new(move |app, agent_id| Box::pin(find(app, agent_id))));
        self
    }

    /// The scopes that a user has granted to an agent and that are in force now, for runs that name an agent.
    pub fn granted_scopes<F>(mut self, read: impl Fn(App, AgentId, String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<BTreeSet<String>, Failure>> + Send + 'static,
    {
        self.granted_scopes = Some(Arc::new(move |app, agent_id, user_id| Box::pin(read(app, agent_id, user_id))));
        self
    }

    /// What waits for a user in its nouns. Call [`Dialects::notify_person`] when something is added.
    pub fn pending_notices<F>(mut self, list: impl Fn(App, String) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Vec<PersonNotice>, Failure>> + Send + 'static,
    {
        self.pending_notices = Some(Arc::new(move |app, user_id| Box::pin(list(app, user_id))));
        self
    }

    /// Sends the user's connections what is pending, because something was added. It must not wait.
    pub fn notify_person(mut self, notify: fn(&App, &str)) -> Self {
        self.notify_person = Some(notify);
        self
    }

    /// Tools that it offers to agents.
    pub fn tool_source(mut self, source: impl ToolSource) -> Self {
        self.tool_sources.push(Arc::new(source));
        self
    }

    /// The pictures of a command's message, as a backend can fetch them.
    pub fn pictures<F>(mut self, find: impl Fn(App, Command) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<Vec<HistoryAttachment>, Failure>> + Send + 'static,
    {
        self.pictures = Some(Arc::new(move |app, command| Box::pin(find(app, command))));
        self
    }

    /// Its tables and files, and what backup, retention and erasure do with each.
    pub fn holdings(mut self, holdings: &'static [Holding]) -> Self {
        self.holdings = holdings;
        self
    }

    /// How one of its nouns is removed when it is older than its limit.
    pub fn retention(mut self, step: RetentionStep) -> Self {
        self.retention.push(step);
        self
    }
}

fn boxed<F>(chore: impl Fn(App) -> F + Send + Sync + 'static) -> Chore
where
    F: Future<Output = Result<(), Failure>> + Send + 'static,
{
    Arc::new(move |app| Box::pin(chore(app)))
}
