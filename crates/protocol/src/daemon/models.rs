//! Models of a session. A model is a backend profile that a run of the session's tenant may name.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The models, modes and options of a session, as published clients read them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionState {
    pub models: SessionModels,
    /// Approval modes. Null: the backend has none that a client could choose.
    #[schema(value_type = Option<Object>, required)]
    pub modes: Option<serde_json::Value>,
    /// What a client can choose for the session, as options of the Agent Client Protocol: the mode and the model. Null: the backend has
    /// no modes.
    #[schema(value_type = Option<Vec<Object>>, required)]
    pub config_options: Option<Vec<serde_json::Value>>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionModels {
    pub current_model_id: String,
    pub available_models: Vec<SessionModel>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionModel {
    pub model_id: String,
    pub name: String,
}

impl SessionModels {
    /// The model as one of the session's options.
    pub fn option(&self) -> serde_json::Value {
        let choice =
            |model: &SessionModel| serde_json::json!({"value": model.model_id, "name": model.name, "description": ""});
        let choices: Vec<_> = self.available_models.iter().map(choice).collect();
        serde_json::json!({"id": "model", "name": "Model", "description": "The backend profile of the next prompt",
            "category": "model", "type": "select", "currentValue": self.current_model_id, "options": choices})
    }
}

/// `POST /session/{sessionId}/model`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SetModel {
    pub model_id: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelSet {
    pub model_id: String,
}

/// `GET /session/{sessionId}/context`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionContext {
    pub v: u32,
    pub session_id: String,
    pub workspace_cwd: String,
    pub state: SessionState,
}
