//! Kinds of tokens that dialects add.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use ostler_protocol::{Failure, Timestamp};
use ostler_store::Db;

use crate::auth::Principal;

/// A kind of token that authenticates callers of a dialect.
#[derive(Clone)]
pub struct TokenKind {
    /// The prefix of such tokens, after our own prefix.
    pub name: &'static str,
    pub(crate) find: FindPrincipal,
}

/// Finds the caller of a token by its hash, and when the token expires. `None` if it is not valid at this time.
pub(crate) type FindPrincipal = Arc<
    dyn Fn(Db, String, Timestamp) -> BoxFuture<'static, Result<Option<(Principal, Option<Timestamp>)>, Failure>>
        + Send
        + Sync,
>;
