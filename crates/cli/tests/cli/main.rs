//! The program `ostler`, run as people run it: real processes, real signals, real disks, on both engines.

#![allow(clippy::unwrap_used, reason = "a test program: a failed unwrap is a failed test")]
#![allow(clippy::disallowed_methods, reason = "real processes live in real time")]

mod disk_full;
mod home;
mod http;
mod killed_replica;
mod killed_runner;
mod killed_server;
mod killed_turn;
mod loop_mount;
mod power_cut;
mod preflight;
mod process;
mod runner;
mod secrets;
mod startup;
mod verify;
mod weak_durability;
mod wire;
