//! Clients: an editor or SDK that is attached to a session, by an id that the server made for it. The id names the client for other
//! clients of the session; it is no proof of who sends it.

use crate::{Failure, Rule, Timestamp, ids::SessionId};

/// The request header that names the client.
pub const CLIENT_HEADER: &str = "x-qwen-client-id";

/// What every client id of this server begins with.
pub const CLIENT_ID_PREFIX: &str = "client_";

const CLIENT_ID_BYTES_MAX: usize = 128;

/// A client of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct DaemonClient {
    pub client_id: String,
    pub session: SessionId,
    /// The caller that registered it. Other callers cannot use the id.
    pub principal: String,
    pub registered_at: Timestamp,
    pub last_seen_at: Timestamp,
    /// When it was found absent. `None` while it is attached.
    pub left_at: Option<Timestamp>,
}

/// Checks the form of a client id.
pub fn check_client_id(text: &str) -> Result<&str, Failure> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
    if (1..=CLIENT_ID_BYTES_MAX).contains(&text.len()) && text.bytes().all(fits) {
        return Ok(text);
    }
    Err(Failure::invalid(Rule::InvalidClientId, "X-Qwen-Client-Id must be 1 to 128 letters, digits or ._:-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn client_ids_are_short_and_plain() {
        for good in ["client_01", "a", "A.b:c-d_e", &"x".repeat(128)] {
            assert!(check_client_id(good).is_ok(), "{good}");
        }
        for bad in ["", "a b", "é", "a/b", &"x".repeat(129)] {
            assert!(check_client_id(bad).is_err(), "{bad}");
        }
    }
}
