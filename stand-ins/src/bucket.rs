//! A bucket that implements the part of S3 that files need: put, get and head one object, delete many. It accepts every
//! request that is signed with its access key's name.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use axum::{
    Router,
    body::Body,
    extract::State,
    http::{Method, Request, StatusCode, header},
    response::{IntoResponse, Response},
};
use bytes::Bytes;

use crate::endpoint::{BODY_BYTES_MAX, Socket};

#[derive(Clone)]
struct BucketState {
    access_key: String,
    objects: Arc<Mutex<BTreeMap<String, Bytes>>>,
}

pub struct Bucket {
    state: BucketState,
    socket: Socket,
}

impl Bucket {
    pub fn open(access_key: &str) -> Self {
        let state = BucketState { access_key: access_key.to_owned(), objects: Arc::default() };
        let socket = Socket::serve(Router::new().fallback(handle).with_state(state.clone()));
        Self { state, socket }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.socket.address)
    }

    /// The objects by path, which begins with the bucket's name.
    pub fn objects(&self) -> BTreeMap<String, Bytes> {
        self.state.objects().clone()
    }
}

impl BucketState {
    fn objects(&self) -> MutexGuard<'_, BTreeMap<String, Bytes>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_signed(&self, request: &Request<Body>) -> bool {
        let signed = request.headers().get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
        let expected = format!("AWS4-HMAC-SHA256 Credential={}/", self.access_key);
        signed.is_some_and(|signed| signed.starts_with(&expected) && signed.contains("Signature="))
    }
}

async fn handle(State(state): State<BucketState>, request: Request<Body>) -> Response {
    if !state.is_signed(&request) {
        return (StatusCode::FORBIDDEN, "<Error><Code>AccessDenied</Code></Error>").into_response();
    }
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let query = request.uri().query().unwrap_or_default().trim_end_matches('=').to_owned();
    let body = axum::body::to_bytes(request.into_body(), BODY_BYTES_MAX).await.unwrap_or_default();
    let mut objects = state.objects();
    match method {
        Method::PUT => {
            objects.insert(path, body);
            [(header::ETAG, "\"1\"")].into_response()
        }
        Method::GET | Method::HEAD => match objects.get(&path) {
            Some(bytes) => {
                let headers = [(header::ETAG, "\"1\""), (header::LAST_MODIFIED, "Thu, 01 Jan 2026 00:00:00 GMT")];
                (headers, bytes.clone()).into_response()
            }
            None => (StatusCode::NOT_FOUND, "<Error><Code>NoSuchKey</Code></Error>").into_response(),
        },
        // Clients use the request for many objects even if they delete one.
        Method::POST if query == "delete" => {
            let body = String::from_utf8_lossy(&body);
            let keys = body.split("<Key>").skip(1).filter_map(|rest| rest.split_once("</Key>")).map(|(key, _)| key);
            let deleted = keys.map(|key| {
                objects.remove(&format!("{}/{key}", path.trim_end_matches('/')));
                format!("<Deleted><Key>{key}</Key></Deleted>")
            });
            format!("<DeleteResult>{}</DeleteResult>", deleted.collect::<String>()).into_response()
        }
        _ => StatusCode::NOT_IMPLEMENTED.into_response(),
    }
}
