//! Retention: limits, sweeps and legal holds. For operators.

use bytes::Bytes;
use http::Method;
use ostler_protocol::{
    Failure,
    retention::{Hold, HoldPage, ListHolds, PlaceHold, RetentionSweep, RetentionView, SweepRetention},
};

use crate::{client::Client, path::Path, response};

impl Client {
    /// The limits in force, and what a sweep would remove.
    pub async fn retention(&self) -> Result<RetentionView, Failure> {
        self.get(Path::api(&["retention"])).await
    }

    /// Does a bounded number of steps; repeat it while there is more.
    pub async fn sweep_retention(&self, request: &SweepRetention) -> Result<RetentionSweep, Failure> {
        self.post(Path::api(&["retention", "sweeps"]), request).await
    }

    pub async fn place_hold(&self, request: &PlaceHold) -> Result<Hold, Failure> {
        self.post(Path::api(&["retention", "holds"]), request).await
    }

    pub async fn list_holds(&self, query: &ListHolds) -> Result<HoldPage, Failure> {
        self.get(Path::api(&["retention", "holds"]).query(query)?).await
    }

    /// Idempotent: the first release counts.
    pub async fn release_hold(&self, hold_id: &str) -> Result<Hold, Failure> {
        response::parse(&self.call(Method::DELETE, Path::api(&["retention", "holds", hold_id]), Bytes::new()).await?)
    }
}
