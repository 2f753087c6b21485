//! Responses that many handlers give.

use http::StatusCode;

/// 201 for something new, 200 for what was there.
pub fn created_status(created: bool) -> StatusCode {
    if created { StatusCode::CREATED } else { StatusCode::OK }
}
