//! What a manifest at its size limit costs: to check, and to compare with one that differs in every tool. Both are asked
//! for by the request that tries a manifest: with the one that is there it only checks, with another it compares too.

use std::fmt::Write;
use std::time::Duration;

use tokio::time::timeout;

use crate::Outcome;
use crate::engine::{Bench, Engine};
use crate::http::{Connection, field, request};
use crate::machine::cpu;
use crate::report::Report;
use crate::server::Server;

const MANIFEST_BYTES_MAX: usize = 128 * 1024;
const REQUESTS: u32 = 50;
const TIMEOUT: Duration = Duration::from_secs(120);

pub async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let place = bench.place(Engine::Sqlite).await?;
    let server = bench.serve(&place)?;
    let (check, both) = timeout(TIMEOUT, costs(&server)).await??;
    server.stop()?;
    let ms = |cpu: Duration| cpu.as_secs_f64() * 1e3 / f64::from(REQUESTS);
    report.figure("manifest.check_cpu_ms", ms(check));
    report.figure("manifest.diff_cpu_ms", ms(both.saturating_sub(check)));
    report
        .note("manifest: of 128 KiB, changed in every tool; the request around the check counts as part of it".into());
    Ok(())
}

/// The CPU time of so many requests that check, and of as many that check and compare.
async fn costs(server: &Server) -> Outcome<(Duration, Duration)> {
    let (old, new) = (manifest("a"), manifest("b"));
    let mut connection = Connection::open(server).await?;
    let body = format!(r#"{{"name":"bench","capability_manifest":{old}}}"#);
    let agent = field(connection.call(&request(server, "POST", "/agents", &body)).await?, "id")?.to_owned();
    let mut costs = [Duration::ZERO; 2];
    for (manifest, cost) in [old, new].iter().zip(&mut costs) {
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
fn manifest(word: &str) -> String {
    let mut tools = String::new();
    for number in 0.. {
        let tool = format!(
            r##"{{"description_i18n_key":"tool.text","input_schema":{{"$defs":{{"place":{{"properties":{{"line":{{"minimum":0,"type":"integer"}},"path":{{"pattern":"^/[a-z]+","type":"string"}}}},"required":["path"],"type":"object"}}}},"additionalProperties":false,"properties":{{"from":{{"$ref":"#/$defs/place"}},"mode":{{"enum":["{word}","x","y"]}},"to":{{"items":{{"$ref":"#/$defs/place"}},"maxItems":9,"type":"array"}},"what":{{"oneOf":[{{"const":1}},{{"const":"{word}"}}]}}}},"required":["from"],"type":"object"}},"name":"tool_{number:04}","permission_scope":"filesystem:read"}}"##
        );
        if tools.len() + tool.len() + 400 > MANIFEST_BYTES_MAX {
            break;
        }
        write!(tools, "{}{tool}", if number == 0 { "" } else { "," }).expect("writing to a string");
    }
    format!(
        r#"{{"agent_version":"1.0.0","permission_scopes":[{{"id":"filesystem:read","label_i18n_key":"scope.label","sensitivity":"medium"}}],"schema_version":"1.0","tools":[{tools}]}}"#
    )
}
