//! A cluster that servers are measured with. Each measurement has a namespace of its own.
//!
//! No pod runs. Pods request more cores than any node has, so no scheduler binds them and no kubelet reports about them.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;
use tokio::time::{sleep, timeout};

use super::api::{ApiConnection, ApiServer};
use super::manifests::IMAGE;
use crate::engine::{Bench, Place};
use crate::machine::unix_us;
use crate::outcome::Outcome;
use crate::report::Report;
use crate::server::Server;

/// More cores than any node has. The limit must not be lower than the request.
const RESOURCES: &str = r#"{"default":{"cpu_request":"100000","cpu_limit":"100000"}}"#;
const SERVER_URL: &str = "http://ostler.invalid:4747";
/// How long the objects of one measurement may take to be deleted before the next one begins.
const DELETE_TIMEOUT: Duration = Duration::from_secs(180);
const DELETE_PAUSE: Duration = Duration::from_millis(250);

pub(crate) struct KubeBench<'a> {
    pub bench: &'a Bench,
    /// A server with the launcher `kubernetes`.
    ostler: PathBuf,
    kubeconfig: PathBuf,
    api: ApiServer,
}

impl<'a> KubeBench<'a> {
    pub(crate) fn open(bench: &'a Bench, ostler: PathBuf, kubeconfig: PathBuf) -> Outcome<Self> {
        let api = ApiServer::read(&kubeconfig)?;
        Ok(Self { bench, ostler, kubeconfig, api })
    }

    pub(crate) async fn connect(&self) -> Outcome<ApiConnection> {
        self.api.connect().await
    }

    /// Starts a server whose runners are Jobs in this namespace.
    pub(crate) fn serve(&self, place: &Place, namespace: &str) -> Outcome<Server> {
        self.serve_with(place, namespace, &[])
    }

    /// As [`serve`](Self::serve), with more settings.
    pub(crate) fn serve_with(&self, place: &Place, namespace: &str, more: &[(&str, &str)]) -> Outcome<Server> {
        let kubeconfig = self.kubeconfig.to_str().ok_or("the path of the kubeconfig is not a text")?;
        let mut settings = vec![
            ("OSTLER_RUNNER__LAUNCHER", "kubernetes"),
            ("OSTLER_KUBERNETES__KUBECONFIG", kubeconfig),
            ("OSTLER_KUBERNETES__NAMESPACE", namespace),
            ("OSTLER_KUBERNETES__IMAGE", IMAGE),
            ("OSTLER_KUBERNETES__SERVER_URL", SERVER_URL),
            ("OSTLER_KUBERNETES__RESOURCES", RESOURCES),
        ];
        settings.extend_from_slice(more);
        Server::start(&self.ostler, place, &settings)
    }

    /// Creates a namespace that no other run uses.
    pub(crate) async fn create_namespace(&self, purpose: &str) -> Outcome<String> {
        let name = format!("ostler-bench-{purpose}-{:x}", unix_us());
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        self.connect().await?.call("POST", "/api/v1/namespaces", &body.to_string()).await?;
        Ok(name)
    }

    /// Has the cluster delete a namespace with all objects in it. Returns at once.
    pub(crate) async fn delete_namespace(&self, name: &str) -> Outcome<()> {
        self.connect().await?.call("DELETE", &namespace_path(name), "").await?;
        Ok(())
    }

    /// Deletes a namespace, and waits until its objects are gone: their deletion is work of the API server that must not fall into
    /// the next measurement.
    pub(crate) async fn delete_namespace_and_wait(&self, name: &str, report: &mut Report) -> Outcome<()> {
        self.delete_namespace(name).await?;
        let (mut connection, path) = (self.connect().await?, namespace_path(name));
        let gone = async {
            while connection.exists(&path).await? {
                sleep(DELETE_PAUSE).await;
            }
            Outcome::Ok(())
        };
        match timeout(DELETE_TIMEOUT, gone).await {
            Ok(outcome) => outcome,
            Err(_) => {
                report.note(format!(
                    "kubernetes: objects of {name} were still being deleted during the next measurement"
                ));
                Ok(())
            }
        }
    }
}

fn namespace_path(name: &str) -> String {
    format!("/api/v1/namespaces/{name}")
}

pub(crate) fn jobs_path(namespace: &str) -> String {
    format!("/apis/batch/v1/namespaces/{namespace}/jobs")
}

pub(crate) fn pods_path(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}
