//! How a noun is removed when it is older than its limit. A dialect registers a step for each of its nouns; the engine calls
//! the steps, with pauses, and knows no dialect.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use ostler_protocol::{Failure, retention::RetentionNoun};
use ostler_store::StoreError;
pub use ostler_store::retention::{Removable, RemovedItems, RetentionScope};

use crate::app::App;

type List =
    Arc<dyn Fn(App, ListRemovable) -> BoxFuture<'static, Result<Vec<Removable>, StoreError>> + Send + Sync + 'static>;
type Remove =
    Arc<dyn Fn(App, RetentionScope, Vec<String>) -> BoxFuture<'static, Result<RemovedItems, Failure>> + Send + Sync>;

/// Whose a noun is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ownership {
    Tenant,
    /// Some of it belongs to no tenant.
    TenantOrNone,
    NoTenant,
}

/// A page of what is older than its limit.
#[derive(Clone, Debug)]
pub struct ListRemovable {
    pub scope: RetentionScope,
    pub after: Option<String>,
    pub limit: u32,
}

/// How one noun is removed.
#[derive(Clone)]
pub struct RetentionStep {
    pub noun: RetentionNoun,
    pub ownership: Ownership,
    /// The tables that rows are removed from.
    pub tables: &'static [&'static str],
    /// Whether many are removed at once. Otherwise each is removed by itself.
    pub is_bulk: bool,
    list: List,
    remove: Remove,
}

impl RetentionStep {
    /// `list` finds what is older than its limit, also what is under a hold. `remove` removes some of it, and checks in the
    /// transaction of the removal that no hold covers it.
    pub fn new<L, R>(
        noun: RetentionNoun,
        ownership: Ownership,
        list: impl Fn(App, ListRemovable) -> L + Send + Sync + 'static,
        remove: impl Fn(App, RetentionScope, Vec<String>) -> R + Send + Sync + 'static,
    ) -> Self
    where
        L: Future<Output = Result<Vec<Removable>, StoreError>> + Send + 'static,
        R: Future<Output = Result<RemovedItems, Failure>> + Send + 'static,
    {
        Self {
            noun,
            ownership,
            tables: &[],
            is_bulk: false,
            list: Arc::new(move |app, page| Box::pin(list(app, page))),
            remove: Arc::new(move |app, scope, keys| Box::pin(remove(app, scope, keys))),
        }
    }

    #[must_use]
    pub fn tables(self, tables: &'static [&'static str]) -> Self {
        Self { tables, ..self }
    }

    /// Many are removed at once.
    #[must_use]
    pub fn bulk(self) -> Self {
        Self { is_bulk: true, ..self }
    }

    pub(crate) async fn list(&self, app: &App, page: ListRemovable) -> Result<Vec<Removable>, StoreError> {
        (self.list)(app.clone(), page).await
    }

    pub(crate) async fn remove(
        &self,
        app: &App,
        scope: &RetentionScope,
        keys: &[String],
    ) -> Result<RemovedItems, Failure> {
        (self.remove)(app.clone(), scope.clone(), keys.to_vec()).await
    }
}
