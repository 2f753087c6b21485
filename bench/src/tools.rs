//! The toolkit and the scheduler, on both engines: what the server uses for a call of a tool of its own, what it uses for a call of an MCP
//! server's tool beyond what the same call costs a client that makes it directly, and how the scheduler does with many automations.
//!
//! The calls are those of a runner: each is checked, authorised, recorded when it starts and when it ends, and returned.

mod direct;
mod scheduler;

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::future::try_join_all;
use memchr::memmem;
use ostler_testkit::mcp_server::{python, write_script};
use serde_json::json;
use tokio::time::timeout;

use crate::calls::{Append, Claimed, claim_new_run};
use crate::engine::{Bench, Engine};
use crate::http::{Connection, request};
use crate::machine::{cpu, now, own_cpu, since, sync_us};
use crate::outcome::Outcome;
use crate::report::{Report, median};
use crate::server::Server;
use direct::Direct;

/// Runs that call tools at the same time, one call after the other.
const CALLERS: usize = 16;
/// Runs of each caller in a round, one after the other. They exist before the round begins.
const RUNS_PER_CALLER: usize = 4;
/// About as many calls as a long turn makes.
const CALLS_PER_RUN: usize = 50;
const CALLS_PER_ROUND: usize = CALLERS * RUNS_PER_CALLER * CALLS_PER_RUN;
/// Calls whose time is measured, each alone.
const TIMED_CALLS: usize = 40;
const TIMEOUT: Duration = Duration::from_secs(300);
const TIME_NOW: Tool = Tool { name: "time_now", arguments: "{}" };
const ECHO: Tool = Tool { name: "mcp__bench__echo", arguments: r#"{\"text\":\"hello\"}"# };

/// A tool, and the arguments of its calls: the text of a JSON object, escaped as part of a JSON text.
#[derive(Clone, Copy)]
struct Tool {
    name: &'static str,
    arguments: &'static str,
}

/// A server that is bound to a workspace and has an MCP server, and another process of that MCP server.
struct Scene {
    server: Server,
    direct: Direct,
    workspace: PathBuf,
}

/// A client that plays runners.
struct Caller<'a> {
    scene: &'a Scene,
    connection: Connection,
    runs: Vec<Claimed>,
}

/// What was measured on one engine.
#[derive(Default)]
struct Figures {
    built_in_us: Vec<f64>,
    mcp_us: Vec<f64>,
    direct_us: Vec<f64>,
    generator_share: Vec<f64>,
    mcp_ms: Vec<f64>,
    direct_ms: Vec<f64>,
    commit_ms: Vec<f64>,
}

/// CPU time in one round: of the server for a call, and of the load generator as a share of it.
struct Used {
    server_us: f64,
    generator_share: f64,
}

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    report.figure("tools.sync_us", sync_us(bench.scratch())?);
    let (mut call_us, mut over_us, mut commits) = (0.0_f64, 0.0_f64, 0.0_f64);
    for engine in Engine::BOTH {
        let scene = Scene::open(bench, engine).await?;
        let figures = timeout(TIMEOUT, calls(bench, engine, &scene)).await??;
        scene.server.stop()?;
        let [call, over, waited] = show(report, engine, &figures);
        (call_us, over_us, commits) = (call_us.max(call), over_us.max(over), commits.max(waited));
    }
    report.figure("tools.call_overhead_us", call_us);
    report.figure("tools.mcp_over_direct_us", over_us);
    report.figure("tools.mcp_extra_commits", commits);
    report.note(format!(
        "tools: {CALLERS} runs at once, one call after the other in each; over_direct: the server's CPU for a call of a stdio server's \
         tool, less that of a client that makes the same calls of the same server with the same library; extra_commits: the time of one \
         such call alone, less that of a direct one, divided by that of an append; on the engine where it is worse"
    ));
    scheduler::measure(bench, report).await
}

