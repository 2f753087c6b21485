//! The people and agents that are connected to this server by WebSocket, and how to notify them at once. This is a convenience:
//! everything that must not be lost is in the store, and is sent again on every connect until it is answered.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, hash_map::Entry},
    fmt,
    sync::Arc,
};

use ostler_protocol::{Failure, Rule, ids::AgentId};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use ostler_server::{
    config::LimitsSection,
    net::sockets::{Frame, Outbox},
};

/// A rejected client may try again after this long.
const RETRY_AFTER_MS: u64 = 1_000;

/// A person or an agent that may be connected, more than once.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Listener {
    /// A user's id, or `local`.
    Human(Arc<str>),
    Agent(AgentId),
}

impl Listener {
    /// The listener with this name, the inverse of `Display`.
    pub(crate) fn named(name: &str) -> Self {
        name.parse().map_or_else(|_| Self::Human(name.into()), Self::Agent)
    }
}

impl fmt::Display for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Human(user_id) => f.write_str(user_id),
            Self::Agent(agent_id) => agent_id.fmt(f),
        }
    }
}

/// The subject of a notification. A later notification replaces an earlier one of the same subject.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Subject {
    Manifest(AgentId),
    Webhook(AgentId),
    /// A noun of another dialect.
    Other(Arc<str>),
}

/// A notification on a subject. A higher number is a later one.
#[derive(Clone, Debug)]
pub(crate) struct Notification {
    pub subject: Subject,
    pub number: i64,
    pub frame: Frame,
}

/// The notifications that a connection receives next, and the numbers of those it received last. A queue has one entry per
/// subject, so its size is bounded, and a connection receives no notification twice, or an older one after a later one.
#[derive(Default)]
struct NotificationQueue {
    next: BTreeMap<Subject, Notification>,
    sent: BTreeMap<Subject, i64>,
}

impl NotificationQueue {
    fn put(&mut self, notification: &Notification) {
        let Notification { subject, number, .. } = notification;
        let last = self.next.get(subject).map(|next| next.number).max(self.sent.get(subject).copied());
        if last.is_none_or(|last| last < *number) {
            self.next.insert(subject.clone(), notification.clone());
        }
    }

    /// Puts everything that is pending now. Other subjects were answered, and need not be remembered.
    fn put_all(&mut self, pending: &[Notification]) {
        let subjects: BTreeSet<_> = pending.iter().map(|notification| &notification.subject).collect();
        self.sent.retain(|subject, _| subjects.contains(subject));
        pending.iter().for_each(|notification| self.put(notification));
    }

    fn take(&mut self) -> Vec<Frame> {
        let next = std::mem::take(&mut self.next);
        self.sent.extend(next.values().map(|notification| (notification.subject.clone(), notification.number)));
        next.into_values().map(|notification| notification.frame).collect()
    }
}

#[derive(Default)]
pub(crate) struct Listeners {
    connections: Mutex<ListenerTable>,
    /// Agents of whose change a task is notifying people, and whether the agent has changed again since the task began.
    notifying: Mutex<HashMap<AgentId, bool>>,
}

#[derive(Default)]
struct ListenerTable {
    count: usize,
    next: u64,
    by_listener: HashMap<Listener, Vec<ListenerConnection>>,
}

struct ListenerConnection {
    number: u64,
    inbox: Arc<ListenerInbox>,
    outbox: Outbox,
}

/// The queue of a connection, and its wake-ups.
#[derive(Default)]
struct ListenerInbox {
    queue: Mutex<NotificationQueue>,
    added: Notify,
    reread: Notify,
}

impl ListenerInbox {
    fn queue(&self) -> MutexGuard<'_, NotificationQueue> {
        self.queue.lock()
    }
}

/// Keeps a connection in the table, and removes it when it is dropped.
pub(crate) struct ListenerRegistration {
    listeners: Arc<Listeners>,
    listener: Listener,
    number: u64,
    inbox: Arc<ListenerInbox>,
}

