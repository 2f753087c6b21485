//! The pages of the guide, as they are in `docs/`. `docs/SUMMARY.md` gives their order.

/// The contents, in the format of mdBook: headings, and lists of links to pages.
/// An image of a page.
pub(super) struct Chart {
    pub name: &'static str,
    pub svg: &'static str,
}

pub(super) const CHART: Chart =
    Chart { name: "benchmarks.svg", svg: include_str!("../../../../../docs/benchmarks.svg") };

pub(super) const SUMMARY: &str = include_str!("../../../../../docs/SUMMARY.md");

pub(super) struct Page {
    /// The file's path in `docs/`, without its ending. It is also the page's path below `/guide/`.
    pub(super) name: &'static str,
    pub(super) markdown: &'static str,
}

macro_rules! pages {
    ($($name:literal)*) => {
        &[$(Page { name: $name, markdown: include_str!(concat!("../../../../../docs/", $name, ".md")) }),*]
    };
}

pub(super) const PAGES: &[Page] = pages! {
    "acp"
    "adding-a-dialect"
    "adding-an-endpoint"
    "agents"
    "apply"
    "approvals"
    "automations"
    "backup"
    "benchmarks"
    "callers"
    "cli"
    "codex"
    "coding-agents"
    "configuration"
    "consent"
    "costs"
    "daemon"
    "english"
    "exit-codes"
    "generated/capabilities"
    "generated/cli"
    "generated/failures"
    "generated/manifest-rules"
    "generated/methods"
    "generated/metrics"
    "generated/rules"
    "getting-started"
    "glossary"
    "kubernetes"
    "kubernetes-clients"
    "kubernetes-runners"
    "limits"
    "live"
    "mcp-server"
    "mesh"
    "mesh-reference"
    "model"
    "operating"
    "profiles-threat-model"
    "provider-profiles"
    "proxy"
    "reliability"
    "retention"
    "run-input"
    "scale"
    "scripted-agent"
    "teammates"
    "testing"
    "threads"
    "tools"
    "ui-schema"
    "webhooks"
    "workspaces"
    "writing-a-runner"
};

pub(super) fn find(name: &str) -> Option<&'static Page> {
    PAGES.iter().find(|page| page.name == name)
}
