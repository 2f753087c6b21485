//! `agent.md`, an agent's public description: a front matter in YAML, then Markdown. Of YAML only what a description
//! needs is taken (texts, lists, mappings); anchors, aliases and tags are refused, for they make small texts large and
//! plain ones surprising.

use std::{collections::BTreeMap, sync::LazyLock};

use regex::Regex;
use saphyr_parser::{Event, Parser};

use super::Aid;
use crate::{
    Failure, Rule,
    redaction::{Redactor, is_secret_field},
};

pub const AGENT_MD_BYTES_MAX: usize = 4 * 1024;
pub const NAME_CHARS_MAX: usize = 64;
pub const DESCRIPTION_CHARS_MAX: usize = 100;
pub const VERSION_BYTES_MAX: usize = 32;
pub const TAGS_MAX: usize = 16;
pub const TAG_CHARS_MAX: usize = 32;
pub const TYPE_CHARS_MAX: usize = 32;
const DEPTH_MAX: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    /// Listed for every client.
    Public,
    /// Readable by clients that know its name.
    Unlisted,
    /// In no index.
    Private,
}

enum_words!(Visibility { Public => "public", Unlisted => "unlisted", Private => "private" });

/// What a server needs to know of a description. The text itself is served unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentMd {
    pub aid: Aid,
    pub name: String,
    /// Such as `human`, `assistant`, `avatar` or `codeagent`. Any other word is accepted too.
    pub kind: String,
    pub version: String,
    pub description: String,
    pub visibility: Visibility,
    pub tags: Vec<String>,
}

impl AgentMd {
    /// Reads a description that its owner gave.
    pub fn read(text: &str, owner: &Aid) -> Result<Self, Failure> {
        if text.len() > AGENT_MD_BYTES_MAX {
            return Err(Failure::too_large(Rule::AgentMdSize, "agent.md", text.len(), AGENT_MD_BYTES_MAX));
        }
        if text.contains('\0') {
            return Err(Failure::invalid(Rule::AgentMdNul, "agent.md is text, and text has no NUL in it"));
        }
        let front = front_matter(text)?;
        let fields = Fields(read_front(front)?);
        let aid: Aid = fields.text("aid", 253)?.parse().map_err(|fault| wrong("aid", format!("{fault}")))?;
        if aid != *owner {
            return Err(wrong("aid", "it is another agent's".to_owned()));
        }
        let version = fields.text("version", VERSION_BYTES_MAX)?;
        if semver::Version::parse(&version).is_err() {
            return Err(wrong("version", "three numbers with dots between them, as in 1.0.0".to_owned()));
        }
        let description = fields.text("description", DESCRIPTION_CHARS_MAX)?;
        let described = Self {
            aid,
            name: fields.text("name", NAME_CHARS_MAX)?,
            kind: fields.text("type", TYPE_CHARS_MAX)?,
            version,
            description,
            visibility: fields.visibility()?,
            tags: fields.tags()?,
        };
        if REDACTOR.redact(text) != text || BARE_KEY.is_match(text) {
            return Err(secret());
        }
        Ok(described)
    }
}

/// A description is public.
static REDACTOR: LazyLock<Redactor> = LazyLock::new(|| Redactor::new(&[]));
/// A private key without the lines around it: PKCS#8 or PKCS#1 in base64, or a JWK's.
#[expect(clippy::expect_used, reason = "the pattern is a constant")]
static BARE_KEY: LazyLock<Regex> = LazyLock::new(|| {
    let pattern =
        r#"\bMI[A-Za-z0-9+/]{2,6}(AgEA|IBAAK|AQEEI)[A-Za-z0-9+/=]{16,}|["']d["']\s*:\s*["'][A-Za-z0-9_-]{32,}"#;
    Regex::new(pattern).expect("the pattern is a constant")
});

fn secret() -> Failure {
    Failure::invalid(Rule::AgentMdSecret, "agent.md holds what looks like a key or a password")
}

/// A field that is named like a secret and is not empty.
fn is_secret(key: &str, node: &Node) -> bool {
    matches!(node, Node::Text(text) if !text.trim().is_empty() && is_secret_field(key, &format!("\"{text}\"")))
}

fn wrong(field: &str, message: String) -> Failure {
    Failure::invalid(Rule::AgentMdField, format!("agent.md: {field}: {message}")).detail("field", field)
}

/// The lines between the first line, `---`, and the next such line.
fn front_matter(text: &str) -> Result<&str, Failure> {
    let missing =
        || Failure::invalid(Rule::AgentMdFrontMatter, "agent.md begins with a front matter between two lines of ---");
    let rest = text.strip_prefix("---\n").or_else(|| text.strip_prefix("---\r\n")).ok_or_else(missing)?;
    let mut start = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return Ok(&rest[..start]);
        }
        start += line.len();
    }
    Err(missing())
}

enum Node {
    Text(String),
    List(Vec<Node>),
    /// Not interpreted here.
    Mapping,
}

