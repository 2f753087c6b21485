//! Connections whose peer must act next: TCP connections before their first request or between two requests, and sockets of
//! the mesh before `auth.connect`. They cost a peer nothing, so they are bounded, in all and per address.
//!
//! A new connection is always admitted. Where that exceeds a bound, another waiting connection is closed: the oldest silent
//! one of the address that has the most. A few addresses can therefore never keep a new one out.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{sync::Notify, time::Instant};

use crate::net::rates::RateOwner;

pub struct WaitingConnections {
    bounds: Bounds,
    table: Mutex<WaitingTable>,
}

#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Connections that wait, of all addresses.
    pub all_max: usize,
    /// … and of one address.
    pub per_address_max: usize,
    /// How long a connection may wait while there are more than half as many connections as may be.
    pub pressed_wait: Duration,
}

#[derive(Default)]
struct WaitingTable {
    next: u64,
    /// By number, so that the oldest come first.
    entries: BTreeMap<u64, WaitingEntry>,
    by_address: HashMap<RateOwner, BTreeSet<u64>>,
}

struct WaitingEntry {
    address: RateOwner,
    since: Instant,
    has_spoken: bool,
    closed: Arc<Notify>,
}

/// The entry of one waiting connection, removed when it is dropped.
pub struct Ticket {
    waiting: Arc<WaitingConnections>,
    number: u64,
    closed: Arc<Notify>,
}

impl Ticket {
    /// Notified once if the connection must make room for another one.
    pub fn closed(&self) -> Arc<Notify> {
        self.closed.clone()
    }

    /// The peer has sent something: silent connections are closed before this one.
    pub fn speak(&self) {
        if let Some(entry) = self.waiting.table().entries.get_mut(&self.number) {
            entry.has_spoken = true;
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.waiting.table().remove(self.number);
    }
}

impl WaitingConnections {
    pub fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self { bounds, table: Mutex::default() })
    }

    pub fn enter(self: &Arc<Self>, peer: IpAddr) -> Ticket {
        self.enter_with(peer, Arc::default())
    }

    /// As [`WaitingConnections::enter`], for a connection that waits more than once and has one `closed` for all of these times.
    pub fn enter_with(self: &Arc<Self>, peer: IpAddr, closed: Arc<Notify>) -> Ticket {
        let Bounds { all_max, per_address_max, pressed_wait } = self.bounds;
        let (address, since) = (RateOwner::peer(peer), Instant::now());
        let mut table = self.table();
        if table.entries.len() * 2 >= all_max {
            table.close_since(since.checked_sub(pressed_wait));
        }
        if table.by_address.get(&address).is_some_and(|own| own.len() >= per_address_max) {
            table.close_one_of(&address);
        }
        if table.entries.len() >= all_max {
            table.close_one();
        }
        let number = table.next;
        table.next += 1;
        table.by_address.entry(address.clone()).or_default().insert(number);
        table.entries.insert(number, WaitingEntry { address, since, has_spoken: false, closed: closed.clone() });
        Ticket { waiting: self.clone(), number, closed }
    }

    /// Closes one waiting connection, if there is one, because room is needed elsewhere.
    pub fn close_one(&self) {
        self.table().close_one();
    }

    #[cfg(test)]
    fn count(&self) -> usize {
        self.table().entries.len()
    }

    fn table(&self) -> MutexGuard<'_, WaitingTable> {
        self.table.lock()
    }
}

impl WaitingTable {
    fn remove(&mut self, number: u64) -> Option<WaitingEntry> {
        let entry = self.entries.remove(&number)?;
        if let Some(own) = self.by_address.get_mut(&entry.address) {
            own.remove(&number);
            if own.is_empty() {
                self.by_address.remove(&entry.address);
            }
        }
        Some(entry)
    }

    fn close(&mut self, number: u64) {
        if let Some(entry) = self.remove(number) {
            entry.closed.notify_one();
        }
    }

    /// Closes all connections that began before this time.
    fn close_since(&mut self, time: Option<Instant>) {
        let is_old = |entry: &WaitingEntry| time.is_some_and(|time| entry.since <= time);
        let old: Vec<u64> = self.entries.iter().take_while(|(_, entry)| is_old(entry)).map(|(no, _)| *no).collect();
        old.into_iter().for_each(|number| self.close(number));
    }

    fn close_one(&mut self) {
        let most = self.by_address.iter().max_by_key(|(_, own)| own.len()).map(|(address, _)| address.clone());
        if let Some(address) = most {
            self.close_one_of(&address);
        }
    }

    /// Closes the oldest silent connection of the address, or its oldest if none is silent.
    fn close_one_of(&mut self, address: &RateOwner) {
        let Some(own) = self.by_address.get(address) else { return };
        let is_silent = |number: &&u64| self.entries.get(number).is_some_and(|entry| !entry.has_spoken);
        if let Some(number) = own.iter().find(is_silent).or(own.first()).copied() {
            self.close(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn waiting(all_max: usize, per_address_max: usize) -> Arc<WaitingConnections> {
        WaitingConnections::new(Bounds { all_max, per_address_max, pressed_wait: Duration::from_secs(5) })
    }

    fn address(last: u8) -> IpAddr {
        [192, 0, 2, last].into()
    }

    fn is_closed(ticket: &Ticket) -> bool {
        ticket.closed.notified().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn a_few_addresses_cannot_keep_a_new_one_out() {
        let waiting = waiting(8, 4);
        let taken: Vec<_> = (0..8).map(|n| waiting.enter(address(n % 2))).collect();
        let new = waiting.enter(address(9));
        assert_eq!(waiting.count(), 8);
        assert_eq!(taken.iter().filter(|ticket| is_closed(ticket)).count(), 1, "one of the many made room");
        assert!(!is_closed(&new));
        drop((taken, new));
        assert_eq!(waiting.count(), 0);
        assert!(waiting.table().by_address.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_over_its_bound_loses_its_oldest_silent_connection() {
        let waiting = waiting(100, 2);
        let (first, second) = (waiting.enter(address(1)), waiting.enter(address(1)));
        let other = waiting.enter(address(2));
        first.speak();
        let third = waiting.enter(address(1));
        assert_eq!([&first, &second, &third, &other].map(is_closed), [false, true, false, false]);
        third.speak();
        let _fourth = waiting.enter(address(1));
        assert!(is_closed(&first), "none is silent: the oldest goes");
    }

    #[tokio::test(start_paused = true)]
    async fn under_pressure_no_connection_waits_for_long() {
        let waiting = waiting(4, 4);
        let old = [waiting.enter(address(1)), waiting.enter(address(2))];
        tokio::time::advance(Duration::from_secs(6)).await;
        let _new = waiting.enter(address(3));
        assert!(old.iter().all(is_closed));
        assert_eq!(waiting.count(), 1);
    }
}
