//! The commands of the run input dialect: automations and the caller's calendar.

pub(crate) mod automations;
pub(crate) mod calendar;
mod job_flags;
