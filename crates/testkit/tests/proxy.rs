//! The proxy applies the requested fault to a connection, and nothing else.

#![expect(clippy::unwrap_used, reason = "a test program: a failed unwrap is a failed test")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use ostler_testkit::proxy::{Direction, Proxy};

/// Returns every byte to its sender.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let (mut from, mut to) = (stream.try_clone().unwrap(), stream);
                let _ = std::io::copy(&mut from, &mut to);
            });
        }
    });
    address
}

fn connect(proxy: &Proxy) -> TcpStream {
    let stream = TcpStream::connect(proxy.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    stream
}

fn exchange(stream: &mut TcpStream) -> Option<[u8; 4]> {
    let mut answer = [0; 4];
    stream.write_all(b"ping").ok()?;
    stream.read_exact(&mut answer).ok()?;
    Some(answer)
}

#[test]
fn bytes_pass_in_both_directions_until_all_connections_are_cut() {
    let proxy = Proxy::start(echo()).unwrap();
    let mut stream = connect(&proxy);
    assert_eq!(exchange(&mut stream), Some(*b"ping"));
    assert_eq!(proxy.cut_all(), 1);
    assert_eq!(exchange(&mut stream), None);
    assert_eq!(exchange(&mut connect(&proxy)), Some(*b"ping"), "a new connection is not affected");
}

#[test]
fn a_connection_is_cut_in_the_middle_of_a_message() {
    let proxy = Proxy::start(echo()).unwrap();
    let mut stream = connect(&proxy);
    proxy.cut_after(Direction::Down, 6);
    assert_eq!(exchange(&mut stream), Some(*b"ping"));
    assert!(proxy.is_cut_armed());
    stream.write_all(b"ping").unwrap();
    let mut rest = vec![];
    let _ = stream.read_to_end(&mut rest);
    assert_eq!(rest, b"pi");
    assert!(!proxy.is_cut_armed());
    assert_eq!(proxy.cuts(), 1);
}

#[test]
fn a_held_direction_delivers_afterwards_and_a_refused_connection_is_closed() {
    let proxy = Proxy::start(echo()).unwrap();
    let mut stream = connect(&proxy);
    proxy.hold(Direction::Down, true);
    stream.write_all(b"ping").unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    assert!(stream.read_exact(&mut [0; 4]).is_err(), "the answer is withheld");
    proxy.refuse(true);
    assert_eq!(exchange(&mut connect(&proxy)), None);
    proxy.heal();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"ping");
}
