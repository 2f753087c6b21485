//! Backends: which agents this server can run.

use ostler_protocol::{Failure, backends::BackendList};
use ostler_store as store;

use crate::app::{App, store_failure};

pub async fn list(app: &App) -> Result<BackendList, Failure> {
    Ok(BackendList { backends: store::backends::list(&app.db).await.map_err(store_failure)? })
}

/// Writes down what this build offers. Run once at start.
pub async fn record(db: &store::Db) -> Result<(), store::StoreError> {
    for (position, backend) in ostler_protocol::backends::built_in().iter().enumerate() {
        store::backends::insert(db, position as i64, backend).await?;
    }
    Ok(())
}