/// Reads the mapping that a front matter is.
fn read_front(front: &str) -> Result<BTreeMap<String, Node>, Failure> {
    let bad = |why: &str| Failure::invalid(Rule::AgentMdYaml, format!("agent.md: the front matter {why}"));
    let mut events = Parser::new_from_str(front);
    let mut next = || match events.next() {
        Some(Ok((event, _))) => Ok(event),
        Some(Err(_)) | None => Err(bad("is not YAML")),
    };
    while !matches!(next()?, Event::DocumentStart(_)) {}
    let Event::MappingStart(0, None) = next()? else { return Err(bad("is not a mapping")) };
    let mut fields = BTreeMap::new();
    loop {
        let key = match next()? {
            Event::Scalar(key, _, 0, None) => key.into_owned(),
            Event::MappingEnd => break,
            _ => return Err(bad("has a key that is not a plain text")),
        };
        let first = next()?;
        let node = read_node(first, &mut next, DEPTH_MAX)
            .map_err(|why| why.unwrap_or_else(|| bad("uses more of YAML than is taken")))?;
        if is_secret(&key, &node) {
            return Err(secret());
        }
        if fields.insert(key, node).is_some() {
            return Err(bad("has a field twice"));
        }
    }
    let (end, over) = (next()?, next()?);
    if !matches!((end, over), (Event::DocumentEnd, Event::StreamEnd)) {
        return Err(bad("is more than one document"));
    }
    Ok(fields)
}

/// `Err(None)`: a feature of YAML that is not supported.
fn read_node<'a>(
    event: Event<'a>,
    next: &mut impl FnMut() -> Result<Event<'a>, Failure>,
    depth: usize,
) -> Result<Node, Option<Failure>> {
    let depth = depth.checked_sub(1).ok_or(None)?;
    match event {
        Event::Scalar(text, _, 0, None) => Ok(Node::Text(text.into_owned())),
        Event::SequenceStart(0, None) => {
            let mut items = Vec::new();
            loop {
                match next().map_err(Some)? {
                    Event::SequenceEnd => return Ok(Node::List(items)),
                    item => items.push(read_node(item, next, depth)?),
                }
            }
        }
        Event::MappingStart(0, None) => loop {
            match next().map_err(Some)? {
                Event::MappingEnd => return Ok(Node::Mapping),
                key => {
                    let key = read_node(key, next, depth)?;
                    let value = next().map_err(Some)?;
                    let value = read_node(value, next, depth)?;
                    if matches!(&key, Node::Text(key) if is_secret(key, &value)) {
                        return Err(Some(secret()));
                    }
                }
            }
        },
        _ => Err(None),
    }
}

struct Fields(BTreeMap<String, Node>);

impl Fields {
    fn text(&self, field: &str, chars_max: usize) -> Result<String, Failure> {
        let Some(Node::Text(text)) = self.0.get(field) else {
            return Err(wrong(field, "must be a text".to_owned()));
        };
        let length = text.chars().count();
        if !(1..=chars_max).contains(&length) || text.chars().any(char::is_control) || text.trim().is_empty() {
            return Err(wrong(field, format!("1 to {chars_max} characters on one line")));
        }
        Ok(text.clone())
    }

    fn visibility(&self) -> Result<Visibility, Failure> {
        let visibility = match self.0.get("visibility") {
            None => Some(Visibility::Public),
            Some(Node::Text(text)) => Visibility::parse(text),
            Some(_) => None,
        };
        visibility.ok_or_else(|| wrong("visibility", "public, unlisted or private".to_owned()))
    }

