//! The scheduler of automations: what it costs to find what is due among few and among many automations that are not, and how soon a
//! thousand that are due at the same time have been started.
//!
//! All automations but one are written past the server, because a hundred thousand requests would take minutes and leave the same rows.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{sleep, timeout};

use crate::engine::{Bench, Engine, Place};
use crate::http::{Connection, field, request};
use crate::machine::{ThreadTimes, tree, unix_us};
use crate::outcome::Outcome;
use crate::report::{Report, median, percentile};
use crate::server::Server;
use crate::sessions::{count_rows, execute};

const FEW: usize = 100;
const MANY: usize = 100_000;
const DUE: usize = 1_000;
const CREATE: &str = r#"{"title":"Digest","timezone":"UTC","config":{"input_template":"hi","schedule":{"type":"daily","run_at":{"hour":7,"minute":0}}}}"#;
/// As short as the server allows, so that nearly all of its work is to look for what is due. It looks that often while a start has not
/// ended, and each store has one.
const POLL_MS: &str = "10";
const SETTLE: Duration = Duration::from_secs(2);
/// How long one scheduler is observed, while the other one is stopped.
const OBSERVED: Duration = Duration::from_secs(1);
/// After a scheduler continues, before it is observed.
const CONTINUED: Duration = Duration::from_millis(100);
/// The CPU time that each scheduler uses in all its turns, at least: less would be too short to compare.
const USED_MIN: Duration = Duration::from_millis(100);
const PAIRS_MIN: usize = 9;
const PAIRS_MAX: usize = 60;
/// From before the server starts until the automations are due.
const AHEAD_US: u64 = 5_000_000;
/// When the first of those that are not due will be.
const LATER_US: u64 = 10 * 24 * 3_600 * 1_000_000;
const CHECK_PAUSE: Duration = Duration::from_millis(20);
const TIMEOUT: Duration = Duration::from_secs(120);

/// What two schedulers used in turns.
struct Compared {
    few_ms_per_s: f64,
    many_ms_per_s: f64,
    /// Of the turns that follow each other.
    ratios: Vec<f64>,
    /// What each of them used in all its turns, if that is too short to compare.
    too_short: Option<[Duration; 2]>,
}

pub(crate) async fn measure(bench: &Bench, report: &mut Report) -> Outcome<()> {
    let (mut worst_ratio, mut worst_s) = (0.0_f64, 0.0_f64);
    for engine in Engine::BOTH {
        let name = engine.name();
        let few = filled(bench, engine, FEW).await?;
        let many = filled(bench, engine, MANY).await?;
        let Compared { few_ms_per_s, many_ms_per_s, mut ratios, too_short } = compare(bench, &few, &many).await?;
        if let Some([few, many]) = too_short {
            report.note(format!(
                "tools.{name}: the schedulers used only {few:?} and {many:?} of CPU time in {PAIRS_MAX} turns, so their ratio is inexact"
            ));
        }
        let started_s = timeout(TIMEOUT, start_due(bench, &many)).await??;
        ratios.sort_by(f64::total_cmp);
        let (low, ratio, high) = (percentile(&ratios, 25), median(ratios.iter().copied()), percentile(&ratios, 75));
        eprintln!(
            "    tools.{name}: {few_ms_per_s:.1} ms of CPU in a second with {FEW} automations, {many_ms_per_s:.1} ms with {MANY}, \
             {ratio:.2} times as much ({low:.2} to {high:.2} in the middle half of {} pairs); {DUE} started in {started_s:.2} s",
            ratios.len()
        );
        report.figure(format!("tools.{name}.scheduler_100_ms_per_s"), few_ms_per_s);
        report.figure(format!("tools.{name}.scheduler_100k_ms_per_s"), many_ms_per_s);
        report.figure(format!("tools.{name}.due_ratio_p25"), low);
        report.figure(format!("tools.{name}.due_ratio_p50"), ratio);
        report.figure(format!("tools.{name}.due_ratio_p75"), high);
        report.figure(format!("tools.{name}.start_1000_s"), started_s);
        (worst_ratio, worst_s) = (worst_ratio.max(ratio), worst_s.max(started_s));
    }
    report.figure("tools.due_ratio_100k_to_100", worst_ratio);
    report.figure("tools.start_1000_s", worst_s);
    report.note(format!(
        "tools: the scheduler looks for what is due every {POLL_MS} ms; two of them run in turns of {} s, and the ratio is the median over \
         pairs of turns of the CPU time of the server and of Postgres with {MANY} automations of which none is due against {FEW}; {DUE} of \
         {MANY} are due at the same time, until the last run is submitted; on the engine where it is worse",
        OBSERVED.as_secs()
    ));
    Ok(())
}

/// A store with so many automations, none of which is due for days.
async fn filled(bench: &Bench, engine: Engine, count: usize) -> Outcome<Place> {
    let place = bench.place(engine)?;
    let server = bench.serve(&place)?;
    let mut connection = Connection::open(&server).await?;
    let made = connection.call(&request(&server, "POST", "/api/v1/automations", CREATE)).await?;
    let first = field(made, "id")?.to_owned();
    drop(connection);
    server.stop()?;
    let later = unix_us() + LATER_US;
    // The digits of a number are those of an id, too.
    let zeros = "0".repeat(32);
    let columns = "owner_id, tenant_id, title, bootstrap_key, config, timezone, last_run_at, status, disabled_reason, failures, \
                   plan_after, plan_last_date, plan_zone_rules, revision, created_at, updated_at";
    execute(&place, &format!("UPDATE automations SET next_run_at = {later}")).await?;
    let copy = format!(
        "WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {})
         INSERT INTO automations (automation_id, next_run_at, {columns})
         SELECT 'aut_' || substr('{zeros}', 1, 32 - length(CAST(n AS TEXT))) || CAST(n AS TEXT), {later} + CAST(n AS BIGINT) * 1000000, {columns}
         FROM numbers, automations WHERE automation_id = '{first}'",
        count - 1
    );
    execute(&place, &copy).await?;
    if engine == Engine::Postgres {
        // It would do this within its minute.
        execute(&place, "VACUUM ANALYZE automations").await?;
    }
    match count_rows(&place, "SELECT COUNT(*) FROM automations").await? {
        found if found == count as i64 => Ok(place),
        found => Err(format!("{found} automations instead of {count}").into()),
    }
}

