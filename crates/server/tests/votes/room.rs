//! A dialect whose clients have ids, made for these tests: they join a session, prompt, and vote.

use axum::{Json, extract::State};
use ostler_protocol::{
    RawJson,
    bodies::RequestBody,
    ids::{PermissionId, RunId},
    kernel::{
        commands::{CommandType, CreateCommand},
        operations::{AnswerPermissionOp, ChangeSessionOp, SessionChange},
        permissions::Choice,
    },
};
use ostler_server::{
    app::App,
    dialect::Dialect,
    net::{
        Locality,
        api_router::ApiRouter,
        extract::{Body, Caller},
        problem::Refusal,
    },
    routes,
    service::{
        commands::{SubmittedMessage, compose},
        permissions,
    },
};
use ostler_store::kernel::permissions::list_pending_by_session;
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

pub(crate) fn dialect() -> Dialect {
    Dialect::new("room").routes(|| ApiRouter::new().routes(routes!(act)))
}

/// What a client does in the session of a run.
#[derive(Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Act {
    run_id: String,
    client: String,
    action: String,
    permission_id: Option<String>,
    /// `None` cancels the request.
    option_id: Option<String>,
}

impl RequestBody for Act {
    const BYTES_MAX: usize = 1_000;
    const VALUES_MAX: usize = 20;
}

#[utoipa::path(post, path = "/room", security(("token" = ["submit"])), request_body = Act, responses((status = 200)))]
async fn act(
    State(app): State<App>,
    Caller(caller): Caller,
    locality: Locality,
    Body(act): Body<Act>,
) -> Result<Json<Value>, Refusal> {
    let run_id: RunId = act.run_id.parse().unwrap();
    let run = app.run_ref(run_id).await?;
    let participant = act.client.clone();
    let change = async |change| {
        let op = ChangeSessionOp { change, by: caller.name() };
        let session = app.try_submit(run.session, None, op).await?.unwrap();
        Ok::<_, Refusal>(Json(json!(session.participants)))
    };
    match act.action.as_str() {
        "join" => change(SessionChange::Join { participant }).await,
        "leave" => change(SessionChange::Leave { participant }).await,
        "prompt" => {
            let payload = RawJson::of(&json!({"prompt": "hi"}));
            let request = CreateCommand { command_type: CommandType::Turn, payload, idempotency_key: None };
            let content = json!([{"type": "text", "text": "hi"}]);
            let message = SubmittedMessage { origin: Some(act.client), ..SubmittedMessage::new("m".into(), content) };
            let command = app.submit(&run, compose(&app, &caller, &run, request, Some(message))?).await?.value;
            Ok(Json(json!(command)))
        }
        "pending" => Ok(Json(json!(list_pending_by_session(&app.db, run.session).await.unwrap()))),
        _ => {
            let permission_id: PermissionId = act.permission_id.unwrap().parse().unwrap();
            let choice = act.option_id.map_or(Choice::Cancel, Choice::Option);
            let voter = permissions::voter(&caller, Some(act.client), locality);
            let op = AnswerPermissionOp { permission_id, choice, digest: None, voter };
            Ok(Json(json!(permissions::vote(&app, &caller, run_id, op).await?)))
        }
    }
}
