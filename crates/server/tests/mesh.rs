//! The mesh: names and their certificates, the gateway, and what is served about them.

mod agent_md;
mod certificates;
mod connecting;
mod frames;
mod logins;
mod published_client;
mod registering;
