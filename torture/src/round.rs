//! One round: servers with a store of their own, work that goes on, a probe that breaks things, and the comparison of
//! everything that was acknowledged with what is there afterwards.

use std::ops::Range;
use std::path::Path;
use std::thread;
use std::time::Duration;

use ostler_testkit::{loop_mount::LoopMount, process::freeze};
use rustix::process::Signal;
use serde_json::json;

use crate::{
    api::Api,
    clock::{now, since},
    load::{Load, Mix},
    probe::{Disk, Probe},
    random::Random,
    report::{Fault, Tally, Violation},
    resources::{CampaignResources, Engine},
    server::Server,
    server_host::ServerHost,
};

const PROGRESS_WITHIN: Duration = Duration::from_secs(30);
const PROGRESS_POLL: Duration = Duration::from_millis(2);
const IMAGE_BYTES: u64 = 64 * 1024 * 1024;
/// A kernel thread may be in the middle of a commit of the journal when the processes stop.
const POWER_SETTLE: Duration = Duration::from_millis(30);

/// What a round starts with.
pub(crate) struct Setup {
    pub replicas: usize,
    pub mix: Mix,
    pub environment: Vec<(&'static str, String)>,
    pub image_bytes: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Self { replicas: 1, mix: Mix::ALL, environment: vec![], image_bytes: IMAGE_BYTES }
    }
}

pub(crate) struct Round<'a> {
    pub random: Random,
    pub tally: Tally,
    pub load: Option<Load>,
    pub api: Api,
    /// For each server, calls to it alone.
    pub server_apis: Vec<Api>,
    /// Sessions created to show that a server takes writes.
    server_writes: u64,
    /// `None` while one is down.
    pub servers: Vec<Option<Server>>,
    addresses: Vec<String>,
    // After the servers, which have files open on it, and before the directory that it is mounted in.
    pub disk: Option<LoopMount>,
    pub host: ServerHost,
    disks: u64,
    database: Option<(String, String)>,
    pub resources: &'a mut CampaignResources,
}

/// Plays one round of a probe and returns what was counted and found.
pub(crate) fn play(resources: &mut CampaignResources, probe: &Probe, seed: u64, logs: &Path) -> Tally {
    let mut random = Random::new(seed);
    let setup = (probe.setup)(&mut random, resources.engine);
    let engine = resources.engine;
    let violation = |what: String| Violation { engine, probe: probe.name, seed, what };
    let mut round = match Round::open(resources, random, setup, probe.disk) {
        Ok(round) => round,
        Err(why) => {
            let mut tally = Tally { rounds: 1, ..Tally::default() };
            tally.violations.push(violation(format!("the round could not start: {why}")));
            return tally;
        }
    };
    let disturbed = (probe.disturb)(&mut round);
    let mut found: Vec<String> = disturbed.err().into_iter().collect();
    found.extend(round.close());
    let mut tally = std::mem::take(&mut round.tally);
    if !found.is_empty() {
        round.host.keep_log(&logs.join(format!("{}-{}-{seed}.log", engine.name(), probe.name)));
    }
    tally.rounds = 1;
    tally.violations.extend(found.into_iter().map(violation));
    tally
}