/// A scheduler that is stopped except in its turns.
struct Turns {
    /// Of Postgres.
    postmaster: Option<u32>,
    server: Server,
    used: Duration,
    observed: Duration,
}

impl Turns {
    async fn start(bench: &Bench, place: &Place) -> Outcome<Self> {
        execute(place, &open_start()).await?;
        let server = bench.serve_with(place, &[("OSTLER_AUTOMATIONS__POLL_MS", POLL_MS)])?;
        let postmaster = match place.engine {
            Engine::Postgres => Some(bench.postmaster().await?),
            Engine::Sqlite => None,
        };
        sleep(SETTLE).await;
        let turns = Self { postmaster, server, used: Duration::ZERO, observed: Duration::ZERO };
        turns.signal(Signal::STOP)?;
        Ok(turns)
    }

    fn signal(&self, signal: Signal) -> Outcome<()> {
        let pid = Pid::from_raw(i32::try_from(self.server.pid())?).ok_or("a server without a process")?;
        Ok(kill_process(pid, signal)?)
    }

    /// The server, and Postgres with its connections.
    fn times(&self) -> Outcome<ThreadTimes> {
        let mut pids = vec![self.server.pid()];
        if let Some(postmaster) = self.postmaster {
            pids.extend(tree(postmaster)?);
        }
        ThreadTimes::of(&pids)
    }

    /// One turn: seconds of CPU time.
    async fn take(&mut self) -> Outcome<f64> {
        self.signal(Signal::CONT)?;
        sleep(CONTINUED).await;
        let before = self.times()?;
        sleep(OBSERVED).await;
        let used = self.times()?.since(&before);
        self.signal(Signal::STOP)?;
        self.used += used;
        self.observed += OBSERVED;
        Ok(used.as_secs_f64())
    }

    fn ms_per_s(&self) -> f64 {
        self.used.as_secs_f64() * 1e3 / self.observed.as_secs_f64()
    }

    async fn end(self, place: &Place) -> Outcome<()> {
        self.signal(Signal::CONT)?;
        self.server.stop()?;
        execute(place, "DELETE FROM automation_starts").await
    }
}

/// A start that does not end while it is observed, and no scheduler retries it.
fn open_start() -> String {
    let (now, later) = (unix_us(), unix_us() + LATER_US);
    format!(
        "INSERT INTO automation_starts (start_id, automation_id, owner_id, start_key, caused_by, status, thread_id, run_id, attempts,
             claimed_until, created_at)
         SELECT 'open', automation_id, owner_id, 'open', 'request', 'starting', 'open', 'open', 1, {later}, {now}
         FROM automations ORDER BY automation_id LIMIT 1"
    )
}

/// Two schedulers in turns, while nothing is due, so that a change of the machine's speed does not matter.
async fn compare(bench: &Bench, few_place: &Place, many_place: &Place) -> Outcome<Compared> {
    let mut few = Turns::start(bench, few_place).await?;
    let mut many = Turns::start(bench, many_place).await?;
    let mut ratios = vec![];
    let is_short = |few: &Turns, many: &Turns| few.used.min(many.used) < USED_MIN;
    while ratios.len() < PAIRS_MIN || (is_short(&few, &many) && ratios.len() < PAIRS_MAX) {
        // Each of them is first in every second pair.
        let (of_few, of_many) = if ratios.len() % 2 == 0 {
            let of_few = few.take().await?;
            (of_few, many.take().await?)
        } else {
            let of_many = many.take().await?;
            (few.take().await?, of_many)
        };
        ratios.push(of_many / of_few);
    }
    let too_short = is_short(&few, &many).then_some([few.used, many.used]);
    let compared = Compared { few_ms_per_s: few.ms_per_s(), many_ms_per_s: many.ms_per_s(), ratios, too_short };
    few.end(few_place).await?;
    many.end(many_place).await?;
    Ok(compared)
}

/// Makes a thousand due at the same time: seconds from that time until each has its run.
async fn start_due(bench: &Bench, place: &Place) -> Outcome<f64> {
    let due = unix_us() + AHEAD_US;
    let sql = format!(
        "UPDATE automations SET next_run_at = {due} WHERE automation_id IN
         (SELECT automation_id FROM automations ORDER BY automation_id LIMIT {DUE})"
    );
    execute(place, &sql).await?;
    let server = bench.serve(place)?;
    if unix_us() >= due {
        return Err("the server took too long to start".into());
    }
    let started = "SELECT COUNT(DISTINCT automation_id) FROM automation_starts WHERE command_id IS NOT NULL";
    while count_rows(place, started).await? < DUE as i64 {
        sleep(CHECK_PAUSE).await;
    }
    let seconds = (unix_us() - due) as f64 / 1e6;
    let all = count_rows(place, "SELECT COUNT(*) FROM automation_starts").await?;
    // Killed, because the test does not wait for the runs.
    drop(server);
    if all == DUE as i64 { Ok(seconds) } else { Err(format!("{all} starts of {DUE} automations").into()) }
}
