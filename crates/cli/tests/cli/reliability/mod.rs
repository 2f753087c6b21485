//! Processes that are killed, disks that fill up, power that fails: what was acknowledged is still there.

mod backup;
mod disk_full;
mod drain;
mod failover;
mod killed_automation;
mod killed_replica;
mod killed_runner;
mod killed_server;
mod killed_sweep;
mod killed_tool_call;
mod killed_turn;
mod killed_webhook;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod power_cut;
mod weak_durability;
