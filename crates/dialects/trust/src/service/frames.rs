//! Sends frames to the connections of people and agents, on this server and on others.

use ostler_protocol::ids::AgentId;
use ostler_server::{app::App, net::sockets::Frame};

use crate::{
    listeners::{Listener, Notification},
    state::Trust,
    topics::LISTENER,
};

/// Sends a listener a notification that is already pending in the store: on this server at once; on other servers, its
/// connections read again what is pending.
pub(crate) fn notify(app: &App, listener: &Listener, notification: &Notification) {
    Trust::of(app).listeners.notify(listener, notification);
    LISTENER.wake_others(app, listener);
}

/// Sends a frame to an agent's connections, on this server and on others. It is not stored: what the agent must not miss goes to
/// its webhook as well.
pub(crate) fn send(app: &App, agent_id: AgentId, frame: &Frame) {
    let listener = Listener::Agent(agent_id);
    Trust::of(app).listeners.send(&listener, frame);
    LISTENER.send_to_others(app, &listener, frame);
}

/// Makes a listener's connections read what is pending, on this server and on others.
pub(super) fn wake(app: &App, listener: &Listener) {
    Trust::of(app).listeners.reread(listener);
    LISTENER.wake_others(app, listener);
}