impl ListenerRegistration {
    /// Resolves when the connection should read again what is pending for its listener.
    pub(crate) async fn must_reread(&self) {
        self.inbox.reread.notified().await;
    }

    /// Resolves when there may be a notification to take.
    pub(crate) async fn wait_for_notification(&self) {
        self.inbox.added.notified().await;
    }

    pub(crate) fn put_all(&self, pending: &[Notification]) {
        self.inbox.queue().put_all(pending);
    }

    pub(crate) fn has_some(&self) -> bool {
        !self.inbox.queue().next.is_empty()
    }

    /// The frames to send now.
    pub(crate) fn take(&self) -> Vec<Frame> {
        self.inbox.queue().take()
    }
}

impl Listeners {
    pub(crate) fn count(&self) -> usize {
        self.connections().count
    }

    pub(crate) fn join(
        self: &Arc<Self>,
        listener: Listener,
        outbox: Outbox,
        limits: &LimitsSection,
    ) -> Result<ListenerRegistration, Failure> {
        let mut connections = self.connections();
        if connections.count >= limits.sockets_max {
            return Err(refused(Rule::Sockets, "too many WebSockets are open", limits.sockets_max));
        }
        let number = connections.next;
        let own = connections.by_listener.entry(listener.clone()).or_default();
        if own.len() >= limits.sockets_per_caller_max {
            let max = limits.sockets_per_caller_max;
            return Err(refused(Rule::SocketsPerCaller, "this caller has too many WebSockets open", max));
        }
        let inbox = Arc::<ListenerInbox>::default();
        own.push(ListenerConnection { number, inbox: inbox.clone(), outbox });
        connections.count += 1;
        connections.next += 1;
        Ok(ListenerRegistration { listeners: self.clone(), listener, number, inbox })
    }

    /// Queues a notification for every connection of this listener to this server. Never waits.
    pub(crate) fn notify(&self, listener: &Listener, notification: &Notification) {
        let connections = self.connections();
        for ListenerConnection { inbox, .. } in connections.by_listener.get(listener).into_iter().flatten() {
            inbox.queue().put(notification);
            inbox.added.notify_one();
        }
    }

    /// Sends a frame that is not stored: a listener that is not connected to this server misses it. Never waits.
    pub(crate) fn send(&self, listener: &Listener, frame: &Frame) {
        let connections = self.connections();
        let own = connections.by_listener.get(listener).into_iter().flatten();
        own.for_each(|connection| connection.outbox.put(frame.clone()));
    }

    /// Makes this listener's connections to this server read again what is pending.
    pub(crate) fn reread(&self, listener: &Listener) {
        let connections = self.connections();
        let own = connections.by_listener.get(listener).into_iter().flatten();
        own.for_each(|connection| connection.inbox.reread.notify_one());
    }

    /// The same for all connections, after wake-ups may have been lost.
    pub(crate) fn reread_all(&self) {
        self.connections().by_listener.values().flatten().for_each(|connection| connection.inbox.reread.notify_one());
    }

    /// Marks an agent as changed. False if a task is notifying people already; it then begins again.
    pub(crate) fn begin_notifying(&self, agent_id: AgentId) -> bool {
        match self.notifying().entry(agent_id) {
            Entry::Occupied(mut running) => {
                running.insert(true);
                false
            }
            Entry::Vacant(none) => {
                none.insert(true);
                true
            }
        }
    }

    /// Takes the mark of a change that people were not notified of yet. False if there is none: then the task is over.
    pub(crate) fn take_change(&self, agent_id: AgentId) -> bool {
        let mut notifying = self.notifying();
        let changed = notifying.get_mut(&agent_id).is_some_and(std::mem::take);
        if !changed {
            notifying.remove(&agent_id);
        }
        changed
    }

