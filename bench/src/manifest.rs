//! What a manifest at its size limit costs: to check, and to compare with one that differs in every tool; one of an ordinary
//! kind, and the worst that is taken. Both are asked for by the request that tries a manifest: with the one that is there it only
//! checks, with another it compares too.

use std::fmt::Write;
use std::time::Duration;

use serde_json::{Map, Value, json};
use tokio::time::timeout;

use crate::engine::{Bench, Engine};
use crate::http::{Connection, field, request};
use crate::machine::cpu;
use crate::outcome::Outcome;
use crate::report::Report;
use crate::server::Server;

const MANIFEST_BYTES_MAX: usize = 128 * 1024;
const REQUESTS: u32 = 50;
const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let place = bench.place(Engine::Sqlite)?;
    let server = bench.serve(&place)?;
    let ms = |cpu: Duration| cpu.as_secs_f64() * 1e3 / f64::from(REQUESTS);
    for (kind, pair) in [("", [ordinary("a"), ordinary("b")]), ("hostile_", [hostile(false), hostile(true)])] {
        let (check, both) = timeout(TIMEOUT, costs(&server, &pair)).await??;
        report.figure(format!("manifest.{kind}check_cpu_ms"), ms(check));
        report.figure(format!("manifest.{kind}diff_cpu_ms"), ms(both.saturating_sub(check)));
    }
    server.stop()?;
    report
        .note("manifest: of 128 KiB, changed in every tool; the request around the check counts as part of it".into());
    Ok(())
}

/// The CPU time of so many requests that check, and of as many that check and compare.
async fn costs(server: &Server, [old, new]: &[String; 2]) -> Outcome<(Duration, Duration)> {
    let mut connection = Connection::open(server).await?;
    let body = format!(r#"{{"name":"bench","capability_manifest":{old}}}"#);
    let agent = field(connection.call(&request(server, "POST", "/agents", &body)).await?, "id")?.to_owned();
    let mut costs = [Duration::ZERO; 2];
    for (manifest, cost) in [old, new].into_iter().zip(&mut costs) {
        let body = format!(r#"{{"capability_manifest":{manifest}}}"#);
        let request = request(server, "POST", &format!("/agents/{agent}/manifest/diff"), &body);
        // The first one warms up and is not counted.
        connection.call(&request).await?;
        let before = cpu(server.pid())?;
        for _ in 0..REQUESTS {
            connection.call(&request).await?;
        }
        *cost = cpu(server.pid())? - before;
    }
    Ok((costs[0], costs[1]))
}

/// A manifest just below the limit, with as many tools of an ordinary kind as fit.
fn ordinary(word: &str) -> String {
    let mut tools = String::new();
    for number in 0.. {
        let tool = format!(
            r##"{{"description_i18n_key":"tool.text","input_schema":{{"$defs":{{"place":{{"properties":{{"line":{{"minimum":0,"type":"integer"}},"path":{{"pattern":"^/[a-z]+","type":"string"}}}},"required":["path"],"type":"object"}}}},"additionalProperties":false,"properties":{{"from":{{"$ref":"#/$defs/place"}},"mode":{{"enum":["{word}","x","y"]}},"to":{{"items":{{"$ref":"#/$defs/place"}},"maxItems":9,"type":"array"}},"what":{{"oneOf":[{{"const":1}},{{"const":"{word}"}}]}}}},"required":["from"],"type":"object"}},"name":"tool_{number:04}","permission_scope":"filesystem:read"}}"##
        );
        if tools.len() + tool.len() + 400 > MANIFEST_BYTES_MAX {
            break;
        }
        let _ = write!(tools, "{}{tool}", if number == 0 { "" } else { "," });
    }
    format!(
        r#"{{"agent_version":"1.0.0","permission_scopes":[{{"id":"filesystem:read","label_i18n_key":"scope.label","sensitivity":"medium"}}],"schema_version":"1.0","tools":[{tools}]}}"#
    )
}

/// As many as a manifest may have, of the kinds that cost most to compile: long classes, and large ones.
fn patterns() -> Map<String, Value> {
    let long = (0..8).map(|n| format!("{n}[{}]", r"\S".repeat(190)));
    let large = (0..55).map(|n| format!(r"x{n}\pL"));
    long.chain(large).enumerate().map(|(n, pattern)| (format!("p{n}"), json!({"pattern": pattern}))).collect()
}

/// Choices that have to be kept apart, each from each other, as long as there is budget for it; twice as many in the new one.
fn choices(is_new: bool) -> Map<String, Value> {
    let branch = |n: u32| if is_new { json!({"enum": [n, n + 1_000]}) } else { json!({"enum": [n]}) };
    let branches: Vec<_> = (0..if is_new { 120 } else { 60 }).map(branch).collect();
    (0..40).map(|n| (format!("q{n}"), json!({"oneOf": branches}))).collect()
}

/// Schemas in schemas that all lead to the same long list.
fn references(count: usize) -> Value {
    let to_list = json!({"$ref": "#/$defs/x"});
    let deep = (0..20).fold(to_list.clone(), |inner, _| json!({"properties": {"a": inner}}));
    let flat = json!({"not": {"if": true, "then": to_list}});
    let each = |n: usize| (format!("r{n}"), if n.is_multiple_of(100) { deep.clone() } else { flat.clone() });
    let properties: Map<_, _> = (0..count).map(each).collect();
    json!({"type": "object", "properties": properties, "$defs": {"x": {"enum": (0..100).collect::<Vec<_>>()}}})
}

/// The worst that is taken, just below the limit.
fn hostile(is_new: bool) -> String {
    let with = |count: usize| {
        let arguments = [
            json!({"type": "object", "properties": patterns()}),
            json!({"type": "object", "properties": choices(is_new)}),
            references(count),
        ];
        let tool = |(n, schema)| json!({"name": format!("tool_{n}"), "description_i18n_key": "tool.text", "input_schema": schema, "permission_scope": "filesystem:read"});
        let tools: Vec<_> = arguments.into_iter().enumerate().map(tool).collect();
        let scope = json!({"id": "filesystem:read", "label_i18n_key": "scope.label", "sensitivity": "medium"});
        json!({"agent_version": "1.0.0", "permission_scopes": [scope], "schema_version": "1.0", "tools": tools})
            .to_string()
    };
    let (empty, hundred) = (with(0).len(), with(100).len());
    // Later names are longer, by two digits at most.
    let each = (hundred - empty) / 100 + 3;
    with((MANIFEST_BYTES_MAX - empty) / each)
}
