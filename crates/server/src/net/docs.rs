//! `/docs`: the API's document as a page to read. It is made when it is first read, from the same document as `/openapi.json`, and has no
//! script: nothing on it can be made to run, and nothing comes from elsewhere.

use std::{collections::BTreeMap, fmt::Write};

use axum::{
    body::Bytes,
    response::{IntoResponse, Response},
};
use http::header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use serde_json::Value;

pub(super) const PATH: &str = "/docs";
pub(super) const STYLE_PATH: &str = "/docs/style.css";
/// Nothing is loaded except the page's own style and images, and no other page may frame it.
const CONTENT_POLICY: &str =
    "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// A chart has its style in itself.
const CHART_POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'";
const STYLE: &str = include_str!("docs.css");
/// The prefix of a reference to a schema of the document.
const SCHEMAS: &str = "#/components/schemas/";

pub(super) fn html(page: Bytes) -> Response {
    respond("text/html; charset=utf-8", CONTENT_POLICY, page)
}

pub(super) fn chart(svg: &'static str) -> Response {
    respond("image/svg+xml", CHART_POLICY, Bytes::from_static(svg.as_bytes()))
}

pub(super) fn style() -> Response {
    respond("text/css; charset=utf-8", CONTENT_POLICY, Bytes::from_static(STYLE.as_bytes()))
}

fn respond(content_type: &'static str, policy: &'static str, body: Bytes) -> Response {
    let fixed = HeaderValue::from_static;
    let headers = [
        (CONTENT_TYPE, fixed(content_type)),
        (CONTENT_SECURITY_POLICY, fixed(policy)),
        (X_CONTENT_TYPE_OPTIONS, fixed("nosniff")),
    ];
    (headers, body).into_response()
}

/// The whole page. Links are relative, so that it also works behind a prefix.
pub(super) fn page(document: &Value) -> String {
    let mut groups: BTreeMap<&str, String> = BTreeMap::new();
    for (path, item) in fields(&document["paths"]) {
        for (method, operation) in fields(item) {
            let tag = operation["tags"][0].as_str().unwrap_or("other");
            write_operation(groups.entry(tag).or_default(), method, path, operation);
        }
    }
    let (version, about) = (plain(&document["info"]["version"]), plain(&document["info"]["description"]));
    let mut out = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>\
         <title>Ostler API {version}</title><link rel=stylesheet href=docs/style.css>\
         <header><h1>Ostler API {version}</h1><p>{about} The same for programs: <a href=openapi.json>openapi.json</a>; \
         what this server can be relied on for: <a href=capabilities>capabilities</a>; how to use it: the <a href=guide>guide</a>.</p><nav>"
    );
    for tag in groups.keys() {
        push(&mut out, format_args!("<a href='#{0}'>{0}</a> ", escaped(tag)));
    }
    out.push_str("<a href='#shapes'>shapes</a></nav></header><main>");
    for (tag, operations) in &groups {
        push(&mut out, format_args!("<section id='{0}'><h2>{0}</h2>{operations}</section>", escaped(tag)));
    }
    out.push_str("<section id=shapes><h2>shapes</h2>");
    for (name, schema) in fields(&document["components"]["schemas"]) {
        push(
            &mut out,
            format_args!("<h3 id='shape-{0}'>{0}</h3><p>{1}</p>", escaped(name), plain(&schema["description"])),
        );
        write_schema(&mut out, schema);
    }
    out.push_str("</section></main></html>\n");
    out
}

