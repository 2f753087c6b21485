//! The manager dialect: runs and their commands, sessions, runners, and what operators manage.

mod backends;
mod callers;
mod capabilities;
mod commands;
mod conversation;
pub(crate) mod events;
mod health;
mod leases;
mod permissions;
mod provider_profiles;
mod retention;
mod runner_jobs;
mod runners;
mod runs;
mod session_storage;
mod sessions;
mod tokens;
mod tools;
mod usage;
mod users;
