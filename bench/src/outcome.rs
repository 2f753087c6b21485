//! The result of a measurement.

/// Whatever goes wrong ends the run with a message.
pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;
