//! `/guide`: the guides of `docs/` as pages, so that a server explains the version that it is. They are rendered when they are read and
//! have no script. Links between pages work; links to other files of the repository become plain text.

mod pages;

use std::fmt::Write;

use axum::{
    body::Bytes,
    extract::Path,
    response::{IntoResponse, Response},
};
use http::{StatusCode, header::LOCATION};
use ostler_protocol::Failure;
use pulldown_cmark::{CowStr, Event, HeadingLevel, LinkType, Options, Parser, Tag, TagEnd, html};

use self::pages::{CHART, Page, SUMMARY, find};
use super::{docs, problem};

pub(super) const PATH: &str = "/guide";
pub(super) const SLASH_PATH: &str = "/guide/";
pub(super) const PAGE_PATH: &str = "/guide/{*page}";
/// What `/guide` itself shows.
const FIRST: &str = "getting-started";

/// Relative, so that it also works behind a prefix.
pub(super) async fn first() -> Response {
    (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, format!("guide/{FIRST}"))]).into_response()
}

pub(super) async fn page(Path(name): Path<String>) -> Response {
    if name == CHART.name {
        return docs::chart(CHART.svg);
    }
    // Links in the repository name files, and readers copy them.
    let name = name.strip_suffix(".md").unwrap_or(&name);
    match find(name) {
        Some(page) => docs::html(Bytes::from(render(page))),
        None => problem::response(Failure::not_found("page of the guide")),
    }
}

fn render(page: &Page) -> String {
    let to_root = "../".repeat(page.name.matches('/').count());
    let mut main = String::new();
    let events = rendered_events(page.markdown, page.name);
    let title = title(page.markdown);
    html::push_html(&mut main, events.into_iter());
    let mut contents = String::new();
    html::push_html(&mut contents, rendered_events(SUMMARY, page.name).into_iter().skip_while(is_before_lists));
    let mut out = String::with_capacity(main.len() + contents.len() + 512);
    // Writing to a string does not fail.
    let _ = writeln!(
        out,
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>\
         <title>{} · Ostler</title><link rel=stylesheet href='{to_root}../docs/style.css'>\
         <body class=guide><nav><details open><summary>Ostler guide</summary>{contents}\
         <p><a href='{to_root}../docs'>API</a></p></details></nav><main>{main}</main></html>",
        docs::escaped(title),
    );
    out
}

/// The title of the summary itself is not part of the contents.
fn is_before_lists(event: &Event<'_>) -> bool {
    !matches!(event, Event::Start(Tag::List(_) | Tag::Heading { level: HeadingLevel::H2, .. }))
}

fn title(markdown: &str) -> &str {
    markdown.lines().find_map(|line| line.strip_prefix("# ")).unwrap_or("Guide")
}

/// The page's Markdown with an id for each heading, and with links as they have to be on the page `from`. Marks for tests, which are
/// comments in HTML, are left out.
fn rendered_events<'a>(markdown: &'a str, from: &str) -> Vec<Event<'a>> {
    let is_contents = std::ptr::eq(markdown, SUMMARY);
    let base = if is_contents { "" } else { from.rsplit_once('/').map_or("", |(folder, _)| folder) };
    let mut events: Vec<Event<'a>> = vec![];
    let mut heading = None;
    let mut ids: Vec<String> = vec![];
    // Whether each open link leads somewhere.
    let mut links: Vec<bool> = vec![];
    for event in Parser::new_ext(markdown, Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH) {
        match event {
            Event::Html(_) | Event::InlineHtml(_) => {}
            Event::Start(Tag::Heading { level, classes, attrs, .. }) => {
                heading = Some((events.len(), String::new()));
                events.push(Event::Start(Tag::Heading { level, id: None, classes, attrs }));
            }
            Event::End(TagEnd::Heading(level)) => {
                if let Some((at, text)) = heading.take() {
                    let slug = unique(slug(&text), &mut ids);
                    if let Event::Start(Tag::Heading { id, .. }) = &mut events[at] {
                        *id = Some(CowStr::from(slug));
                    }
                }
                events.push(Event::End(TagEnd::Heading(level)));
            }
            Event::Start(Tag::Link { link_type, dest_url, title, id }) => {
                let target = match link_type {
                    LinkType::Email => None,
                    _ => resolve(&dest_url, base, from),
                };
                links.push(target.is_some());
                if let Some(dest_url) = target {
                    events.push(Event::Start(Tag::Link { link_type, dest_url: dest_url.into(), title, id }));
                }
            }
            Event::End(TagEnd::Link) => {
                if links.pop() == Some(true) {
                    events.push(Event::End(TagEnd::Link));
                }
            }
            Event::Text(_) | Event::Code(_) => {
                if let (Some((_, heading)), Event::Text(text) | Event::Code(text)) = (&mut heading, &event) {
                    heading.push_str(text);
                }
                events.push(event);
            }
            other => events.push(other),
        }
    }
    events
}

/// Where a link leads on the page `from`. `None`: to a file that is not part of the guide.
fn resolve(link: &str, base: &str, from: &str) -> Option<String> {
    if link.contains("://") || link.starts_with('#') {
        return Some(link.to_owned());
    }
    let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
    let mut parts: Vec<&str> = base.split('/').filter(|part| !part.is_empty()).collect();
    for part in path.split('/') {
        match part {
            ".." => {
                parts.pop()?;
            }
            "." => {}
            part => parts.push(part),
        }
    }
    let target = parts.join("/");
    let page = find(target.strip_suffix(".md")?)?;
    let anchor = anchor.map(|anchor| format!("#{anchor}")).unwrap_or_default();
    Some(format!("{}{}{anchor}", "../".repeat(from.matches('/').count()), page.name))
}

/// The anchor of a heading, as GitHub and mdBook make it.
fn slug(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c.to_ascii_lowercase() }).collect()
}

/// A second heading of the same text gets `-1`.
fn unique(slug: String, ids: &mut Vec<String>) -> String {
    let same = ids.iter().filter(|id| **id == slug).count();
    ids.push(slug.clone());
    if same == 0 { slug } else { format!("{slug}-{same}") }
}

#[cfg(test)]
mod tests;
