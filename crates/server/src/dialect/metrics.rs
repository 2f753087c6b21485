//! Metrics of a dialect.

use futures_util::future::BoxFuture;

use crate::{app::App, metrics::Samples};

/// A metric, and how its current samples are read.
#[derive(Clone, Copy)]
pub struct Metric {
    pub name: &'static str,
    /// `counter` or `gauge`.
    pub kind: &'static str,
    /// The names of its labels, separated by commas.
    pub labels: &'static str,
    pub help: &'static str,
    pub(crate) read: MetricRead,
}

#[derive(Clone, Copy)]
pub(crate) enum MetricRead {
    Memory(fn(&App, &mut Samples)),
    /// From the store. `None` leaves the metric without a sample.
    Store(fn(App) -> BoxFuture<'static, Option<i64>>),
}

impl Metric {
    pub const fn counter(
        name: &'static str,
        labels: &'static str,
        help: &'static str,
        read: fn(&App, &mut Samples),
    ) -> Self {
        Self { name, kind: "counter", labels, help, read: MetricRead::Memory(read) }
    }

    pub const fn gauge(name: &'static str, help: &'static str, read: fn(&App, &mut Samples)) -> Self {
        Self { name, kind: "gauge", labels: "", help, read: MetricRead::Memory(read) }
    }

    /// A gauge that the store counts. Left out while the store does not respond.
    pub const fn stored(
        name: &'static str,
        help: &'static str,
        read: fn(App) -> BoxFuture<'static, Option<i64>>,
    ) -> Self {
        Self { name, kind: "gauge", labels: "", help, read: MetricRead::Store(read) }
    }
}
