//! The format of wake-ups before version 2. A message of it consists of words: the sending server, `j` if jobs wait or `-`, then
//! `^urgent`, `@listener`, `!name!frame`, `#row` and `session:first-last`; `^*`, `@*` and `*` stand for more than was named.
//! Its names do not say which topic they belong to, so the dialects find that out.

use ostler_protocol::ids::SessionId;

use super::message::{LegacyWord, Wakeups};

pub(super) fn decode(text: &str) -> (Option<i64>, Wakeups) {
    let mut words = text.split(' ');
    let server = words.next().and_then(|word| word.parse().ok());
    let mut wakeups = Wakeups::default();
    match words.next() {
        Some("j") => wakeups.jobs = true,
        Some("-") => {}
        _ => return (server, Wakeups::everything()),
    }
    for word in words {
        match word {
            "*" => wakeups.all_sessions = true,
            "@*" => wakeups.all_topics = true,
            "^*" => wakeups.all_urgent = true,
            _ => {
                if !add(&mut wakeups, word) {
                    return (server, Wakeups::everything());
                }
            }
        }
    }
    (server, wakeups)
}

fn add(wakeups: &mut Wakeups, word: &str) -> bool {
    if let Some(frame) = frame(word) {
        wakeups.legacy_words.push(frame);
    } else if let Some(row) = word.strip_prefix('#').and_then(|row| row.parse().ok()) {
        wakeups.rows.push(row);
    } else if let Some(name) = word.strip_prefix('^') {
        wakeups.legacy_words.push(LegacyWord::Urgent(name.to_owned()));
    } else if let Some(name) = word.strip_prefix('@') {
        wakeups.legacy_words.push(LegacyWord::Listener(name.to_owned()));
    } else if let Some((session, numbers)) = range(word) {
        wakeups.add_session(session, numbers);
    } else {
        return false;
    }
    true
}

/// The frames of a row.
pub(super) fn decode_frames(text: &str) -> Wakeups {
    let mut wakeups = Wakeups::default();
    wakeups.legacy_words.extend(text.split(' ').filter_map(frame));
    wakeups
}

fn frame(word: &str) -> Option<LegacyWord> {
    let (name, frame) = word.strip_prefix('!')?.split_once('!')?;
    Some(LegacyWord::Frame(name.to_owned(), frame.to_owned()))
}

fn range(word: &str) -> Option<(SessionId, (i64, i64))> {
    let (session, numbers) = word.split_once(':')?;
    let (first, last) = numbers.split_once('-')?;
    Some((session.parse().ok()?, (first.parse().ok()?, last.parse().ok()?)))
}
