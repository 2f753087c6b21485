//! One file with everything that a server stores, and a data directory and store made from such a file. What belongs to it is
//! declared by the engine and the dialects ([`Holding`](crate::dialect::Holding)). `docs/adr/0047-one-file-backups.md`.
//!
//! Both work on the disk and the database themselves, whether or not a server runs. The configuration is not part of a backup.

mod create;
mod extract;
mod format;
mod places;
mod read_archive;
mod restore;
mod walk;
mod write_archive;

pub use create::{BackupOptions, BackupReport, back_up};
pub use format::{BackupContents, BackupManifest};
pub use restore::{CheckReport, RestoreOptions, RestoreReport, check, is_encrypted, restore};

pub use ostler_crypto::{
    Zeroizing,
    age::{AgeIdentity, AgeRecipient, Lock, Unlock},
};

/// A part of the work whose progress can be shown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BackupStep {
    Files,
    Store,
    /// Files that changed while the store was copied.
    ChangedFiles,
    Check,
    Restore,
    Verify,
}

/// Receives how much of a step is done. The total is an estimate.
pub trait BackupProgress: Send {
    fn progress(&mut self, step: BackupStep, done: u64, total: u64);
}

/// For callers that show nothing.
impl BackupProgress for () {
    fn progress(&mut self, _: BackupStep, _: u64, _: u64) {}
}
