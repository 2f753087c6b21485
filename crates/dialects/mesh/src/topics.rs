//! Wake-ups between servers in the mesh.

use ostler_server::dialect::Topic;

use crate::{
    gateway::delivery::MAILBOX,
    service::{
        presence::{PROBE, SETTLED},
        tokens::LOGINS,
    },
};

pub(crate) const ALL: [&Topic; 4] = [&MAILBOX, &LOGINS, &PROBE, &SETTLED];

#[cfg(test)]
mod tests {
    use ostler_server::dialect::LegacyWord;

    use super::*;

    #[test]
    fn each_word_of_the_former_format_belongs_to_one_topic() {
        let found = |word: LegacyWord| {
            let mut found = ALL.into_iter().filter_map(|topic| Some((topic.name, (topic.legacy)(&word)?)));
            let one = found.next();
            assert_eq!(found.next(), None);
            one
        };
        let aid = "alice.localhost.test";
        assert_eq!(found(LegacyWord::Listener(aid.into())), Some(("mesh.mailbox", aid.into())));
        assert_eq!(found(LegacyWord::Frame(aid.into(), String::new())), Some(("mesh.mailbox", aid.into())));
        assert_eq!(found(LegacyWord::Urgent(format!("!{aid}"))), Some(("mesh.logins", aid.into())));
        let key = "phone/main/alice.localhost.test";
        assert_eq!(found(LegacyWord::Urgent(format!("?{key}"))), Some(("mesh.probe", key.into())));
        assert_eq!(found(LegacyWord::Urgent(format!("={key}"))), Some(("mesh.settled", key.into())));
        assert_eq!(found(LegacyWord::Listener("usr_1".into())), None);
    }
}