fn write_operation(out: &mut String, method: &str, path: &str, operation: &Value) {
    let callers = match &operation["security"][0]["token"][0] {
        Value::String(role) => format!("needs <code>{}</code>", escaped(role)),
        _ => "no authentication".to_owned(),
    };
    push(
        out,
        format_args!(
            "<details id='{method}-{0}'><summary><b class={method}>{1}</b> <code>{0}</code> {2}</summary><p>{3} <i>{callers}</i></p>",
            escaped(path),
            method.to_uppercase(),
            plain(&operation["summary"]),
            plain(&operation["description"]),
        ),
    );
    let parameters = operation["parameters"].as_array().map_or(&[][..], Vec::as_slice);
    if !parameters.is_empty() {
        let rows = parameters.iter().map(|parameter| {
            let name = format!("{} ({})", text(&parameter["name"]), text(&parameter["in"]));
            row(&name, &parameter["schema"], parameter["required"] == true, &parameter["description"])
        });
        table(out, rows);
    }
    for (content, body) in fields(&operation["requestBody"]["content"]) {
        push(out, format_args!("<p>takes <code>{}</code>: {}</p>", escaped(content), kind(&body["schema"])));
    }
    out.push_str("<ul>");
    for (status, response) in fields(&operation["responses"]) {
        let bodies: Vec<_> = fields(&response["content"])
            .map(|(content, body)| format!("<code>{}</code>: {}", escaped(content), kind(&body["schema"])))
            .collect();
        let (words, bodies) = (plain(&response["description"]), bodies.join(", or "));
        push(out, format_args!("<li><b>{}</b> {bodies} {words}", escaped(status)));
    }
    out.push_str("</ul></details>");
}

fn write_schema(out: &mut String, schema: &Value) {
    let required = |name: &str| schema["required"].as_array().is_some_and(|list| list.iter().any(|r| r == name));
    let mut properties = fields(&schema["properties"]).peekable();
    if properties.peek().is_some() {
        table(out, properties.map(|(name, of)| row(name, of, required(name), &of["description"])));
    } else {
        push(out, format_args!("<p>{}</p>", kind(schema)));
    }
}

fn table(out: &mut String, rows: impl Iterator<Item = String>) {
    out.push_str("<table>");
    out.extend(rows);
    out.push_str("</table>");
}

fn row(name: &str, schema: &Value, required: bool, words: &Value) -> String {
    let star = if required { " <b title=required>*</b>" } else { "" };
    format!("<tr><td><code>{}</code>{star}<td>{}<td>{}", escaped(name), kind(schema), plain(words))
}

/// What a value may be, in a few words, with links to the shapes it names.
fn kind(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.strip_prefix(SCHEMAS)) {
        return format!("<a href='#shape-{0}'>{0}</a>", escaped(name));
    }
    for (key, between) in [("oneOf", " or "), ("anyOf", " or "), ("allOf", " with ")] {
        if let Value::Array(parts) = &schema[key] {
            return parts.iter().map(kind).collect::<Vec<_>>().join(between);
        }
    }
    if let Value::Array(values) = &schema["enum"] {
        return values.iter().map(|value| format!("<code>{}</code>", plain(value))).collect::<Vec<_>>().join(", ");
    }
    let named = |name: &Value| match text(name) {
        "array" => format!("list of {}", kind(&schema["items"])),
        name => escaped(name),
    };
    let mut words = match &schema["type"] {
        Value::Array(names) => names.iter().map(named).collect::<Vec<_>>().join(" or "),
        Value::Null => "anything".to_owned(),
        name => named(name),
    };
    if let Some(format) = schema["format"].as_str() {
        push(&mut words, format_args!(" ({})", escaped(format)));
    }
    words
}

fn fields(value: &Value) -> impl Iterator<Item = (&str, &Value)> {
    value.as_object().into_iter().flatten().map(|(name, value)| (name.as_str(), value))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn plain(value: &Value) -> String {
    escaped(text(value))
}

pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&#39;")
}

fn push(out: &mut String, words: std::fmt::Arguments<'_>) {
    // Writing to a string does not fail.
    let _ = out.write_fmt(words);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dialect::Dialects;

    #[test]
    fn texts_cannot_become_markup() {
        assert_eq!(escaped("<b a='\"'>&"), "&lt;b a=&#39;&quot;&#39;&gt;&amp;");
        let mut document = crate::openapi(&Dialects::default());
        document["info"]["description"] = "<script>alert(1)</script>".into();
        let page = page(&document);
        assert!(!page.contains("<script") && page.contains("&lt;script&gt;"));
    }
}
