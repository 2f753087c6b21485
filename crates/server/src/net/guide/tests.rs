use std::{collections::BTreeSet, fs, path::Path};

use super::{
    pages::{PAGES, SUMMARY},
    *,
};

fn docs() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs")
}

/// Files of a folder of `docs/` that are pages.
fn files(folder: &str) -> BTreeSet<String> {
    let prefix = if folder.is_empty() { String::new() } else { format!("{folder}/") };
    fs::read_dir(docs().join(folder))
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().unwrap().strip_suffix(".md").map(str::to_owned))
        .filter(|name| name != "SUMMARY")
        .map(|name| format!("{prefix}{name}"))
        .collect()
}

fn links(markdown: &str) -> Vec<String> {
    let links = Parser::new_ext(markdown, Options::ENABLE_TABLES).filter_map(|event| match event {
        Event::Start(Tag::Link { dest_url, .. }) => Some(dest_url.into_string()),
        _ => None,
    });
    links.collect()
}

fn ids(page: &Page) -> BTreeSet<String> {
    let headings = rendered_events(page.markdown, page.name).into_iter().filter_map(|event| match event {
        Event::Start(Tag::Heading { id, .. }) => id.map(CowStr::into_string),
        _ => None,
    });
    headings.collect()
}

#[test]
fn every_document_is_a_page_and_in_the_contents() {
    let names: BTreeSet<String> = PAGES.iter().map(|page| page.name.to_owned()).collect();
    let mut expected = files("");
    expected.extend(files("generated"));
    assert_eq!(names, expected, "crates/server/src/net/guide/pages.rs lists the files of docs/");
    let listed = links(SUMMARY);
    let contents: BTreeSet<String> = listed.iter().map(|link| link.trim_end_matches(".md").to_owned()).collect();
    assert_eq!(contents.len(), listed.len(), "docs/SUMMARY.md lists a page twice");
    assert_eq!(contents, names, "docs/SUMMARY.md lists the files of docs/");
}

#[test]
fn every_link_between_documents_leads_to_a_heading_or_a_file() {
    let mut broken = vec![];
    for page in PAGES {
        let base = page.name.rsplit_once('/').map_or("", |(folder, _)| folder);
        for link in links(page.markdown).into_iter().filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match path {
                "" => Some(page),
                path => {
                    if !docs().join(base).join(path).exists() {
                        broken.push(format!("{}: {link}", page.name));
                    }
                    let name = resolve(path, base, "").unwrap_or_default();
                    find(&name)
                }
            };
            if let Some(target) = target.filter(|target| !anchor.is_empty() && !ids(target).contains(anchor)) {
                broken.push(format!("{}: {link} (no such heading in {})", page.name, target.name));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn links_are_relative_to_the_page() {
    assert_eq!(resolve("cli.md", "", "getting-started").as_deref(), Some("cli"));
    assert_eq!(resolve("generated/rules.md#top", "", "cli").as_deref(), Some("generated/rules#top"));
    assert_eq!(resolve("../cli.md", "generated", "generated/rules").as_deref(), Some("../cli"));
    assert_eq!(resolve("../ARCHITECTURE.md", "", "cli"), None, "not part of the guide");
    assert_eq!(resolve("https://example.org/a.md", "", "cli").as_deref(), Some("https://example.org/a.md"));
}

#[test]
fn markup_in_documents_stays_text() {
    let page = Page { name: "cli", markdown: "# A `<b>`\n\n<script>alert(1)</script>\n\n`<i>` <!-- run -->\n" };
    let html = render(&page);
    assert!(!html.contains("<script") && !html.contains("alert(1)") && !html.contains("<!-- run"), "{html}");
    assert!(html.contains("A <code>&lt;b&gt;</code></h1>"), "{html}");
}
