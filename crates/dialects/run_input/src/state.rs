//! The state of the run input dialect in this process.

use ostler_protocol::Failure;
use tokio::sync::Notify;

use super::{
    config::{
        RunInputSection, attachments::AttachmentsSection, automations::AutomationsSection,
        system_agents::SystemAgentsSection, transcription::TranscriptionSection,
    },
    files::Attachments,
};
use ostler_server::{app::App, config::Config};

pub(crate) struct RunInputState {
    pub config: RunInputSection,
    pub attachments: AttachmentsSection,
    pub transcription: TranscriptionSection,
    pub files: Attachments,
    pub automations: AutomationsSection,
    pub system_agents: SystemAgentsSection,
    /// Notified when an automation may be due earlier than the scheduler expects.
    pub scheduler: Notify,
}

impl RunInputState {
    pub(crate) fn open(config: &Config) -> Result<Self, Failure> {
        let attachments: AttachmentsSection = config.section();
        let files = Attachments::open(config, &attachments)?;
        let (transcription, automations, system_agents) = (config.section(), config.section(), config.section());
        let scheduler = Notify::new();
        Ok(Self { config: config.section(), attachments, transcription, files, automations, system_agents, scheduler })
    }

    /// The run input dialect of this server.
    pub(crate) fn of(app: &App) -> &Self {
        app.state()
    }
}
