//! A scene in which every write could succeed, and every write with a body that would be accepted.

use serde_json::Value;

use crate::{
    harness::{Engine, TestServer, openapi},
    operations::{self, OPERATIONS},
};

/// A server, and a run with a command in progress and an open question, so that every write could succeed.
pub(crate) struct Scene {
    pub server: TestServer,
    pub subjects: operations::Scene,
}

/// An operation whose body is JSON.
pub(crate) struct Write {
    pub method: &'static str,
    /// The path as the document has it.
    pub template: &'static str,
    pub path: String,
    /// A body that would be accepted.
    pub body: Value,
}

impl Scene {
    pub(crate) async fn set(engine: Engine) -> Self {
        let server = TestServer::start(engine).await;
        let subjects = operations::Scene::set(&server, "ada").await;
        Self { server, subjects }
    }

    /// Every operation that takes a JSON body.
    pub(crate) fn writes(&self) -> Vec<Write> {
        let writes = OPERATIONS.iter().filter(|(method, template, _)| body_schema(method, template).is_some());
        writes
            .map(|(method, template, body)| Write {
                method,
                template,
                path: self.subjects.path(template),
                body: body(&self.subjects),
            })
            .collect()
    }

    /// All that could have changed.
    pub(crate) async fn state(&self) -> Vec<Value> {
        let run_id = &self.subjects.run_id;
        let jobs = format!("/api/v1/runs/{run_id}/runner-jobs");
        let mut state = self.server.events(run_id).await;
        let listed = ["/api/v1/tokens", "/api/v1/users", "/api/v1/provider-profiles", "/agents", "/h2a/relations"];
        for path in ["/api/v1/runs", &jobs, "/api/v1/sessions?state=all"].into_iter().chain(listed) {
            state.push(self.server.get(path).await.ok());
        }
        state
    }
}

/// The schema of an operation's JSON body, if it has one.
pub(crate) fn body_schema(method: &str, template: &str) -> Option<&'static Value> {
    let operation = &openapi()["paths"][template][method.to_lowercase()];
    Some(&operation["requestBody"]["content"]["application/json"]["schema"]).filter(|schema| schema.is_object())
}
