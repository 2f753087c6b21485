//! Returning the free space of the store to the disk, offline.

use ostler_protocol::{Failure, Rule};
use ostler_store::{
    StoreConfig, StoreError,
    retention::space::{self, Compacted},
};

use crate::{config::Config, dialect::Dialects, server::not_opened, service::retention};

/// Rewrites the store without its free space. On SQLite this fails while a server has the store open.
pub async fn compact(config: &Config, dialects: &Dialects) -> Result<Compacted, Failure> {
    let store = config.store()?;
    if let StoreConfig::Sqlite { file, .. } = &store
        && !file.exists()
    {
        return Err(Failure::rule(Rule::StoreAbsent, format!("there is no store at {}", file.display())));
    }
    space::compact(&store, &retention::tables(dialects)).await.map_err(|error| match error {
        StoreError::Locked(_) => Failure::rule(Rule::StoreCompacted, "the server of this store is running"),
        error => not_opened(error, &store),
    })
}
