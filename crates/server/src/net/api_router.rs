//! Routes that are described by the attributes of their handlers. The descriptions are functions until a client reads the
//! document: all of it in memory would take as much as the rest of an idle server. `utoipa-axum` makes the whole document when
//! routes are added, so this uses the same hidden traits of `utoipa` directly.

use axum::{
    Router,
    handler::Handler,
    routing::{MethodFilter, MethodRouter},
};
use http::Method;
use utoipa::{
    __dev::{SchemaReferences, Tags},
    openapi::{HttpMethod, OpenApi, RefOr, Schema, path::Operation},
};
use utoipa_axum::{PathItemExt, router::OpenApiRouter};

#[doc(hidden)]
pub use utoipa_axum::paste;

/// The description of one handler, made when it is needed.
#[derive(Clone, Copy)]
pub struct DescribedRoute {
    path: fn() -> String,
    methods: fn() -> Vec<HttpMethod>,
    operation: fn() -> Operation,
    tags: fn() -> Vec<&'static str>,
    schemas: fn(&mut Vec<(String, RefOr<Schema>)>),
}

impl DescribedRoute {
    /// `T` is the type that `#[utoipa::path]` makes beside a handler.
    pub fn of<T: utoipa::Path + Tags<'static> + SchemaReferences>() -> Self {
        Self { path: T::path, methods: T::methods, operation: T::operation, tags: T::tags, schemas: T::schemas }
    }

    pub(crate) fn path(&self) -> String {
        (self.path)()
    }

    pub(crate) fn methods(&self) -> Vec<Method> {
        (self.methods)().iter().map(method).collect()
    }

    pub(crate) fn operation(&self) -> Operation {
        let mut operation = (self.operation)();
        let tags = (self.tags)();
        if !tags.is_empty() {
            operation.tags.get_or_insert_default().extend(tags.into_iter().map(str::to_owned));
        }
        operation
    }

    fn filters(&self) -> Vec<MethodFilter> {
        (self.methods)().iter().map(PathItemExt::to_method_filter).collect()
    }
}

/// The handlers of one path, with their descriptions. Made by [`routes!`](crate::routes).
pub struct PathHandlers<S> {
    described: Vec<DescribedRoute>,
    handlers: MethodRouter<S>,
}

impl<S: Clone + Send + Sync + 'static> PathHandlers<S> {
    pub fn new() -> Self {
        Self { described: vec![], handlers: MethodRouter::new() }
    }

    pub fn with<H: Handler<T, S>, T: 'static>(mut self, described: DescribedRoute, handler: H) -> Self {
        for filter in described.filters() {
            self.handlers = self.handlers.on(filter, handler.clone());
        }
        self.described.push(described);
        self
    }
}

impl<S: Clone + Send + Sync + 'static> Default for PathHandlers<S> {
    fn default() -> Self {
        Self::new()
    }
}

/// A router that knows the descriptions of its routes.
pub struct ApiRouter<S> {
    router: Router<S>,
    described: Vec<DescribedRoute>,
}

impl<S: Clone + Send + Sync + 'static> ApiRouter<S> {
    pub fn new() -> Self {
        Self { router: Router::new(), described: vec![] }
    }

    /// Adds the handlers of one path.
    pub fn routes(mut self, added: PathHandlers<S>) -> Self {
        let PathHandlers { described, handlers } = added;
        let mut paths: Vec<_> = described.iter().map(DescribedRoute::path).collect();
        paths.sort();
        paths.dedup();
        for path in paths {
            self.router = self.router.route(&path, handlers.clone());
        }
        self.described.extend(described);
        self
    }

    pub fn merge(mut self, other: Self) -> Self {
        self.router = self.router.merge(other.router);
        self.described.extend(other.described);
        self
    }

    /// Changes the router and leaves the descriptions, for layers.
    pub fn map(mut self, change: impl FnOnce(Router<S>) -> Router<S>) -> Self {
        self.router = change(self.router);
        self
    }

    pub(crate) fn into_parts(self) -> (Router<S>, Vec<DescribedRoute>) {
        (self.router, self.described)
    }
}

impl<S: Clone + Send + Sync + 'static> Default for ApiRouter<S> {
    fn default() -> Self {
        Self::new()
    }
}

/// The handlers of one path as the argument of [`ApiRouter::routes`]. Each has the attribute `#[utoipa::path]`.
#[macro_export]
macro_rules! routes {
    ($($($segment:ident)::+),+ $(,)?) => {
        $crate::net::api_router::PathHandlers::new()
            $(.with($crate::described_route!([] $($segment)+), $($segment)::+))+
    };
}

/// The description of a handler, by the segments of its path.
#[doc(hidden)]
#[macro_export]
macro_rules! described_route {
    ([$($module:ident)*] $handler:ident) => {
        $crate::net::api_router::paste! {
            $crate::net::api_router::DescribedRoute::of::<$($module::)* [<__path_ $handler>]>()
        }
    };
    ([$($module:ident)*] $next:ident $($rest:ident)+) => {
        $crate::described_route!([$($module)* $next] $($rest)+)
    };
}

/// The document of these routes.
pub(crate) fn document(routes: &[DescribedRoute]) -> OpenApi {
    let mut document = OpenApiRouter::<()>::new().into_openapi();
    let mut schemas = vec![];
    for route in routes {
        document.paths.add_path_operation(route.path(), (route.methods)(), route.operation());
        (route.schemas)(&mut schemas);
        document.components.get_or_insert_default().schemas.extend(schemas.drain(..));
    }
    document
}

fn method(method: &HttpMethod) -> Method {
    match method {
        HttpMethod::Get => Method::GET,
        HttpMethod::Put => Method::PUT,
        HttpMethod::Post => Method::POST,
        HttpMethod::Delete => Method::DELETE,
        HttpMethod::Options => Method::OPTIONS,
        HttpMethod::Head => Method::HEAD,
        HttpMethod::Patch => Method::PATCH,
        HttpMethod::Trace => Method::TRACE,
    }
}
