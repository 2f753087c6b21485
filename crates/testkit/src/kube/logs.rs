//! `pods/log`: the API server asks the kubelet of the pod's node, whose address is in the node's status.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::response::Response;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use tokio::net::TcpStream;

use super::failures::ApiFailure;
use super::resources::{ApiTarget, NODES, PODS};
use super::shared::KubeShared;
use super::store::{ObjectKey, items, text};

pub(super) async fn read(
    shared: &KubeShared,
    target: &ApiTarget,
    query: &BTreeMap<String, String>,
) -> Result<Response, ApiFailure> {
    let (host, path) = locate(shared, target, query)?;
    let unreachable =
        |error: &dyn std::fmt::Display| ApiFailure::internal(format!("Get \"http://{host}{path}\": {error}"));
    let stream = TcpStream::connect(&host).await.map_err(|error| unreachable(&error))?;
    let handshake = http1::handshake::<_, Body>(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| unreachable(&error))?;
    tokio::spawn(connection);
    let request = hyper::Request::get(&path).header("host", &host).body(Body::empty());
    let request = request.map_err(|error| unreachable(&error))?;
    let response = sender.send_request(request).await.map_err(|error| unreachable(&error))?;
    Ok(response.map(Body::new))
}

/// The kubelet's address, and the path of the container's log there.
fn locate(
    shared: &KubeShared,
    target: &ApiTarget,
    query: &BTreeMap<String, String>,
) -> Result<(String, String), ApiFailure> {
    let (namespace, name) =
        (target.namespace.as_deref().unwrap_or_default(), target.name.as_deref().unwrap_or_default());
    let state = shared.lock();
    let pod =
        state.store.get(&ObjectKey::new(&PODS, namespace, name)).ok_or_else(|| ApiFailure::not_found(&PODS, name))?;
    let node = text(pod, "/spec/nodeName");
    if node.is_empty() {
        return Err(ApiFailure::bad_request(format!("pod {name} does not have a host assigned")));
    }
    let containers = items(pod, "/spec/containers");
    let container = match (query.get("container").filter(|name| !name.is_empty()), containers) {
        (Some(container), _) => container.as_str(),
        (None, [only]) => text(only, "/name"),
        (None, _) => {
            let names: Vec<&str> = containers.iter().map(|container| text(container, "/name")).collect();
            return Err(ApiFailure::bad_request(format!(
                "a container name must be specified for pod {name}, choose one of: [{}]",
                names.join(" ")
            )));
        }
    };
    if !containers.iter().any(|one| text(one, "/name") == container) {
        return Err(ApiFailure::bad_request(format!("container {container} is not valid for pod {name}")));
    }
    let status = items(pod, "/status/containerStatuses").iter().find(|status| text(status, "/name") == container);
    let state_of = status.map_or(&Value::Null, |status| &status["state"]);
    if state_of["running"].is_null() && state_of["terminated"].is_null() {
        let reason = match text(state_of, "/waiting/reason") {
            "" => "ContainerCreating",
            reason => reason,
        };
        let message = format!("container \"{container}\" in pod \"{name}\" is waiting to start: {reason}");
        return Err(ApiFailure::bad_request(message));
    }
    let node = state.store.get(&ObjectKey::new(&NODES, "", node)).ok_or_else(|| ApiFailure::not_found(&NODES, node))?;
    let port = node["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"].as_u64().unwrap_or_default();
    let Some(address) = items(node, "/status/addresses").first() else {
        return Err(ApiFailure::internal("no preferred addresses found; known addresses: []"));
    };
    let encode = |value: &str| utf8_percent_encode(value, NON_ALPHANUMERIC).to_string();
    let query: Vec<String> = query.iter().map(|(name, value)| format!("{}={}", encode(name), encode(value))).collect();
    let path = format!("/containerLogs/{namespace}/{name}/{container}?{}", query.join("&"));
    Ok((format!("{}:{port}", text(address, "/address")), path))
}
