//! Responses that many handlers share.

use axum::Json;
use http::StatusCode;
use ostler_protocol::created::Created;

/// 201 with a new object, 200 with an existing one.
pub fn created<T>(Created { value, is_new }: Created<T>) -> (StatusCode, Json<T>) {
    (if is_new { StatusCode::CREATED } else { StatusCode::OK }, Json(value))
}
