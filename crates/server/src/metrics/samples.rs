//! The samples of a metric, as Prometheus reads them.

use std::fmt::{Display, Write as _};

/// Writes the samples of one metric.
pub struct Samples<'a> {
    pub(crate) name: &'a str,
    pub(crate) out: &'a mut String,
}

impl Samples<'_> {
    pub fn add(&mut self, value: i64) {
        let _ = writeln!(self.out, "{} {value}", self.name);
    }

    pub fn add_labelled(&mut self, label: &str, label_value: &str, value: impl Display) {
        self.add_with_labels(&format!("{label}=\"{label_value}\""), value);
    }

    /// Adds a sample with several labels, as they are written: `a="1",b="2"`.
    pub(crate) fn add_with_labels(&mut self, labels: &str, value: impl Display) {
        let _ = writeln!(self.out, "{}{{{labels}}} {value}", self.name);
    }
}