impl<'a> Round<'a> {
    fn open(
        resources: &'a mut CampaignResources,
        mut random: Random,
        setup: Setup,
        disk: Disk,
    ) -> Result<Self, String> {
        let own_disk = disk != Disk::Shared && resources.mounts.is_ok();
        let mut host = ServerHost::new(&resources.ostler)?;
        setup.environment.iter().for_each(|(name, value)| host.set(name, value));
        let mut disk = None;
        let database = match resources.engine {
            Engine::Sqlite if own_disk => {
                let mount = LoopMount::create(&host.path("disk-0.img"), setup.image_bytes, &host.path("disk"))?;
                host.data_dir = mount.dir.join("data");
                disk = Some(mount);
                None
            }
            Engine::Sqlite => None,
            Engine::Postgres => Some(database(resources, &mut host, own_disk)?),
        };
        let mut servers = vec![];
        for number in 0..setup.replicas {
            servers.push(host.serve(number, "127.0.0.1:0")?);
        }
        let addresses: Vec<String> = servers.iter().map(|server| server.address.clone()).collect();
        let api = Api::new(&addresses, &servers[0].token)?;
        let server_apis = addresses.iter().map(|address| Api::new(std::slice::from_ref(address), &servers[0].token));
        let server_apis = server_apis.collect::<Result<Vec<_>, _>>()?;
        let load = Load::start(resources.runtime.handle(), &api, setup.mix, &mut random)?;
        let servers = servers.into_iter().map(Some).collect();
        let (tally, load) = (Tally::default(), Some(load));
        Ok(Self {
            random,
            tally,
            load,
            api,
            server_apis,
            server_writes: 0,
            servers,
            addresses,
            disk,
            host,
            disks: 0,
            database,
            resources,
        })
    }

    pub(crate) fn count(&mut self, fault: Fault) {
        self.tally.count(fault, 1);
    }

    /// Lets the work go on for a random time.
    pub(crate) fn let_work(&mut self, millis: Range<u64>) {
        thread::sleep(self.random.millis(millis));
    }

    fn acknowledged(&self) -> u64 {
        self.load.as_ref().map_or(0, |load| load.beat.acknowledged())
    }

    /// Waits until the load makes progress again and every server that is up has recovered. Fails if that takes too long
    /// after a fault has ended.
    pub(crate) fn wait_for_progress(&mut self) -> Result<(), String> {
        self.wait_for_load()?;
        for number in 0..self.servers.len() {
            if self.servers[number].is_some() {
                self.wait_for_server(number)?;
            }
        }
        Ok(())
    }

    /// Waits until this server is ready and has acknowledged a write. The load alone does not show it: with two servers it
    /// goes to the other one.
    fn wait_for_server(&mut self, number: usize) -> Result<(), String> {
        self.server_writes += 1;
        let body = json!({"tenantId": "local", "backendProfile": "scripted", "storageKind": "none",
            "sessionId": format!("write-{}-of-server-{number}", self.server_writes)});
        let api = &self.server_apis[number];
        let recovered = self.resources.runtime.block_on(async {
            api.insist("GET", "/health/readiness", None, PROGRESS_WITHIN).await?;
            api.insist("POST", "/api/v1/sessions", Some(&body), PROGRESS_WITHIN).await
        });
        recovered.map(drop).map_err(|why| format!("server {number} did not recover: {why}\n{}", self.host.log_end()))
    }

    /// Waits until something is acknowledged again, by whichever server.
    fn wait_for_load(&mut self) -> Result<(), String> {
        let (before, started) = (self.acknowledged(), now());
        while self.acknowledged() < before + 3 {
            for (number, server) in self.servers.iter_mut().enumerate() {
                if let Some(status) = server.as_mut().and_then(Server::ended) {
                    return Err(format!("server {number} ended by itself ({status}):\n{}", self.host.log_end()));
                }
            }
            if crate::interrupt::is_interrupted() {
                return Err("interrupted".into());
            }
            if since(started) > PROGRESS_WITHIN {
                return Err(format!("nothing was acknowledged in the {PROGRESS_WITHIN:?} after the fault had ended"));
            }
            thread::sleep(PROGRESS_POLL);
        }
        Ok(())
    }

    pub(crate) fn server(&self, number: usize) -> Result<&Server, String> {
        self.servers[number].as_ref().ok_or_else(|| format!("server {number} is down"))
    }

    pub(crate) fn kill_server(&mut self, number: usize) {
        if let Some(server) = self.servers[number].take() {
            server.kill();
        }
    }

    /// Starts a server again where it was.
    pub(crate) fn start_server(&mut self, number: usize) -> Result<(), String> {
        self.servers[number] = Some(self.host.serve(number, &self.addresses[number])?);
        Ok(())
    }

