//! The paths of the document, with the ids of a scene put in.

use super::{PICTURE, Picture, Scene};

impl Scene {
    pub fn path(&self, template: &str) -> String {
        let Picture { bucket, path, url } = &self.picture;
        let signing = format!("signed-url?bucket={bucket}&path={path}");
        template
            .replace(PICTURE, url)
            .replace("attachments/signed-url", &format!("attachments/{signing}"))
            .replace("sessions/{threadId}", &format!("sessions/{}", self.thread_id))
            .replace("{runId}", &self.run_id)
            .replace("{sessionId}", &self.session_id)
            .replace("{commandId}", &self.command_id)
            .replace("{runnerJobId}", &self.job_id)
            .replace("{permissionId}", &self.permission_id)
            .replace("{tokenId}", &self.token_id)
            .replace("{holdId}", &self.hold_id)
            .replace("{agentId}", &self.agent_id)
            .replace("{agentTokenId}", &self.agent_token_id)
            .replace("{aid}", &self.peer.aid)
            .replace("{serial}", "1234")
            .replace("{userName}", &self.user_name)
            .replace("{profile}", &self.profile)
            .replace("{validationId}", &self.validation_id)
            .replace("{relationId}", &self.relation_id)
            .replace("{threadId}/events", &format!("{}/events?runId=run-1&idle_limit=1", self.thread_id))
            .replace("{threadId}/cancel", &format!("{}/cancel?runId=run-1", self.thread_id))
            .replace("{deliveryId}", &self.delivery_id)
    }
}
