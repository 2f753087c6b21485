//! The hosts of a database, and which of them takes the next connection. The host that took the last one is tried first; after a
//! failover that fails at once, and the others are tried in the order of the URL.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use sqlx::{ConnectOptions, Connection, PgConnection, Row, postgres::PgConnectOptions};
use tokio::time::timeout;

use super::address::{DatabaseAddress, HostState, Purpose, SessionAttributes};
use crate::error::{StoreError, StoreFault};

/// For a database with one host: there is nothing else to try.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For each of several hosts. One that has lost its power does not answer at all.
const HOST_TIMEOUT: Duration = Duration::from_secs(2);
/// Standbys are read-only, and an operator can make a primary read-only as well.
const STATE: &str =
    "SELECT pg_is_in_recovery() AS is_in_recovery, current_setting('transaction_read_only') = 'on' AS is_read_only";

/// The hosts of one database, cheap to clone. All clones remember the same last host.
#[derive(Clone)]
pub(crate) struct Hosts(Arc<HostList>);

struct HostList {
    /// One for each host. There is at least one.
    options: Vec<PgConnectOptions>,
    attributes: SessionAttributes,
    /// The index of the host that took the last connection.
    last_good: AtomicUsize,
}

impl Hosts {
    pub(crate) fn new(url: &str, purpose: Purpose) -> Result<Self, StoreError> {
        let address =
            DatabaseAddress::parse(url, purpose).map_err(|problem| sqlx::Error::Configuration(problem.into()))?;
        let options = address.urls.iter().map(|url| options_of(url)).collect::<Result<Vec<_>, _>>()?;
        let inner = HostList { options, attributes: address.attributes, last_good: AtomicUsize::new(0) };
        Ok(Self(Arc::new(inner)))
    }

    /// The options of a host that takes connections at the moment.
    pub(crate) async fn find(&self) -> Result<PgConnectOptions, StoreError> {
        let HostList { options, attributes, .. } = &*self.0;
        if let ([only], SessionAttributes::Any) = (&options[..], attributes) {
            return Ok(only.clone());
        }
        let (connection, index) = self.connect().await?;
        // The answer is what counts; the host may end the connection as it likes.
        let _ = connection.close().await;
        Ok(options[index].clone())
    }

    /// A connection, and the index of its host. If no host takes one, the error is that of the host that was tried last.
    async fn connect(&self) -> Result<(PgConnection, usize), StoreError> {
        let HostList { options, attributes, last_good } = &*self.0;
        let limit = if options.len() == 1 { CONNECT_TIMEOUT } else { HOST_TIMEOUT };
        let mut failed = StoreError::Fault(StoreFault::Unreachable);
        for required in attributes.rounds() {
            for index in order(last_good.load(Relaxed), options.len()) {
                failed = match try_host(&options[index], *required, limit).await {
                    Ok(connection) => {
                        last_good.store(index, Relaxed);
                        return Ok((connection, index));
                    }
                    // The same user and password would be refused again.
                    Err(error) if StoreFault::of(&error) == Some(StoreFault::Denied) => return Err(error),
                    Err(error) => error,
                };
            }
        }
        Err(failed)
    }
}

fn options_of(url: &str) -> Result<PgConnectOptions, sqlx::Error> {
    let options: PgConnectOptions = url.parse()?;
    let options = options.application_name("ostler").disable_statement_logging();
    Ok(options.options([
        // Every statement has its index. By its statistics Postgres would walk a whole table when the index was large once.
        // A scan that remains, of a table of a few rows, then counts as expensive enough to compile: 90 ms instead of 1 ms.
        ("enable_seqscan", "off"),
        ("jit", "off"),
        // A statement is planned once for each connection. By itself Postgres plans a page of a list again for every call,
        // because it takes a `LIMIT` that it does not know for a tenth of the table.
        ("plan_cache_mode", "force_generic_plan"),
        // The planner does not know the limit that is bound to a list, expects a tenth of the table, and starts processes to read one
        // page: 14 ms instead of 0.3 ms.
        ("max_parallel_workers_per_gather", "0"),
        // Plans made while tables are empty would keep to what is best for empty tables.
        ("enable_hashjoin", "off"),
        ("enable_mergejoin", "off"),
    ]))
}

/// The indexes of all hosts, the last good one first.
fn order(last_good: usize, count: usize) -> impl Iterator<Item = usize> {
    std::iter::once(last_good).chain((0..count).filter(move |index| *index != last_good))
}

async fn try_host(
    options: &PgConnectOptions,
    required: SessionAttributes,
    limit: Duration,
) -> Result<PgConnection, StoreError> {
    let connecting = async {
        let mut connection = PgConnection::connect_with(options).await?;
        if required == SessionAttributes::Any {
            return Ok(Some(connection));
        }
        let row = sqlx::query(STATE).fetch_one(&mut connection).await?;
        let state =
            HostState { is_in_recovery: row.try_get("is_in_recovery")?, is_read_only: row.try_get("is_read_only")? };
        if required.accepts(state) {
            return Ok(Some(connection));
        }
        let _ = connection.close().await;
        Ok::<_, sqlx::Error>(None)
    };
    let connected = within(limit, "no connection", connecting).await?;
    connected.ok_or(StoreError::Fault(StoreFault::ReadOnly))
}

/// Boxed, as the statements of [`super::connections`] are: every crate that awaits a function of this one would compile the whole
/// driver again.
pub(crate) fn connect(hosts: &Hosts) -> BoxFuture<'_, Result<PgConnection, StoreError>> {
    Box::pin(async move { Ok(hosts.connect().await?.0) })
}

/// What the database answers, or that it did not.
pub(crate) async fn within<T>(
    limit: Duration,
    otherwise: &str,
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    timeout(limit, work).await.unwrap_or_else(|_| Err(late(otherwise, limit)))
}

pub(super) fn late(what: &str, after: Duration) -> sqlx::Error {
    let message = format!("{what} within {} s", after.as_secs());
    sqlx::Error::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_good_host_is_tried_first_and_the_others_in_their_order() {
        assert_eq!(order(0, 1).collect::<Vec<_>>(), [0]);
        assert_eq!(order(2, 4).collect::<Vec<_>>(), [2, 0, 1, 3]);
    }

    #[tokio::test]
    async fn the_next_host_is_tried_when_one_refuses_connections() {
        // Both ports were free a moment ago, and nothing listens at them.
        let free = || std::net::TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap();
        let url = format!("postgres://me:planted@{},{}/x", free(), free());
        let hosts = Hosts::new(&url, Purpose::Write).unwrap();
        let error = hosts.find().await.expect_err("nothing listens");
        assert!(error.is_refused() && !error.to_string().contains("planted"), "{error}");
        let problem = Hosts::new("postgres://me:planted@h1,,h2/x", Purpose::Write).err().expect("it is refused");
        assert!(!problem.to_string().contains("planted"), "{problem}");
    }
}
