//! Automations: create, get, list, update, delete, start, next times and history.

use bytes::Bytes;
use http::Method;
use ostler_protocol::{
    Failure,
    run_input::automations::{
        Automation, AutomationPage, AutomationStart, AutomationStartPage, CreateAutomation, ListAutomationStarts,
        ListAutomations, ListNextTimes, NextTimes, UpdateAutomation,
    },
};

use crate::{client::Client, path::Path, response};

const NOUN: &str = "automations";

impl Client {
    pub async fn create_automation(&self, automation: &CreateAutomation) -> Result<Automation, Failure> {
        self.post(Path::api(&[NOUN]), automation).await
    }

    pub async fn get_automation(&self, id: &str) -> Result<Automation, Failure> {
        self.get(Path::api(&[NOUN, id])).await
    }

    pub async fn list_automations(&self, query: &ListAutomations) -> Result<AutomationPage, Failure> {
        self.get(Path::api(&[NOUN]).query(query)?).await
    }

    pub async fn update_automation(&self, id: &str, change: &UpdateAutomation) -> Result<Automation, Failure> {
        self.patch(Path::api(&[NOUN, id]), change).await
    }

    pub async fn delete_automation(&self, id: &str) -> Result<(), Failure> {
        self.call(Method::DELETE, Path::api(&[NOUN, id]), Bytes::new()).await.map(drop)
    }

    /// Starts the automation at once.
    pub async fn start_automation(&self, id: &str) -> Result<AutomationStart, Failure> {
        response::parse(&self.call(Method::POST, Path::api(&[NOUN, id, "start"]), Bytes::new()).await?)
    }

    pub async fn list_automation_starts(
        &self,
        id: &str,
        query: &ListAutomationStarts,
    ) -> Result<AutomationStartPage, Failure> {
        self.get(Path::api(&[NOUN, id, "runs"]).query(query)?).await
    }

    pub async fn list_next_times(&self, id: &str, query: &ListNextTimes) -> Result<NextTimes, Failure> {
        self.get(Path::api(&[NOUN, id, "next"]).query(query)?).await
    }
}