    fn tags(&self) -> Result<Vec<String>, Failure> {
        let tag = |node: &Node| match node {
            Node::Text(tag)
                if (1..=TAG_CHARS_MAX).contains(&tag.chars().count()) && !tag.contains(char::is_control) =>
            {
                Some(tag.clone())
            }
            _ => None,
        };
        let tags = match self.0.get("tags") {
            None => Some(vec![]),
            Some(Node::List(tags)) if tags.len() <= TAGS_MAX => tags.iter().map(tag).collect(),
            Some(_) => None,
        };
        tags.ok_or_else(|| {
            wrong("tags", format!("a list of up to {TAGS_MAX} texts of 1 to {TAG_CHARS_MAX} characters"))
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOOD: &str = "---\naid: \"alice.probe.test\"\nname: \"Alice 爱丽丝\"\ntype: assistant\nversion: 1.0.0\n\
        description: \"一句话描述\"\nvisibility: unlisted\ntags:\n  - coding\n  - review\nskills:\n  - name: x\n    depth: [1, {a: b}]\n\
        ---\n# Alice\n\n---\nMore.\n";

    fn owner() -> Aid {
        "alice.probe.test".parse().unwrap()
    }

    fn rule(text: &str) -> String {
        AgentMd::read(text, &owner()).unwrap_err().rule_name().unwrap().to_owned()
    }

    #[test]
    fn a_description_is_read() {
        let read = AgentMd::read(GOOD, &owner()).unwrap();
        assert_eq!(
            (read.name.as_str(), read.kind.as_str(), read.version.as_str()),
            ("Alice 爱丽丝", "assistant", "1.0.0")
        );
        assert_eq!((read.visibility, read.tags), (Visibility::Unlisted, vec!["coding".into(), "review".into()]));
        assert_eq!(AgentMd::read(&GOOD.replace('\n', "\r\n"), &owner()).unwrap().description, "一句话描述");
        let least = GOOD.replace("visibility: unlisted\n", "").replace("tags:\n  - coding\n  - review\n", "");
        let read = AgentMd::read(&least, &owner()).unwrap();
        assert_eq!((read.visibility, read.tags), (Visibility::Public, vec![]));
    }

    #[test]
    fn every_required_field_is_checked() {
        for field in ["aid", "name", "type", "version", "description"] {
            let left_out: String =
                GOOD.split_inclusive('\n').filter(|line| !line.starts_with(&format!("{field}:"))).collect();
            assert_eq!(rule(&left_out), "agent-md-field", "{field}");
        }
    }

    #[test]
    fn fields_keep_to_their_rules() {
        let changed = |from: &str, to: &str| {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD);
            AgentMd::read(&text, &owner()).err().map(|failure| failure.rule_name().unwrap().to_owned())
        };
        let field = Some("agent-md-field".to_owned());
        assert_eq!(changed("alice.probe.test", "bobby.probe.test"), field);
        assert_eq!(changed("alice.probe.test", "alice"), field);
        assert_eq!(changed("type: assistant", "type: robot"), None);
        assert_eq!(changed("type: assistant", &format!("type: {}", "r".repeat(TYPE_CHARS_MAX))), None);
        assert_eq!(changed("type: assistant", &format!("type: {}", "r".repeat(TYPE_CHARS_MAX + 1))), field);
        assert_eq!(changed("type: assistant", "type: [assistant]"), field);
        for version in ["1.0", "1.0.0.0", "v1.0.0", "01.0.0", "1..0", "1.0.x", "1.0.0-ü"] {
            assert_eq!(changed("1.0.0", version), field, "{version}");
        }
        assert_eq!(changed("1.0.0", "10.20.30-beta.1+build"), None);
        assert_eq!(changed("一句话描述", &"字".repeat(100)), None);
        assert_eq!(changed("一句话描述", &"字".repeat(101)), field);
        assert_eq!(changed("一句话描述", " "), field);
        assert_eq!(changed("unlisted", "secret"), field);
        assert_eq!(changed("- coding", "- [coding]"), field);
        assert_eq!(changed("- coding", &format!("- {}", "t".repeat(33))), field);
        let tags = |count: usize| "- t\n  ".repeat(count).trim_end().to_owned();
        assert_eq!(changed("- coding\n  - review", &tags(16)), None);
        assert_eq!(changed("- coding\n  - review", &tags(17)), field);
    }

    #[test]
    fn what_is_no_front_matter_is_refused() {
        for text in ["", "# Alice", "---", "---\naid: x\n", "\n---\naid: x\n---\n", " ---\naid: x\n---\n"] {
            assert_eq!(rule(text), "agent-md-front-matter", "{text:?}");
        }
        for front in ["", "[a, b]", "a: b\na: c", "? [x]\n: y", "a: 'b", "\tb: c: d", "a: b\n...\nc: d"] {
            assert_eq!(rule(&format!("---\n{front}\n---\n")), "agent-md-yaml", "{front:?}");
        }
    }

    #[test]
    fn yaml_that_grows_is_refused() {
        let laughs = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]";
        for front in
            [laughs, "a: &x b", "a: !!binary aGk=", "a: !x b", &format!("a: {}{}", "[".repeat(50), "]".repeat(50))]
        {
            assert_eq!(rule(&format!("---\n{front}\n---\n")), "agent-md-yaml", "{front}");
        }
    }

    #[test]
    fn a_description_has_no_more_than_its_bytes_and_no_secrets() {
        let sized = |length: usize| format!("{GOOD}{}", "x".repeat(length - GOOD.len()));
        assert!(AgentMd::read(&sized(AGENT_MD_BYTES_MAX), &owner()).is_ok());
        assert_eq!(rule(&sized(AGENT_MD_BYTES_MAX + 1)), "agent-md-size");
        let key = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49\n-----END PRIVATE KEY-----";
        assert_eq!(rule(&format!("{GOOD}{key}\n")), "agent-md-secret");
        assert_eq!(rule(&format!("{GOOD}\0")), "agent-md-nul");
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC*", front in "[-a-z:&*!\\[\\]{}'\"|>#\n ]{0,80}") {
            let _ = AgentMd::read(&text, &owner());
            let _ = AgentMd::read(&format!("---\n{front}\n---\n"), &owner());
        }
    }
}
