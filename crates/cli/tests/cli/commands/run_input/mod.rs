//! The commands of the run input dialect.

mod automations;
mod calendar;
mod zones;
