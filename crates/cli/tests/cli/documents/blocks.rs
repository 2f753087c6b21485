//! The fenced blocks of a document, and the mark before each that tells the test what to do with it. A mark is a comment in HTML,
//! so readers do not see it:
//!
//! | mark | meaning |
//! |---|---|
//! | `<!-- run -->` | run it; a transcript must have the output shown |
//! | `<!-- run, other output -->` | run it; the output differs each time |
//! | `<!-- not run: REASON -->` | do not run it |
//! | `<!-- file: NAME -->` | write it to a file, for later blocks |
//! | `<!-- server: NAME=VALUE … -->` | start the page's server with this environment |
//! | `<!-- prepare: COMMANDS -->` | run these commands, which readers do not need |

#[derive(Debug, PartialEq)]
pub(crate) enum Mark {
    Run { is_compared: bool },
    NotRun,
    File(String),
}

#[derive(Debug, PartialEq)]
pub(crate) enum Part {
    Server(Vec<(String, String)>),
    Prepare(String),
    Block(Block),
}

#[derive(Debug, PartialEq)]
pub(crate) struct Block {
    pub line: usize,
    pub language: String,
    pub text: String,
    pub mark: Option<Mark>,
}

impl Block {
    /// Whether a reader would type it, so that it needs a mark.
    pub(crate) fn has_commands(&self) -> bool {
        let is_typed = |line: &str| line.starts_with("$ ") || line.starts_with("ostler ") || line.starts_with("curl ");
        matches!(self.language.as_str(), "sh" | "bash" | "console") || self.text.lines().any(is_typed)
    }

    /// The commands of the block, each with the output that the document shows. A script is one command without output.
    pub(crate) fn commands(&self) -> Vec<(String, Vec<String>)> {
        if !self.text.lines().any(|line| line.starts_with("$ ")) {
            return vec![(self.text.clone(), vec![])];
        }
        let mut commands: Vec<(String, Vec<String>)> = vec![];
        for line in self.text.lines() {
            match (line.strip_prefix("$ "), commands.last_mut()) {
                (Some(command), _) => commands.push((command.to_owned(), vec![])),
                (None, Some((command, output))) if output.is_empty() && is_unfinished(command) => {
                    command.push('\n');
                    command.push_str(line);
                }
                (None, Some((_, output))) => output.push(line.to_owned()),
                (None, None) => panic!("line {}: output before the first command", self.line),
            }
        }
        commands
    }
}

/// Whether a shell would wait for another line.
fn is_unfinished(command: &str) -> bool {
    command.ends_with('\\') || command.matches('\'').count() % 2 == 1 || command.matches('"').count() % 2 == 1
}

pub(crate) fn parse(markdown: &str) -> Vec<Part> {
    let mut parts = vec![];
    let mut mark = None;
    let mut lines = markdown.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if let Some(comment) = line.trim().strip_prefix("<!-- ") {
            let mut text = comment.to_owned();
            while !text.ends_with("-->") {
                text.push('\n');
                text.push_str(lines.next().expect("the comment ends").1);
            }
            let text = text.trim_end_matches("-->").trim();
            match text.split_once(':').map_or((text, ""), |(name, value)| (name, value.trim())) {
                ("run", _) => mark = Some(Mark::Run { is_compared: true }),
                ("run, other output", _) => mark = Some(Mark::Run { is_compared: false }),
                ("not run", reason) => {
                    assert!(!reason.is_empty(), "line {}: `not run` needs a reason", number + 1);
                    mark = Some(Mark::NotRun);
                }
                ("file", name) => mark = Some(Mark::File(name.to_owned())),
                ("server", variables) => parts.push(Part::Server(
                    variables
                        .split_whitespace()
                        .map(|one| one.split_once('=').expect("NAME=VALUE"))
                        .map(|(name, value)| (name.to_owned(), value.to_owned()))
                        .collect(),
                )),
                ("prepare", commands) => parts.push(Part::Prepare(commands.to_owned())),
                _ => {}
            }
        } else if let Some(language) = line.trim_start().strip_prefix("```") {
            let indent = line.len() - line.trim_start().len();
            let mut text = String::new();
            for (_, line) in lines.by_ref().take_while(|(_, line)| line.trim() != "```") {
                text.push_str(line.get(indent..).unwrap_or(line.trim_start()));
                text.push('\n');
            }
            parts.push(Part::Block(Block { line: number + 1, language: language.to_owned(), text, mark: mark.take() }));
        } else if !line.trim().is_empty() {
            mark = None;
        }
    }
    parts
}

#[test]
fn a_transcript_is_split_into_commands_and_output() {
    let block = |text: &str| Block { line: 1, language: "text".into(), text: text.into(), mark: None };
    let two = block("$ echo 'a\nb'\na\nb\n$ true \\\n  x\n");
    let expected = [("echo 'a\nb'", vec!["a", "b"]), ("true \\\n  x", vec![])];
    let commands = two.commands();
    let commands: Vec<(&str, Vec<&str>)> = commands
        .iter()
        .map(|(command, output)| (command.as_str(), output.iter().map(String::as_str).collect()))
        .collect();
    assert_eq!(commands, expected);
    assert!(two.has_commands() && !block("a: b\n").has_commands());
}

#[test]
fn a_mark_belongs_to_the_next_block_only() {
    let parts = parse(
        "<!-- not run: needs a domain -->\n\n```sh\na\n```\n\n```sh\nb\n```\n<!-- run -->\ntext\n```sh\nc\n```\n",
    );
    let marks: Vec<_> = parts
        .iter()
        .map(|part| match part {
            Part::Block(block) => (block.line, &block.mark),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(marks, [(3, &Some(Mark::NotRun)), (7, &None), (12, &None)]);
}
