//! The mesh: names and their certificates, the gateway, and what is served about them.

mod agent_md;
mod certificates;
mod connecting;
mod delivery;
mod frames;
mod logins;
mod messages;
mod own_client;
mod published_client;
mod published_messages;
mod recipients;
mod registering;
mod soak;
