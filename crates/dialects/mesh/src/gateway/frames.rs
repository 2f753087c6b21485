//! Frames that the gateway sends on its own.

use ostler_protocol::{
    RawJson,
    rpc::{RpcFrame, Version},
};
use ostler_server::net::sockets::Frame;
use serde::Serialize;

/// A notification as it goes over the wire.
pub(crate) fn notification(method: &str, params: &impl Serialize) -> Frame {
    RpcFrame::Notification { method: method.to_owned(), params: RawJson::of(params) }.write(Version::Two).into()
}
