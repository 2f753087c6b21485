//! Interrupting a campaign.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use tokio::signal::unix::{SignalKind, signal};

/// Set by SIGINT and SIGTERM: rounds end early and clean up, because nothing else unmounts their disks.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

pub(crate) fn listen_for_signals() {
    thread::spawn(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let Ok(runtime) = runtime else { return };
        runtime.block_on(async {
            let (Ok(mut int), Ok(mut term)) = (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) else {
                return;
            };
            tokio::select! { _ = int.recv() => {}, _ = term.recv() => {} }
            INTERRUPTED.store(true, Ordering::Relaxed);
            eprintln!("interrupted: the rounds under way are ended");
        });
    });
}
