//! A dialect of a few routes, with its own failures, one config key, one worker and one wake-up topic.

use std::sync::{Mutex, MutexGuard};

use axum::{Json, extract::State};
use http::StatusCode;
use ostler_protocol::{
    Failure, FailureKind, Rule,
    bodies::RequestBody,
    capabilities::{Capability, capability},
    failures::Problem,
};
use ostler_server::{
    app::App,
    config::{Config, Section},
    dialect::{Dialect, FailureEncoder, Metric, PROBLEM_JSON, States, Topic},
    net::{
        api_router::ApiRouter,
        extract::{Body, Caller},
        problem::Refusal,
    },
    routes,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Notify;
use utoipa::ToSchema;

const PAGES: Topic = Topic::new("pager.pages", |app, key| Pager::of(app).woken().push(key.to_owned()), |_| {}).receive(
    |app, key, frame| {
        Pager::of(app).woken().push(format!("{key}: {frame}"));
    },
);

const CAPABILITIES: &[Capability] =
    &[capability("pager", &["POST /pager/pages", "GET /pager/pages"], "Pages people on call.")];

pub(crate) fn dialect() -> Dialect {
    Dialect::new("pager")
        .routes(|| ApiRouter::new().routes(routes!(create, list)))
        .failures(FailureEncoder {
            translate: |failure| failure,
            encode,
            content_type: PROBLEM_JSON,
            schema: "PagerFailure",
        })
        .section::<PagerSection>()
        .capabilities(CAPABILITIES)
        .open(|opening| async move { Ok(States::new().with(Pager::new(opening.config.section()))) })
        .worker(run)
        .topic(PAGES)
        .readiness::<PagerReadiness>("pager", |app| json!({"prefix": Pager::of(app).config.prefix}))
        .metric(Metric::gauge("pager_pages", "Pages sent.", |app, samples| {
            samples.add(Pager::of(app).sent().len() as i64);
        }))
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PagerSection {
    /// What every page begins with.
    pub prefix: String,
}

impl Default for PagerSection {
    fn default() -> Self {
        Self { prefix: "page".into() }
    }
}

impl Section for PagerSection {
    const NAME: &'static str = "pager";

    fn problems(&self, _: &Config) -> Vec<Failure> {
        let problem = || Failure::invalid(Rule::Config, "pager.prefix is empty");
        self.prefix.is_empty().then(problem).into_iter().collect()
    }
}

pub(crate) struct Pager {
    config: PagerSection,
    waiting: Mutex<Vec<String>>,
    sent: Mutex<Vec<String>>,
    woken: Mutex<Vec<String>>,
    added: Notify,
}

impl Pager {
    fn new(config: PagerSection) -> Self {
        let (waiting, sent, woken) = Default::default();
        Self { config, waiting, sent, woken, added: Notify::new() }
    }

    fn of(app: &App) -> &Self {
        app.state()
    }

    fn sent(&self) -> MutexGuard<'_, Vec<String>> {
        self.sent.lock().unwrap()
    }

    fn woken(&self) -> MutexGuard<'_, Vec<String>> {
        self.woken.lock().unwrap()
    }
}

#[derive(Serialize, ToSchema)]
struct PagerReadiness {
    prefix: String,
}

#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct CreatePage {
    text: String,
}

impl RequestBody for CreatePage {
    const BYTES_MAX: usize = 1_000;
    const VALUES_MAX: usize = 10;
}

#[derive(Serialize, ToSchema)]
struct PageList {
    sent: Vec<String>,
    /// What other servers woke this one for.
    woken: Vec<String>,
}

#[derive(Serialize, ToSchema)]
struct PagerFailure {
    /// What went wrong, and by which rule.
    page_failed: String,
}

fn encode(problem: Problem) -> String {
    let rule = problem.details.get("rule").and_then(Value::as_str).unwrap_or("none");
    json!({"page_failed": format!("{} ({rule}): {}", problem.failure_kind, problem.message)}).to_string()
}

/// Page the person on call.
#[utoipa::path(post, path = "/pager/pages", security(("token" = ["submit"])), request_body = CreatePage,
    responses((status = 202), (status = "4XX", body = PagerFailure)))]
async fn create(State(app): State<App>, _: Caller, Body(page): Body<CreatePage>) -> Result<StatusCode, Refusal> {
    if page.text.is_empty() {
        // A dialect outside the workspace has no row in the table of rules: it names its rule as text.
        return Err(Failure::new(FailureKind::SchemaInvalid, "a page has a text").detail("rule", "page-empty").into());
    }
    let pager = Pager::of(&app);
    PAGES.wake_others(&app, &page.text);
    PAGES.send_to_others(&app, &page.text, &"frame".into());
    pager.waiting.lock().unwrap().push(page.text);
    pager.added.notify_one();
    Ok(StatusCode::ACCEPTED)
}

/// List the pages that were sent.
#[utoipa::path(get, path = "/pager/pages", security(("token" = ["browse"])),
    responses((status = 200, body = PageList), (status = "4XX", body = PagerFailure)))]
async fn list(State(app): State<App>, _: Caller) -> Json<PageList> {
    let pager = Pager::of(&app);
    Json(PageList { sent: pager.sent().clone(), woken: pager.woken().clone() })
}

/// Sends what waits.
async fn run(app: App) {
    let pager = Pager::of(&app);
    loop {
        tokio::select! {
            () = pager.added.notified() => {}
            () = app.drained() => return,
        }
        let waiting = std::mem::take(&mut *pager.waiting.lock().unwrap());
        let prefix = &pager.config.prefix;
        pager.sent().extend(waiting.into_iter().map(|text| format!("{prefix}: {text}")));
    }
}