    /// Whether the agent has changed again since the change was taken.
    pub(crate) fn has_changed_again(&self, agent_id: AgentId) -> bool {
        self.notifying().get(&agent_id).copied().unwrap_or_default()
    }

    fn notifying(&self) -> MutexGuard<'_, HashMap<AgentId, bool>> {
        self.notifying.lock()
    }

    fn connections(&self) -> MutexGuard<'_, ListenerTable> {
        self.connections.lock()
    }
}

fn refused(rule: Rule, message: &str, max: usize) -> Failure {
    Failure::rule(rule, message).detail("max", max).detail("retryAfterMs", RETRY_AFTER_MS)
}

impl Drop for ListenerRegistration {
    fn drop(&mut self) {
        let mut connections = self.listeners.connections();
        connections.count -= 1;
        if let Some(own) = connections.by_listener.get_mut(&self.listener) {
            own.retain(|connection| connection.number != self.number);
            if own.is_empty() {
                connections.by_listener.remove(&self.listener);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ostler_server::net::sockets::queue;

    fn human(name: &str) -> Listener {
        Listener::Human(name.into())
    }

    #[test]
    fn a_listener_is_found_by_its_name() {
        for listener in [human("local"), human("usr_00000000000000000000000000000007"), Listener::Agent(agent())] {
            assert_eq!(Listener::named(&listener.to_string()), listener);
        }
    }

    fn agent() -> AgentId {
        "agt_00000000000000000000000000000007".parse().unwrap()
    }

    fn version(number: i64) -> Notification {
        Notification { subject: Subject::Manifest(agent()), number, frame: number.to_string().into() }
    }

    #[test]
    fn no_notification_is_sent_twice_or_after_a_later_one() {
        let mut queue = NotificationQueue::default();
        queue.put(&version(2));
        assert_eq!(queue.take(), ["2"]);
        [3, 4, 3, 2].map(version).iter().for_each(|notification| queue.put(notification));
        assert_eq!(queue.take(), ["4"], "only the latest");
        queue.put_all(&[version(4)]);
        [4, 3].map(version).iter().for_each(|notification| queue.put(notification));
        assert!(queue.take().is_empty(), "it was sent before");
        let webhook = Notification { subject: Subject::Webhook(agent()), ..version(1) };
        queue.put(&webhook);
        assert_eq!(queue.take(), ["1"], "another subject");
        queue.put_all(&[]);
        assert!(queue.sent.is_empty(), "answered subjects are forgotten");
    }

    #[test]
    fn a_change_while_people_are_notified_restarts_the_task() {
        let listeners = Listeners::default();
        assert!(listeners.begin_notifying(agent()));
        assert!(listeners.take_change(agent()));
        assert!(!listeners.begin_notifying(agent()), "one task at a time");
        assert!(listeners.has_changed_again(agent()));
        assert!(listeners.take_change(agent()));
        assert!(!listeners.has_changed_again(agent()));
        assert!(!listeners.take_change(agent()));
        assert!(listeners.begin_notifying(agent()), "the task had ended");
    }

    #[test]
    fn connections_are_limited_in_total_and_per_caller_until_they_close() {
        let listeners = Arc::<Listeners>::default();
        let limits = LimitsSection { sockets_max: 3, sockets_per_caller_max: 2, ..LimitsSection::default() };
        let join = |name: &str| listeners.join(human(name), queue().0, &limits);
        let ada = [join("ada").unwrap(), join("ada").unwrap()];
        assert_eq!(join("ada").err().unwrap().rule_name(), Some("sockets-per-caller"));
        let _bob = join("bob").unwrap();
        assert_eq!(join("eve").err().unwrap().rule_name(), Some("sockets"));
        drop(ada);
        assert_eq!(listeners.count(), 1);
        let _eve = join("eve").unwrap();
        assert_eq!(listeners.connections().by_listener.len(), 2, "listeners without a connection are forgotten");
    }
}
