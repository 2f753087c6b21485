//! Front matter: the YAML between two lines `---` at the beginning of a Markdown file. The part of YAML is read that people write
//! there: texts, numbers, lists and nested members by their indentation, quoted and folded texts, and JSON. It is written with JSON
//! for everything that is not a plain word, which every reader of YAML understands.

use serde_json::{Map, Value};

/// How deeply members nest.
const DEPTH_MAX: usize = 16;

/// The members of the front matter, and the text after it.
pub(super) fn parse(text: &str) -> Result<(Map<String, Value>, String), String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text).replace("\r\n", "\n");
    let rest = text.strip_prefix("---\n").ok_or("the file does not begin with front matter")?;
    let end = match rest.find("\n---\n") {
        Some(end) => end,
        None => rest.strip_suffix("\n---").map(str::len).ok_or("the front matter has no end")?,
    };
    let body = rest[end..].trim_start_matches("\n---").trim();
    let lines: Vec<&str> = rest[..end].lines().collect();
    let mut reader = Reader { lines: &lines, at: 0 };
    let members = reader.members(0, 0)?;
    if reader.at < lines.len() {
        return Err(reader.unreadable());
    }
    Ok((members, body.to_owned()))
}

pub(super) fn write(members: &Map<String, Value>, body: &str) -> String {
    let mut text = String::from("---\n");
    for (name, value) in members {
        text += &format!("{name}: {}\n", scalar(value));
    }
    text + "---\n\n" + body + "\n"
}

/// A plain word as it is, everything else as JSON.
fn scalar(value: &Value) -> String {
    let is_plain = |text: &&str| {
        let is_word = text.chars().all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
        is_word && text.starts_with(|c: char| c.is_ascii_alphabetic()) && !is_keyword(text)
    };
    match value.as_str().filter(is_plain) {
        Some(text) => text.to_owned(),
        None => value.to_string(),
    }
}

fn is_keyword(text: &str) -> bool {
    ["true", "false", "null", "yes", "no", "on", "off", "y", "n"].contains(&text.to_ascii_lowercase().as_str())
}

struct Reader<'a> {
    lines: &'a [&'a str],
    at: usize,
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start_matches(' ').len()
}

fn is_blank(line: &str) -> bool {
    line.trim().is_empty() || line.trim_start().starts_with('#')
}

impl Reader<'_> {
    fn unreadable(&self) -> String {
        format!("line {} of the front matter cannot be read", self.at + 1)
    }

    /// The next line that is not blank.
    fn peek(&mut self) -> Option<&str> {
        while self.lines.get(self.at).is_some_and(|line| is_blank(line)) {
            self.at += 1;
        }
        self.lines.get(self.at).copied()
    }

    /// The members at this indentation.
    fn members(&mut self, depth: usize, level: usize) -> Result<Map<String, Value>, String> {
        if level > DEPTH_MAX {
            return Err("the front matter nests too deeply".to_owned());
        }
        let mut members = Map::new();
        while let Some(line) = self.peek() {
            if indent(line) != depth || line.trim_start().starts_with("- ") {
                break;
            }
            let Some((name, value)) =
                line.trim().split_once(':').filter(|(_, rest)| rest.is_empty() || rest.starts_with(' '))
            else {
                return Err(self.unreadable());
            };
            let name = name.trim_matches(['"', '\'']).to_owned();
            let value = value.trim().to_owned();
            self.at += 1;
            let value = self.value(&value, depth, level)?;
            members.insert(name, value);
        }
        Ok(members)
    }

    /// The value of a member whose line is at `depth`.
    fn value(&mut self, text: &str, depth: usize, level: usize) -> Result<Value, String> {
        if text.starts_with(['|', '>']) {
            return Ok(Value::String(self.block(text, depth)));
        }
        if !text.is_empty() && !text.starts_with('#') {
            return inline(text).ok_or_else(|| self.unreadable_before());
        }
        match self.peek().map(|line| (indent(line), line.trim_start().starts_with('-'))) {
            Some((next, true)) if next >= depth => self.list(next),
            Some((next, false)) if next > depth => self.members(next, level + 1).map(Value::Object),
            _ => Ok(Value::Null),
        }
    }

    fn unreadable_before(&self) -> String {
        format!("line {} of the front matter cannot be read", self.at)
    }

    fn list(&mut self, depth: usize) -> Result<Value, String> {
        let mut items = vec![];
        while let Some(line) = self.peek() {
            let Some(item) = line.trim_start().strip_prefix('-').filter(|_| indent(line) == depth) else { break };
            let item = inline(item.trim()).ok_or_else(|| self.unreadable())?;
            items.push(item);
            self.at += 1;
        }
        Ok(Value::Array(items))
    }

    /// A text of several lines: `|` keeps them, `>` joins them.
    fn block(&mut self, marker: &str, depth: usize) -> String {
        let mut lines: Vec<&str> = vec![];
        let mut own = None;
        while let Some(line) = self.lines.get(self.at) {
            if !line.trim().is_empty() && indent(line) <= depth {
                break;
            }
            let from = *own.get_or_insert_with(|| indent(line));
            lines.push(line.get(from..).unwrap_or_default());
            self.at += 1;
        }
        let joined = if marker.starts_with('>') { lines.join(" ") } else { lines.join("\n") };
        joined.trim_end().to_owned()
    }
}

