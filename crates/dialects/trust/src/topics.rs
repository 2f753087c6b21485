//! Wake-ups between servers in the trust dialect.

use super::{listeners::Listener, state::Trust};
use ostler_server::dialect::{LegacyWord, Topic};

/// A person or an agent has a new pending notification; a frame is for all of their connections.
pub(crate) const LISTENER: Topic = Topic::new(
    "trust.listener",
    |app, key| Trust::of(app).listeners.reread(&Listener::named(key)),
    |app| Trust::of(app).listeners.reread_all(),
)
.receive(|app, key, frame| Trust::of(app).listeners.send(&Listener::named(key), &frame))
.legacy(|word| match word {
    // Names with a dot were those of the mesh.
    LegacyWord::Listener(name) | LegacyWord::Frame(name, _) => (!name.contains('.')).then(|| name.clone()),
    LegacyWord::Urgent(_) => None,
});
