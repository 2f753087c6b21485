//! Responses that many handlers share.

use http::StatusCode;

/// 201 for a new object, 200 for an existing one.
pub fn created_status(created: bool) -> StatusCode {
    if created { StatusCode::CREATED } else { StatusCode::OK }
}
