//! OpenAI-compatible speech to text: `POST …/audio/transcriptions`. What it does is part of its address, before `audio`.
//!
//! | address | reply |
//! |---|---|
//! | `…/v1` | the text `hello there` |
//! | `…/v1/repeats` | an error that repeats the caller's key |
//! | `…/v1/fails` | HTTP status 500 |
//! | `…/v1/nonsense` | JSON that is no transcript |
//! | `…/v1/endless` | a text that is too long |
//! | `…/v1/breaks`, `…/v1/holds` | the connection breaks, or nothing follows |

use serde_json::json;

use crate::{
    Endpoint, RecordedRequest,
    endpoint::{Reply, Then},
};

const ENDLESS_BYTES: usize = 4 * 1024 * 1024;

/// A speech endpoint on loopback.
pub fn speech() -> Endpoint {
    Endpoint::start(|seen, _| reply(seen))
}

fn reply(seen: &RecordedRequest) -> Reply {
    let Some(address) = seen.path.strip_suffix("/audio/transcriptions") else {
        return Reply::Status(404, json!({"error": {"message": "no such path"}}));
    };
    match address.rsplit('/').next().unwrap_or_default() {
        "repeats" => Reply::Status(401, json!({"error": {"message": format!("not with {:?}", seen.authorization)}})),
        "fails" => Reply::Status(500, json!({"error": {"message": "the model fell over"}})),
        "nonsense" => Reply::Status(200, json!({"segments": []})),
        "endless" => Reply::Status(200, json!({"text": "x".repeat(ENDLESS_BYTES)})),
        "breaks" => Reply::Stream { events: vec![], then: Then::Break },
        "holds" => Reply::Stream { events: vec![], then: Then::Hold },
        _ => Reply::Status(200, json!({"text": "hello there"})),
    }
}
