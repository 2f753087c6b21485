//! The text of an HTML page, for a model. No parser: tags, scripts and styles are left out, and the common entities replaced.

/// Elements whose content is not shown.
const HIDDEN: [&str; 5] = ["script", "style", "noscript", "svg", "template"];
/// Elements that begin a line.
const BLOCKS: [&str; 18] = [
    "address",
    "article",
    "blockquote",
    "br",
    "div",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "hr",
    "li",
    "p",
    "pre",
    "section",
    "table",
    "tr",
];
const ENTITIES: [(&str, &str); 7] = [
    ("&nbsp;", " "),
    ("&lt;", "<"),
    ("&gt;", ">"),
    ("&quot;", "\""),
    ("&#39;", "'"),
    ("&apos;", "'"),
    // The last one, so that what it makes is not replaced again.
    ("&amp;", "&"),
];

pub(super) fn of_html(html: &str) -> String {
    let (mut text, mut rest) = (String::new(), html);
    while let Some(at) = rest.find('<') {
        text.push_str(&rest[..at]);
        let tag = &rest[at..];
        if let Some(comment) = tag.strip_prefix("<!--") {
            rest = comment.find("-->").map_or("", |end| &comment[end + 3..]);
            continue;
        }
        let Some(end) = tag.find('>') else {
            rest = "";
            break;
        };
        let name = name_of(&tag[1..end]);
        rest = &tag[end + 1..];
        if BLOCKS.contains(&name.as_str()) {
            text.push('\n');
        }
        if HIDDEN.contains(&name.as_str()) && !tag.starts_with("</") {
            rest = after_element(rest, &name);
        }
    }
    text.push_str(rest);
    tidy(&ENTITIES.iter().fold(text, |text, (entity, sign)| text.replace(entity, sign)))
}

fn name_of(tag: &str) -> String {
    let name = tag.trim_start_matches('/').split(|c: char| !c.is_ascii_alphanumeric()).next().unwrap_or_default();
    name.to_ascii_lowercase()
}

/// What follows the end tag of an element.
fn after_element<'a>(text: &'a str, name: &str) -> &'a str {
    let mut from = 0;
    while let Some(at) = text[from..].find("</") {
        from += at + 2;
        // Only the right tag is searched for its end, so that the time stays in proportion to the text.
        let tag = &text[from..];
        let is_end = tag.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name))
            && !tag[name.len()..].starts_with(|next: char| next.is_ascii_alphanumeric());
        if is_end {
            return tag.find('>').map_or("", |end| &tag[end + 1..]);
        }
    }
    ""
}

/// Lines without space at their ends, and no more than one empty line between them.
fn tidy(text: &str) -> String {
    let mut lines: Vec<String> = vec![];
    for line in text.lines() {
        let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
        let is_second_gap = line.is_empty() && lines.last().is_none_or(|last| last.is_empty());
        if !is_second_gap {
            lines.push(line);
        }
    }
    lines.join("\n").trim().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_page_is_reduced_to_its_text() {
        let page = "<html><head><title>Hi</title><style>p {color: red}</style><script>if (1 < 2) alert('</p>')</script></head>\
            <body><!-- hidden --><h1>One</h1><p>a &amp;lt; b&nbsp;c</p>\n\n\n<p>x <b>y</b></p></body>";
        assert_eq!(of_html(page), "Hi\nOne\n\na &lt; b c\n\nx y");
        assert_eq!(of_html("plain"), "plain");
        assert_eq!(of_html("cut <b"), "cut");
        assert_eq!(of_html("<script>never ends"), "");
        assert_eq!(of_html("<script>'</scripts>' '</b>' </SCRIPT >after"), "after");
    }

    #[test]
    fn the_time_stays_in_proportion_to_the_page() {
        // Each of these looks like the start of an end tag. Quadratic time would be minutes.
        let page = format!("<script>{}", "</".repeat(512 * 1024));
        assert_eq!(of_html(&page), "");
    }

    proptest! {
        #[test]
        fn any_text_is_reduced_without_a_panic(text in "[<>/a-z!&;ü -]{0,200}") {
            of_html(&text);
        }
    }
}
