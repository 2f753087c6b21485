//! The state of the run input dialect in this process.

use ostler_protocol::Failure;

use super::{
    config::{RunInputSection, attachments::AttachmentsSection},
    files::Attachments,
};
use ostler_server::{app::App, config::Config};

pub(crate) struct RunInputState {
    pub config: RunInputSection,
    pub attachments: AttachmentsSection,
    pub files: Attachments,
}

impl RunInputState {
    pub(crate) fn open(config: &Config) -> Result<Self, Failure> {
        let attachments: AttachmentsSection = config.section();
        let files = Attachments::open(config, &attachments)?;
        Ok(Self { config: config.section(), attachments, files })
    }

    /// The run input dialect of this server.
    pub(crate) fn of(app: &App) -> &Self {
        app.state()
    }
}
