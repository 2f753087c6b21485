//! The program `ostler`, run as people run it: real processes, real signals, real disks, on both engines.

#![allow(clippy::unwrap_used, reason = "a test program: a failed unwrap is a failed test")]
#![allow(clippy::disallowed_methods, reason = "real processes live in real time")]

mod agents;
mod agui;
mod backup;
mod browser;
mod bucket;
mod codex;
mod consent;
mod disk_full;
mod drain;
mod git_server;
mod guard;
mod home;
mod http;
mod inn;
mod json_log;
mod killed_replica;
mod killed_runner;
mod killed_server;
mod killed_turn;
mod launcher;
mod live_ps;
mod live_run;
mod live_trace;
mod loop_mount;
mod mesh;
mod model;
mod openssl;
mod pki;
mod played;
mod power_cut;
mod preflight;
mod process;
mod profiles;
mod published;
mod qwen;
mod readme;
mod reads;
mod relay;
mod runner;
mod secluded;
mod secrets;
mod site;
mod snapshot;
mod startup;
mod terminal;
mod verify;
mod weak_durability;
mod webhooks;
mod wire;
mod without_git;
mod workspaces;