impl Scene {
    async fn open(bench: &Bench, engine: Engine) -> Outcome<Self> {
        let workspace = bench.scratch().join(format!("tools-{}", engine.name()));
        std::fs::create_dir_all(&workspace)?;
        let workspace = workspace.canonicalize()?;
        let (python, script) = (python(), write_script(&workspace));
        let servers = json!({"bench": {"command": python, "args": [script, "good"]}}).to_string();
        let bound = workspace.to_string_lossy();
        let settings = [("OSTLER_SERVER__WORKSPACE", &*bound), ("OSTLER_MCP__SERVERS", &*servers)];
        let server = bench.serve_with(&bench.place(engine)?, &settings)?;
        let direct = Direct::start(&python, &script).await?;
        Ok(Self { server, direct, workspace })
    }
}

/// Rounds of calls of the server's own tool, of the MCP server's tool and of direct calls in turn.
async fn calls(bench: &Bench, engine: Engine, scene: &Scene) -> Outcome<Figures> {
    let mut callers = vec![];
    for _ in 0..CALLERS {
        callers.push(Caller { scene, connection: Connection::open(&scene.server).await?, runs: vec![] });
    }
    // The first round warms up, and has the server start the MCP server's process.
    round(&mut callers, ECHO).await?;
    scene.direct.round(CALLERS, CALLS_PER_RUN).await?;
    let mut figures = Figures::default();
    for number in 1..=bench.sizes.run_rounds {
        let built_in = round(&mut callers, TIME_NOW).await?;
        let mcp = round(&mut callers, ECHO).await?;
        let direct_us = scene.direct.round(CALLERS, CALLS_PER_ROUND / CALLERS).await?;
        eprintln!(
            "    tools.{} {number}: {:.1} µs of CPU for a call, {:.1} µs for one of an MCP server, {direct_us:.1} µs for a direct one",
            engine.name(),
            built_in.server_us,
            mcp.server_us
        );
        figures.built_in_us.push(built_in.server_us);
        figures.mcp_us.push(mcp.server_us);
        figures.direct_us.push(direct_us);
        figures.generator_share.push(built_in.generator_share);
        alone(scene, &mut callers[0], &mut figures).await?;
    }
    Ok(figures)
}

