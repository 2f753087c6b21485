//! Why an MCP server cannot be used. None of the server's own texts is part of it, except why it refused a call.

use std::fmt;

/// Why a server cannot be used.
#[derive(Clone, Debug, PartialEq)]
pub enum McpProblem {
    /// The program is not installed.
    Missing,
    /// The process could not be started.
    NotStarted,
    /// A value that the configuration refers to is not there.
    ValueMissing(String),
    /// The configuration cannot be used.
    Unusable(&'static str),
    /// The rules for outgoing connections do not allow the address.
    AddressRefused,
    /// The server requires a login.
    LoginRequired,
    /// It did not answer in time.
    TimedOut,
    /// It did not speak the protocol, or ended while it was connected.
    Protocol,
    /// It sent a message that is larger than allowed.
    TooLarge,
    /// The connection was lost, and could not be made again.
    Lost,
    /// It was stopped.
    Stopped,
    /// It refused the call, with this message. It is neither redacted nor bounded.
    CallRefused(String),
}

impl fmt::Display for McpProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "its program is not installed",
            Self::NotStarted => "its process could not be started",
            Self::ValueMissing(name) => {
                return write!(f, "the value of {name:?} is missing; set what its configuration refers to");
            }
            Self::Unusable(why) => why,
            Self::AddressRefused => {
                "the server may not connect to its address; the operator can list it in outgoing.allow"
            }
            Self::LoginRequired => "it requires a login",
            Self::TimedOut => "it did not answer in time",
            Self::Protocol => "it ended, or did not speak the protocol",
            Self::TooLarge => "it sent a message of more than 4 MiB",
            Self::Lost => "the connection was lost",
            Self::Stopped => "it was stopped",
            Self::CallRefused(_) => "it refused the call",
        })
    }
}