    /// Cuts the power of the machine with the store, and starts it again with what its disk has.
    pub(crate) fn cut_power(&mut self) -> Result<(), String> {
        match self.resources.engine {
            Engine::Sqlite => self.cut_sqlite_power(),
            Engine::Postgres => self.cut_postgres_power(),
        }
    }

    fn cut_sqlite_power(&mut self) -> Result<(), String> {
        let disk = self.disk.take().ok_or("this round has no disk of its own")?;
        let server = self.servers[0].take().ok_or("the server is down")?;
        if !freeze(server.id()) {
            return Err("the server could not be frozen".into());
        }
        thread::sleep(POWER_SETTLE);
        self.disks += 1;
        let copy = self.host.path(&format!("disk-{}.img", self.disks));
        disk.copy_device(&copy)?;
        server.kill();
        self.disk = Some(exchange(disk, &copy)?);
        self.start_server(0)
    }

    fn cut_postgres_power(&mut self) -> Result<(), String> {
        let power = self.resources.power()?;
        let disk = power.disk.take().ok_or("the cluster has no disk")?;
        power.cluster.pause()?;
        thread::sleep(POWER_SETTLE);
        power.cuts += 1;
        let copy = power.scratch.path().join(format!("disk-{}.img", power.cuts));
        disk.copy_device(&copy)?;
        power.cluster.kill()?;
        power.disk = Some(exchange(disk, &copy)?);
        power.cluster.start_again()
    }

    /// Ends every fault, lets everything end, and compares. Returns what was violated.
    fn close(&mut self) -> Vec<String> {
        let mut found = vec![];
        if let Some(postgres) = &mut self.resources.postgres {
            found.extend(postgres.heal().err());
        }
        for number in 0..self.servers.len() {
            match &self.servers[number] {
                Some(server) => server.signal(Signal::CONT),
                None => found.extend(self.start_server(number).err()),
            }
        }
        if let Some(load) = self.load.take() {
            let (facts, violations) = load.finish(self.resources.runtime.handle(), &self.host, self.tally.hidden_runs);
            self.tally.facts.add(&facts);
            found.extend(violations);
        }
        for server in self.servers.iter_mut().filter_map(Option::take) {
            found.extend(server.stop().err());
        }
        found.extend(self.host.verify().err());
        let log = self.host.log();
        found
            .extend(log.lines().find(|line| line.contains("panicked")).map(|line| format!("the server's log: {line}")));
        if let Some((url, name)) = self.database.take() {
            found.extend(self.resources.drop_database(&url, &name).err());
        }
        found
    }
}

/// Unmounts a disk and mounts its copy in its place.
fn exchange(disk: LoopMount, copy: &Path) -> Result<LoopMount, String> {
    let (dir, image) = (disk.dir.clone(), disk.image.clone());
    drop(disk);
    let _ = std::fs::remove_file(image);
    LoopMount::mount(copy, &dir)
}

/// Creates the round's database and sets its address for the servers. Returns the cluster's address and its name.
fn database(
    resources: &mut CampaignResources,
    host: &mut ServerHost,
    own_disk: bool,
) -> Result<(String, String), String> {
    let (cluster_url, ports) = match (own_disk, &resources.postgres) {
        (true, _) => {
            let cluster = &resources.power()?.cluster;
            (cluster.url(), vec![cluster.port()])
        }
        (false, Some(postgres)) => {
            (postgres.cluster.url(), postgres.proxies.iter().map(|proxy| proxy.address.port()).collect())
        }
        (false, None) => return Err("there is no Postgres".into()),
    };
    let name = resources.create_database(&cluster_url)?;
    host.database_urls = ports.iter().map(|port| format!("postgres://postgres@127.0.0.1:{port}/{name}")).collect();
    host.direct_url = cluster_url.rsplit_once('/').map(|(server, _)| format!("{server}/{name}"));
    Ok((cluster_url, name))
}
