//! A TCP proxy that breaks connections on demand: it delays, withholds one direction, cuts connections between two
//! messages or in the middle of one, and refuses new ones. It knows nothing of the protocol that passes through it.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

const CHUNK_BYTES: usize = 16 * 1024;
const HOLD_POLL: Duration = Duration::from_millis(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client that connected to the target.
    Up,
    /// From the target back to the client.
    Down,
}

/// A running proxy. Dropping it closes every connection and the port.
pub struct Proxy {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    connections: Mutex<Vec<(TcpStream, TcpStream)>>,
    refuses: AtomicBool,
    closed: AtomicBool,
    up: Lane,
    down: Lane,
    cuts: AtomicU64,
}

/// What happens to one direction of all connections.
#[derive(Default)]
struct Lane {
    held: AtomicBool,
    delay_us: AtomicU64,
    /// Chance of a chunk to be delayed by `stall_us`, in thousandths, as the loss of a packet delays what follows it.
    loss_per_mille: AtomicU64,
    stall_us: AtomicU64,
    /// State of the generator that draws the losses.
    draws: AtomicU64,
    /// Bytes until the connection that carries them is cut; negative if no cut is armed.
    cut_in: AtomicI64,
}

impl Proxy {
    pub fn start(target: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let shared = Arc::new(Shared::default());
        shared.up.cut_in.store(-1, Ordering::SeqCst);
        shared.down.cut_in.store(-1, Ordering::SeqCst);
        let proxy = Self { address: listener.local_addr()?, shared: shared.clone() };
        thread::Builder::new().name("proxy".into()).spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if shared.closed.load(Ordering::SeqCst) {
                    return;
                }
                if !shared.refuses.load(Ordering::SeqCst) {
                    // Without a target the client sees its connection closed, as it would without a listener.
                    let _ = connect(&shared, client, target);
                }
            }
        })?;
        Ok(proxy)
    }

    /// Closes every connection. Returns how many there were.
    pub fn cut_all(&self) -> usize {
        let connections = std::mem::take(&mut *lock(&self.shared.connections));
        for (client, server) in &connections {
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
        connections.len()
    }

    /// While set, a new connection is closed as soon as it is accepted.
    pub fn refuse(&self, refuses: bool) {
        self.shared.refuses.store(refuses, Ordering::SeqCst);
    }

    /// While set, nothing passes in this direction. Bytes that arrive in the meantime pass afterwards.
    pub fn hold(&self, direction: Direction, held: bool) {
        self.lane(direction).held.store(held, Ordering::SeqCst);
    }

    /// Delays every chunk of this direction.
    pub fn delay(&self, direction: Direction, delay: Duration) {
        self.lane(direction).delay_us.store(micros(delay), Ordering::SeqCst);
    }

    /// Delays some chunks by the time after which a lost packet is sent again. Which ones depends on the seed.
    pub fn lose(&self, direction: Direction, per_mille: u64, retransmit_after: Duration, seed: u64) {
        let lane = self.lane(direction);
        lane.draws.store(seed, Ordering::SeqCst);
        lane.stall_us.store(micros(retransmit_after), Ordering::SeqCst);
        lane.loss_per_mille.store(per_mille, Ordering::SeqCst);
    }

    /// Cuts the connection that carries the byte after this many more, in this direction: often inside a message.
    pub fn cut_after(&self, direction: Direction, bytes: u32) {
        self.lane(direction).cut_in.store(i64::from(bytes), Ordering::SeqCst);
    }

    /// Whether the cut armed by [`Proxy::cut_after`] still waits for its byte.
    pub fn is_cut_armed(&self) -> bool {
        [&self.shared.up, &self.shared.down].iter().any(|lane| lane.cut_in.load(Ordering::SeqCst) >= 0)
    }

    /// How many connections were cut by [`Proxy::cut_after`].
    pub fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::SeqCst)
    }

    /// Ends every fault. Connections that were cut stay cut.
    pub fn heal(&self) {
        self.refuse(false);
        for lane in [&self.shared.up, &self.shared.down] {
            lane.held.store(false, Ordering::SeqCst);
            lane.delay_us.store(0, Ordering::SeqCst);
            lane.loss_per_mille.store(0, Ordering::SeqCst);
            lane.cut_in.store(-1, Ordering::SeqCst);
        }
    }

    fn lane(&self, direction: Direction) -> &Lane {
        self.shared.lane(direction)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::SeqCst);
        self.heal();
        self.cut_all();
        // Wakes the thread that accepts, which then ends.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn lane(&self, direction: Direction) -> &Lane {
        match direction {
            Direction::Up => &self.up,
            Direction::Down => &self.down,
        }
    }
}

impl Lane {
    /// Waits as long as the faults of this direction demand. `false` if the proxy was closed in the meantime.
    fn wait(&self, closed: &AtomicBool) -> bool {
        let lost = self.loss_per_mille.load(Ordering::SeqCst) > self.draw() % 1_000;
        let stall_us = if lost { self.stall_us.load(Ordering::SeqCst) } else { 0 };
        let delay_us = self.delay_us.load(Ordering::SeqCst) + stall_us;
        if delay_us > 0 {
            thread::sleep(Duration::from_micros(delay_us));
        }
        while self.held.load(Ordering::SeqCst) {
            if closed.load(Ordering::SeqCst) {
                return false;
            }
            thread::sleep(HOLD_POLL);
        }
        true
    }

    /// The next number of a small generator (SplitMix64).
    fn draw(&self) -> u64 {
        let state = self.draws.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::SeqCst);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB) >> 31
    }

    /// How many of these bytes pass before the connection is cut. `None` if all of them do.
    fn cut_at(&self, bytes: usize) -> Option<usize> {
        let count = i64::try_from(bytes).unwrap_or(i64::MAX);
        let before = self.cut_in.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| match left {
            left if left < 0 => None,
            left if left < count => Some(-1),
            left => Some(left - count),
        });
        before.ok().filter(|left| *left < count).and_then(|left| usize::try_from(left).ok())
    }
}

fn connect(shared: &Arc<Shared>, client: TcpStream, target: SocketAddr) -> io::Result<()> {
    let server = TcpStream::connect(target)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    {
        let mut connections = lock(&shared.connections);
        connections.retain(|(client, _)| client.peer_addr().is_ok());
        connections.push((client.try_clone()?, server.try_clone()?));
    }
    for (from, to, direction) in
        [(client.try_clone()?, server.try_clone()?, Direction::Up), (server, client, Direction::Down)]
    {
        let shared = shared.clone();
        thread::Builder::new().name("proxy-pump".into()).spawn(move || pump(&shared, from, to, direction))?;
    }
    Ok(())
}

/// Passes bytes on until one end closes, then closes both.
fn pump(shared: &Shared, mut from: TcpStream, mut to: TcpStream, direction: Direction) {
    let mut chunk = vec![0; CHUNK_BYTES];
    let lane = shared.lane(direction);
    while let Ok(count @ 1..) = from.read(&mut chunk) {
        if !lane.wait(&shared.closed) {
            break;
        }
        let cut = lane.cut_at(count);
        if to.write_all(&chunk[..cut.unwrap_or(count)]).is_err() {
            break;
        }
        if cut.is_some() {
            shared.cuts.fetch_add(1, Ordering::SeqCst);
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
