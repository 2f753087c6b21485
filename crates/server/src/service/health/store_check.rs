//! The last result of checking the store.

use tokio::{sync::Mutex, time::Instant};

/// The last result of checking the store.
#[derive(Default)]
pub struct StoreCheck {
    pub(super) last: Mutex<Option<(Instant, StoreState)>>,
    /// The migrations and weak settings that the store last reported. Assumed unchanged while it does not respond.
    pub(super) settings: parking_lot::Mutex<(Vec<String>, Vec<String>)>,
}

#[derive(Clone, Debug, Default)]
pub struct StoreState {
    pub reachable: bool,
    pub writable: bool,
    /// Why it is not reachable or not writable.
    pub reason: Option<&'static str>,
    pub migrations: Vec<String>,
    pub weak_settings: Vec<String>,
}

impl StoreState {
    /// The state of a store that does not respond, with the migrations and settings that it last reported.
    pub(super) fn failed(check: &StoreCheck, reason: &'static str) -> Self {
        let (migrations, weak_settings) = check.settings.lock().clone();
        Self { reachable: false, writable: false, reason: Some(reason), migrations, weak_settings }
    }
}
