//! Runners as Kubernetes Jobs: one Job for each order, whatever is lost on the way, and the cluster's own account of how runners end.

mod cancel;
pub(crate) mod cluster;
mod creating;
mod ending;
mod extras;
mod faults;
mod logs;
mod lookups;
mod reasons;
mod rights;
mod secrets;
mod starts;
mod storage;
mod views;
