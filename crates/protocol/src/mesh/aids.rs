//! Names in the mesh: `{name}.{domain}`, where the domain is everything after the first dot. Lower case only: a name is
//! signed and hashed as it is written, so there is one way to write it.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A name that is registered here. Other domains may allow shorter ones.
pub const OWN_NAME_BYTES_MIN: usize = 4;
const NAME_BYTES_MIN: usize = 3;
pub const NAME_BYTES_MAX: usize = 64;
const LABEL_BYTES_MAX: usize = 63;
const AID_BYTES_MAX: usize = 253;

/// Services that a server offers as methods. They read no messages.
const BUILT_IN_SERVICES: [&str; 5] = ["auth", "gateway", "group", "message", "meta"];
/// Services that are identities like any other: they receive messages. Only the operator registers their names.
const IDENTITY_SERVICES: [&str; 5] = ["mail", "relay", "search", "storage", "stream"];
/// Names that a person could take for a service or for the operator.
const MISLEADING: [&str; 6] = ["admin", "operator", "ostler", "registry", "root", "trust"];

/// The text is not a valid name of the mesh, and why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAName(&'static str);

impl fmt::Display for NotAName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for NotAName {}

/// The domain of an issuer, such as `probe.test`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Domain(Box<str>);

impl Domain {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name of a service of this domain.
    pub fn service(&self, name: &str) -> String {
        format!("{name}.{self}")
    }
}

/// An identity's name, such as `alice.probe.test`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Aid(Box<str>);

impl Aid {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The part before the domain.
    pub fn name(&self) -> &str {
        self.parts().0
    }

    pub fn domain(&self) -> &str {
        self.parts().1
    }

    pub fn is_of(&self, domain: &Domain) -> bool {
        self.domain() == domain.as_str()
    }

    /// Whether any identity may register it. Names of services are reserved.
    pub fn is_free_to_take(&self) -> bool {
        let name = self.name();
        !self.is_built_in_service() && !self.is_agent_service() && !MISLEADING.contains(&name)
    }

    /// Whether it is the name of a service that has methods instead of a mailbox.
    pub fn is_built_in_service(&self) -> bool {
        BUILT_IN_SERVICES.contains(&self.name())
    }

    /// Whether it is the name of a service that receives messages, if the operator has registered it.
    pub fn is_agent_service(&self) -> bool {
        IDENTITY_SERVICES.contains(&self.name())
    }

    /// Whether the name is long enough to be registered. A peer's name may be shorter.
    pub fn is_long_enough_to_register(&self) -> bool {
        self.name().len() >= OWN_NAME_BYTES_MIN
    }

    #[expect(clippy::expect_used, reason = "checked when it was made")]
    fn parts(&self) -> (&str, &str) {
        self.0.split_once('.').expect("checked when it was made")
    }
}

impl FromStr for Domain {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let label = |label: &str| {
            let plain = label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-');
            (1..=LABEL_BYTES_MAX).contains(&label.len()) && plain && !label.starts_with('-') && !label.ends_with('-')
        };
        if text.len() > AID_BYTES_MAX || !text.split('.').all(label) {
            return Err(NotAName("a domain is made of labels of a-z, 0-9 and -, with dots between them"));
        }
        Ok(Self(text.into()))
    }
}

impl FromStr for Aid {
    type Err = NotAName;

    fn from_str(text: &str) -> Result<Self, NotAName> {
        let (name, domain) = text.split_once('.').ok_or(NotAName("an AID is a name, a dot and a domain"))?;
        domain.parse::<Domain>()?;
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'_';
        if text.len() > AID_BYTES_MAX || !(NAME_BYTES_MIN..=NAME_BYTES_MAX).contains(&name.len()) {
            return Err(NotAName("the name of an AID has 3 to 64 characters, the whole at most 253"));
        }
        if !name.bytes().all(plain) || name.starts_with('-') {
            return Err(NotAName("the name of an AID is made of a-z, 0-9, _ and -, and does not begin with -"));
        }
        if name.starts_with("guest") {
            return Err(NotAName("the name of an AID does not begin with guest"));
        }
        Ok(Self(text.into()))
    }
}

macro_rules! as_text {
    ($($name:ident)*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, output: S) -> Result<S::Ok, S::Error> {
                output.serialize_str(&self.0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
                String::deserialize(input)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}

as_text! { Aid Domain }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_is_the_part_before_the_first_dot() {
        let aid: Aid = "my_agent-1.sub.probe.test".parse().unwrap();
        assert_eq!((aid.name(), aid.domain()), ("my_agent-1", "sub.probe.test"));
        assert!(aid.is_of(&"sub.probe.test".parse().unwrap()) && !aid.is_of(&"probe.test".parse().unwrap()));
        assert_eq!(serde_json::to_string(&aid).unwrap(), "\"my_agent-1.sub.probe.test\"");
    }

    #[test]
    fn names_keep_to_their_letters_and_lengths() {
        let long = |length| format!("{}.probe.test", "a".repeat(length));
        for text in ["abc.test", "abcd.test", "_bcd.probe.test", "1234.x-y.test", &long(64)] {
            assert!(text.parse::<Aid>().is_ok(), "{text}");
        }
        for text in [
            "",
            "alice",
            ".probe.test",
            "ab.probe.test",
            &long(65),
            "alice.",
            "alice..test",
            "alice.-a.test",
            "alice.a-.test",
            "Alice.probe.test",
            "alice.Probe.test",
            "-lice.probe.test",
            "guest.probe.test",
            "guest-7.probe.test",
            "ali ce.probe.test",
            "älice.probe.test",
            "alice.probe_test",
            "alice.probe.test.",
            "alice.probe.test\n",
            &format!("alice.{}", "a".repeat(64)),
            &format!("alice.{}", ["a"; 130].join(".")),
        ] {
            assert!(text.parse::<Aid>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_name_of_a_service_cannot_be_registered() {
        let free = |name: &str| name.parse::<Aid>().unwrap().is_free_to_take();
        assert!(free("alice.probe.test") && !free("group.probe.test") && !free("auth.probe.test"));
        assert!(!free("mail.probe.test") && !free("operator.probe.test"));
    }

    #[test]
    fn a_peers_name_has_three_letters_and_a_registered_one_four() {
        let aid = |text: &str| text.parse::<Aid>().unwrap();
        assert!(!aid("bob.probe.test").is_long_enough_to_register());
        assert!(aid("bobb.probe.test").is_long_enough_to_register());
    }
}