/// A value in one line. `None` if it cannot be read.
fn inline(text: &str) -> Option<Value> {
    match text.chars().next() {
        Some('"') => serde_json::from_str(text).ok(),
        Some('\'') => Some(text.strip_prefix('\'')?.strip_suffix('\'')?.replace("''", "'").into()),
        Some('[' | '{') => serde_json::from_str(text).ok().or_else(|| words(text)),
        _ => Some(plain(text)),
    }
}

/// A list such as `[a, b]`.
fn words(text: &str) -> Option<Value> {
    let inner = text.strip_prefix('[')?.strip_suffix(']')?;
    if inner.contains(['[', '{', '"']) {
        return None;
    }
    Some(inner.split(',').map(str::trim).filter(|word| !word.is_empty()).map(plain).collect())
}

fn plain(text: &str) -> Value {
    let text = text.split(" #").next().unwrap_or_default().trim();
    match text {
        "true" => true.into(),
        "false" => false.into(),
        "null" | "~" | "" => Value::Null,
        _ => match serde_json::from_str::<serde_json::Number>(text) {
            Ok(number) => Value::Number(number),
            Err(_) => text.into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn members(text: &str) -> Value {
        Value::Object(parse(&format!("---\n{text}\n---\nbody\n")).unwrap().0)
    }

    #[test]
    fn what_people_write_is_read() {
        let read = members(
            "name: tester # mine\ndescription: >\n  Tests\n  all\n\ntools:\n  - read_file\n  - 'it''s'\nmodel: \"big: one\"\n\
             runConfig:\n  max_turns: 5\n  max_time_minutes: 1.5\nbackground: true\nlist: [a, b]\nnothing:\njson: {\"a\": [1]}",
        );
        let expected = json!({"name": "tester", "description": "Tests all", "tools": ["read_file", "it's"],
            "model": "big: one", "runConfig": {"max_turns": 5, "max_time_minutes": 1.5}, "background": true,
            "list": ["a", "b"], "nothing": null, "json": {"a": [1]}});
        assert_eq!(read, expected);
        assert_eq!(members("text: |\n  one\n    two\nnext: 1"), json!({"text": "one\n  two", "next": 1}));
    }

    #[test]
    fn what_is_no_front_matter_is_reported_by_its_line() {
        for (text, expected) in [
            ("name: x", "the file does not begin"),
            ("---\nname: x\n", "has no end"),
            ("---\nname: x\nno colon\n---\n", "line 2 of"),
            ("---\nname: \"x\n---\n", "line 1 of"),
        ] {
            let problem = parse(text).unwrap_err();
            assert!(problem.contains(expected), "{text:?}: {problem}");
        }
        let deep: String = (0..40).map(|depth| format!("{}a:\n", " ".repeat(depth))).collect();
        assert!(parse(&format!("---\n{deep}---\n")).is_err());
    }

    #[test]
    fn everything_written_is_read_as_it_was() {
        let values = json!({"name": "yes", "a": "two\nlines: # x", "b": ["", "null", "1"], "c": {"d": {"e": [1.5, null]}}, "f": "é\u{1F600}"});
        let text = write(values.as_object().unwrap(), "Body.\n\n- a\n---\nmore");
        let (members, body) = parse(&text).unwrap();
        assert_eq!((Value::Object(members), body.as_str()), (values, "Body.\n\n- a\n---\nmore"));
    }
}
