//! Messages between agents. None are delivered yet: their methods are in the table, and answered like methods that nobody
//! knows.

use ostler_protocol::{
    Failure,
    mesh::{
        calls::unknown_method,
        messages::{
            AckParams, AckResult, PullParams, PullResult, QueryOnlineParams, QueryOnlineResult, RecallParams,
            RecallResult, SendParams, SendResult,
        },
        prekeys::{GetPrekeyParams, GetPrekeyResult, Prekey, PutPrekeyResult},
    },
};

use super::mesh::MeshCaller;
use crate::app::App;

pub async fn send(_: &App, _: &MeshCaller, _: SendParams) -> Result<SendResult, Failure> {
    Err(unknown_method("message.send"))
}

pub async fn pull(_: &App, _: &MeshCaller, _: PullParams) -> Result<PullResult, Failure> {
    Err(unknown_method("message.pull"))
}

pub async fn ack(_: &App, _: &MeshCaller, _: AckParams) -> Result<AckResult, Failure> {
    Err(unknown_method("message.ack"))
}

pub async fn recall(_: &App, _: &MeshCaller, _: RecallParams) -> Result<RecallResult, Failure> {
    Err(unknown_method("message.recall"))
}

pub async fn query_online(_: &App, _: &MeshCaller, _: QueryOnlineParams) -> Result<QueryOnlineResult, Failure> {
    Err(unknown_method("message.query_online"))
}

pub async fn put_prekey(_: &App, _: &MeshCaller, _: Prekey) -> Result<PutPrekeyResult, Failure> {
    Err(unknown_method("message.e2ee.put_prekey"))
}

pub async fn get_prekey(_: &App, _: &MeshCaller, _: GetPrekeyParams) -> Result<GetPrekeyResult, Failure> {
    Err(unknown_method("message.e2ee.get_prekey"))
}
