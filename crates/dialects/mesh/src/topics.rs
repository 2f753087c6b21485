//! Wake-ups between servers in the mesh.

use ostler_protocol::mesh::{Aid, connections::Place};

use super::{service::presence, state::Mesh};
use ostler_server::{
    app::App,
    dialect::{FormerWord, Topic},
};

/// An identity's mailbox has a new message; a frame is for all connections of the identity.
pub const MAILBOX: Topic = Topic::new("mesh.mailbox", wake_mailbox, |app| Mesh::of(app).delivery.look_at_all())
    .receive(|app, key, frame| {
        if let Ok(aid) = key.parse::<Aid>() {
            Mesh::of(app).connections.push(&aid, &frame);
        }
    })
    .former(|word| match word {
        FormerWord::Listener(name) | FormerWord::Frame(name, _) => is_aid(name).then(|| name.clone()),
        FormerWord::Urgent(_) => None,
    });

/// Logins of an identity have ended.
pub const LOGINS: Topic = Topic::new("mesh.logins", wake_logins, |app| Mesh::of(app).recheck_all_logins())
    .urgent()
    .former(|word| former_urgent(word, '!'));

/// Another server probes the connection in a device slot.
pub const PROBE: Topic = Topic::new("mesh.probe", wake_probe, |_| {}).urgent().former(|word| former_urgent(word, '?'));

/// The probe of the connection in a device slot has ended.
pub const SETTLED: Topic =
    Topic::new("mesh.settled", wake_settled, |_| {}).urgent().former(|word| former_urgent(word, '='));

pub const ALL: [&Topic; 4] = [&MAILBOX, &LOGINS, &PROBE, &SETTLED];

/// The key of an identity's device slot.
pub fn place_key(aid: &Aid, Place { device_id, slot_id }: &Place) -> String {
    format!("{device_id}/{slot_id}/{aid}")
}

fn place(key: &str) -> Option<(Aid, Place)> {
    let mut parts = key.splitn(3, '/');
    let (device_id, slot_id) = (parts.next()?.to_owned(), parts.next()?.to_owned());
    Some((parts.next()?.parse().ok()?, Place { device_id, slot_id }))
}

fn wake_mailbox(app: &App, key: &str) {
    if let Ok(aid) = key.parse::<Aid>() {
        Mesh::of(app).delivery.look_again(&aid);
    }
}

fn wake_logins(app: &App, key: &str) {
    if let Ok(aid) = key.parse::<Aid>() {
        Mesh::of(app).recheck_logins(&aid);
    }
}

fn wake_probe(app: &App, key: &str) {
    if let Some((aid, place)) = place(key) {
        tokio::spawn(presence::answer_probe(app.clone(), aid, place));
    }
}

fn wake_settled(app: &App, key: &str) {
    if let Some(settled) = place(key) {
        // Ignore the error: no probe may be waiting for it on this server.
        let _ = Mesh::of(app).connections.settled_elsewhere.send(settled);
    }
}

/// Names of the mesh have a dot in them; in the former format no other names had one.
fn is_aid(name: &str) -> bool {
    name.parse::<Aid>().is_ok()
}

fn former_urgent(word: &FormerWord, sign: char) -> Option<String> {
    match word {
        FormerWord::Urgent(name) => name.strip_prefix(sign).map(str::to_owned),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_of_the_former_format_belongs_to_one_topic() {
        let found = |word: FormerWord| {
            let mut found = ALL.into_iter().filter_map(|topic| Some((topic.name, (topic.former)(&word)?)));
            let one = found.next();
            assert_eq!(found.next(), None);
            one
        };
        let aid = "alice.localhost.test";
        assert_eq!(found(FormerWord::Listener(aid.into())), Some(("mesh.mailbox", aid.into())));
        assert_eq!(found(FormerWord::Frame(aid.into(), String::new())), Some(("mesh.mailbox", aid.into())));
        assert_eq!(found(FormerWord::Urgent(format!("!{aid}"))), Some(("mesh.logins", aid.into())));
        let key = "phone/main/alice.localhost.test";
        assert_eq!(found(FormerWord::Urgent(format!("?{key}"))), Some(("mesh.probe", key.into())));
        assert_eq!(found(FormerWord::Urgent(format!("={key}"))), Some(("mesh.settled", key.into())));
        assert_eq!(found(FormerWord::Listener("usr_1".into())), None);
    }

    #[test]
    fn the_key_of_a_device_slot_is_parsed_as_it_was_formatted() {
        let aid: Aid = "alice.localhost.test".parse().unwrap();
        let at = Place { device_id: "d".into(), slot_id: String::new() };
        assert_eq!(place(&place_key(&aid, &at)), Some((aid, at)));
    }
}
