//! The state of the daemon dialect in this process.

use std::{path::PathBuf, sync::Arc, time::Duration};

use ostler_protocol::{Failure, Rule};
use ostler_server::{app::App, config::Config};
use ostler_store::daemon::sessions::OpenCounts;
use tokio::{
    sync::{Mutex, Semaphore},
    time::Instant,
};

use crate::{config::DaemonSection, replies::PendingReplies};

/// The last counts of the store, and when they were read.
type LastCounts = Mutex<Option<(Instant, OpenCounts)>>;
/// How long frames of a prompt are held back at most, if its response cannot be written.
const REPLY_WAIT_MAX: Duration = Duration::from_secs(1);

/// Shell commands of clients that run at once.
const SHELLS_MAX: usize = 8;

/// Large prompts that are being stored at once.
const LARGE_PROMPTS_MAX: usize = 8;

pub(crate) struct DaemonState {
    pub config: DaemonSection,
    /// The directory that the server is bound to, without symbolic links. `None` if it is bound to none.
    workspace: Option<PathBuf>,
    /// Prompts whose response is not yet sent.
    pub replies: PendingReplies,
    pub last_counts: LastCounts,
    /// Shell commands of clients that may run at once.
    pub shells: Arc<Semaphore>,
    /// Large prompts that may be stored at once.
    pub large_prompts: Semaphore,
}

impl DaemonState {
    pub(crate) fn open(config: &Config) -> Result<Self, Failure> {
        let workspace = config.server.workspace.as_ref().map(|path| {
            let unusable = |error| {
                let message = format!("server.workspace: {} cannot be used: {error}", path.display());
                Failure::invalid(Rule::Config, message)
            };
            path.canonicalize().map_err(unusable)
        });
        Ok(Self {
            config: config.section(),
            workspace: workspace.transpose()?,
            replies: PendingReplies::default(),
            last_counts: LastCounts::default(),
            shells: Arc::new(Semaphore::new(SHELLS_MAX)),
            large_prompts: Semaphore::new(LARGE_PROMPTS_MAX),
        })
    }

    /// The daemon dialect of this server.
    pub(crate) fn of(app: &App) -> &Self {
        app.state()
    }

    /// Waits until frames of the prompt may be sent, but not for long: other clients follow the session too.
    pub(crate) async fn replied(&self, prompt_id: &str) {
        if tokio::time::timeout(REPLY_WAIT_MAX, self.replies.replied(prompt_id)).await.is_err() {
            self.replies.forget(prompt_id);
        }
    }

    /// The workspace that the server is bound to.
    pub(crate) fn workspace(&self) -> Result<&PathBuf, Failure> {
        let none = || Failure::rule(Rule::NoWorkspace, "this server is bound to no workspace");
        self.workspace.as_ref().ok_or_else(none)
    }
}