async fn round(callers: &mut [Caller<'_>], tool: Tool) -> Outcome<Used> {
    let Some(first) = callers.first() else { return Err("a round without callers".into()) };
    let server = first.scene.server.pid();
    for caller in callers.iter_mut() {
        caller.prepare(RUNS_PER_CALLER).await?;
    }
    let (server_before, own_before) = (cpu(server)?, own_cpu()?);
    try_join_all(callers.iter_mut().map(|caller| caller.call_all(tool))).await?;
    let (used, own) = (cpu(server)? - server_before, own_cpu()? - own_before);
    Ok(Used {
        server_us: used.as_secs_f64() * 1e6 / CALLS_PER_ROUND as f64,
        generator_share: own.as_secs_f64() / used.as_secs_f64(),
    })
}

/// Calls through the server, direct calls and appends in turn, while nothing else happens.
async fn alone(scene: &Scene, caller: &mut Caller<'_>, figures: &mut Figures) -> Outcome<()> {
    caller.prepare(2).await?;
    let (called, appended) = (caller.take_run()?, caller.take_run()?);
    let mut append = Append::new(&scene.server, &appended, &[("custom", r#"{"name":"bench","value":1}"#.to_owned())]);
    for number in 0..TIMED_CALLS {
        let started = now();
        caller.call(&called, ECHO, number).await?;
        figures.mcp_ms.push(since(started).as_secs_f64() * 1e3);
        let started = now();
        scene.direct.call().await?;
        figures.direct_ms.push(since(started).as_secs_f64() * 1e3);
        let started = now();
        append.send(&mut caller.connection).await?;
        figures.commit_ms.push(since(started).as_secs_f64() * 1e3);
    }
    Ok(())
}

impl Caller<'_> {
    /// Creates runs in the workspace, each with a command that this client works on.
    async fn prepare(&mut self, runs: usize) -> Outcome<()> {
        let body = run_request(&self.scene.workspace);
        self.runs.clear();
        for _ in 0..runs {
            let claimed = claim_new_run(&mut self.connection, &self.scene.server, &body).await?;
            let Claimed { command_id, lease_epoch, .. } = &claimed;
            let ack = format!(r#"{{"runnerId":"bench","leaseEpoch":{lease_epoch}}}"#);
            let path = format!("/api/v1/commands/{command_id}/ack");
            self.connection.call(&request(&self.scene.server, "POST", &path, &ack)).await?;
            self.runs.push(claimed);
        }
        Ok(())
    }

    fn take_run(&mut self) -> Outcome<Claimed> {
        self.runs.pop().ok_or_else(|| "no run is left".into())
    }

    async fn call_all(&mut self, tool: Tool) -> Outcome<()> {
        for run in std::mem::take(&mut self.runs) {
            for number in 0..CALLS_PER_RUN {
                self.call(&run, tool, number).await?;
            }
        }
        Ok(())
    }

    async fn call(&mut self, run: &Claimed, tool: Tool, number: usize) -> Outcome<()> {
        let (Claimed { run_id, command_id, lease_epoch }, Tool { name, arguments }) = (run, tool);
        let body = format!(
            r#"{{"runnerId":"bench","leaseEpoch":{lease_epoch},"commandId":"{command_id}","callId":"call_{number}","name":"{name}","arguments":"{arguments}","waitMs":20000}}"#
        );
        let path = format!("/api/v1/runs/{run_id}/tools/calls");
        let called = self.connection.call(&request(&self.scene.server, "POST", &path, &body)).await?;
        match memmem::find(called, br#""status":"completed""#) {
            Some(_) => Ok(()),
            None => Err(format!("a call of {name} did not complete: {}", String::from_utf8_lossy(called)).into()),
        }
    }
}

fn run_request(workspace: &Path) -> String {
    json!({"tenantId": "local", "projectId": "local/bench", "workspaceRef": {"kind": "local", "path": workspace},
        "providerId": "local", "backendProfile": "scripted", "traceSink": null})
    .to_string()
}

/// The figures that have targets: a call's CPU, what an MCP call uses beyond a direct one, and how many commits longer it takes.
fn show(report: &mut Report, engine: Engine, figures: &Figures) -> [f64; 3] {
    let name = engine.name();
    let of = |values: &[f64]| median(values.iter().copied());
    let call_us = of(&figures.built_in_us);
    // Values of the same round, so that a change of the machine's speed between rounds does not matter.
    let over_us = median(figures.mcp_us.iter().zip(&figures.direct_us).map(|(through, direct)| through - direct));
    let (mcp_ms, direct_ms, commit_ms) = (of(&figures.mcp_ms), of(&figures.direct_ms), of(&figures.commit_ms));
    let commits = (mcp_ms - direct_ms) / commit_ms;
    report.figure(format!("tools.{name}.call_overhead_us"), call_us);
    report.figure(format!("tools.{name}.mcp_cpu_us"), of(&figures.mcp_us));
    report.figure(format!("tools.{name}.direct_cpu_us"), of(&figures.direct_us));
    report.figure(format!("tools.{name}.mcp_over_direct_us"), over_us);
    report.figure(format!("tools.{name}.mcp_p50_ms"), mcp_ms);
    report.figure(format!("tools.{name}.direct_p50_ms"), direct_ms);
    report.figure(format!("tools.{name}.commit_p50_ms"), commit_ms);
    report.figure(format!("tools.{name}.mcp_extra_commits"), commits);
    report.generator_share(of(&figures.generator_share));
    [call_us, over_us, commits]
}
