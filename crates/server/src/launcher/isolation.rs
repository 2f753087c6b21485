//! Which namespaces agents can have on this machine, and whether the server runs as root. Probed once, by starting the guard
//! with each: no setting of the system is as reliable.

use std::{path::Path, process::Stdio, time::Duration};

use ostler_runner::guard::{Guarded, Isolation, Limits, Order};
use tokio::{process::Command, time::timeout};

use crate::{app::App, config::Config};

/// Time limit for the guard to start a program that exits at once.
const PROBE: Duration = Duration::from_secs(10);

/// The isolation of every agent of this server. The first caller waits for the probe.
pub(crate) async fn get(app: &App) -> Isolation {
    *app.isolation.get_or_init(|| probe(&app.config)).await
}

async fn probe(config: &Config) -> Isolation {
    let Some(guard) = config.runner.guard.as_deref().filter(|_| config.confinement.namespaces) else {
        return Isolation::None;
    };
    for isolation in [Isolation::UserNamespace, Isolation::Root] {
        if works(guard, isolation).await {
            return isolation;
        }
    }
    tracing::info!("this system gives agents no PID namespace; they can see the processes of other agents");
    Isolation::None
}

/// Whether the guard can start a program with these namespaces.
async fn works(guard: &Path, isolation: Isolation) -> bool {
    let order = Order { limits: Limits::default(), reach: None, runner_pid: std::process::id(), isolation };
    let guarded = Guarded { guard: guard.to_owned(), order };
    let mut command = Command::new(guard);
    // The guard's own program, which certainly exists.
    command.arg0("ostler").args(guarded.arguments(Path::new("/proc/self/exe"), &["--version".into()]));
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let Ok(mut child) = command.spawn() else { return false };
    timeout(PROBE, child.wait()).await.is_ok_and(|ended| ended.is_ok_and(|status| status.success()))
}

/// Whether this process has the rights of root, which its agents then share.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Warns an operator who runs the server as root, and probes namespaces before the first agent needs them.
pub(crate) fn start(app: &App) {
    if is_root() {
        tracing::warn!(
            "the server runs as root, and so do its agents, which can read and change root's files; \
             hint: run it as a user of its own, as deploy/ostler.service does"
        );
    }
    let app = app.clone();
    tokio::spawn(async move { get(&app).await });
}
