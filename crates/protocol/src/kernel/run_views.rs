//! A run as callers see it: the stored run, and what people want to know about it in one word.

use serde::{Deserialize, Deserializer, Serialize, de::Error};
use serde_json::value::RawValue;
use utoipa::ToSchema;

use crate::kernel::runs::{Run, RunState};

#[derive(Clone, Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunView {
    #[serde(flatten)]
    pub run: Run,
    #[serde(flatten)]
    pub standing: RunStanding,
}

/// The fields of a [`RunView`] beside the run's own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunStanding {
    /// The state of the run's latest turn, for people. `status` is the run's own, for runners.
    pub state: RunState,
    /// How many permission requests wait for an answer.
    pub open_permissions: i64,
}

/// Read in two passes, because raw JSON inside a flattened struct cannot be read in one.
impl<'de> Deserialize<'de> for RunView {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        let text = Box::<RawValue>::deserialize(input)?;
        let run = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        let standing = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        Ok(Self { run, standing })
    }
}

/// Newest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct RunPage {
    pub runs: Vec<RunView>,
    pub next_cursor: Option<String>,
}
