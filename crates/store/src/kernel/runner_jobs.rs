//! Runner jobs.

use ostler_protocol::{
    Timestamp,
    cursors::Cursor,
    ids::{CommandId, RunId, RunnerJobId},
    kernel::runner_jobs::{JobPhase, JobPoll, Launcher, RunnerJob},
};

use crate::{
    db::{Db, Engine},
    error::StoreError,
    record::{Reader, Record, Value, json, record, text},
};

record! {
    RunnerJob, job in "runner_jobs";
    key {
        runner_job_id: id;
    }
    fixed {
        run_id: id;
        session = "session_id": id;
        command_id: id;
        attempt_id: id;
        job_name: text;
        namespace: text;
        launcher: named(Launcher);
        runner_id: text;
        log_path: empty_text;
        standing: flag;
        idempotency_key: opt_text;
        request_hash: text;
        placement: opt_text;
        created_at: time;
    }
    state {
        attempt: int;
        starts: int;
        pod_name: empty_text;
        phase: named(JobPhase);
        terminal_summary: raw_json;
        observed: raw_json;
        extras: raw_json;
        owner: opt_text;
        heartbeat_at: opt_time;
        token_hash: opt_text;
        updated_at: time;
    }
    build RunnerJob {
        runner_job_id,
        run_id,
        session,
        command_id,
        attempt_id,
        job_name,
        namespace,
        launcher,
        runner_id,
        pod_name,
        log_path,
        standing,
        idempotency_key,
        request_hash,
        placement,
        created_at,
        attempt,
        phase,
        terminal_summary,
        observed,
        retention: None,
        backend_image_ref: None,
        transient_env: vec![],
        extras,
        starts,
        owner,
        heartbeat_at,
        token_hash,
        updated_at,
        poll: JobPoll::of(run_id, runner_job_id, command_id),
    };
}

pub async fn get(db: &Db, job_id: RunnerJobId) -> Result<Option<RunnerJob>, StoreError> {
    Ok(db.select::<RunnerJob>("WHERE t.runner_job_id = $1", vec![text(job_id)]).await?.pop())
}

/// The jobs of these ids that exist, in no order.
pub async fn list_by_ids(db: &Db, job_ids: &[RunnerJobId]) -> Result<Vec<RunnerJob>, StoreError> {
    let rest = format!("WHERE t.runner_job_id IN (SELECT one FROM {})", db.list("$1"));
    db.select(&rest, vec![json(&job_ids)]).await
}

/// Whether a job of the run was ordered with this key.
pub async fn has_key(db: &Db, run_id: RunId, key: &str) -> Result<bool, StoreError> {
    let sql = "SELECT runner_job_id FROM runner_jobs WHERE run_id = $1 AND idempotency_key = $2";
    Ok(db.read_one(sql, vec![text(run_id), key.into()], |row| row.text()).await?.is_some())
}

/// Every job of the run.
pub async fn list_by_run(db: &Db, run_id: RunId) -> Result<Vec<RunnerJob>, StoreError> {
    db.select("WHERE t.run_id = $1 ORDER BY t.runner_job_id", vec![text(run_id)]).await
}

/// The unfinished jobs of the run whose requests have named an image or short-lived variables.
pub async fn list_with_extras(db: &Db, run_id: RunId) -> Result<Vec<RunnerJob>, StoreError> {
    let rest = "WHERE t.run_id = $1 AND t.phase IN ('pending', 'running') AND t.extras <> '{}' ORDER BY t.created_at";
    db.select(rest, vec![text(run_id)]).await
}

pub async fn find_by_token_hash(db: &Db, token_hash: &str) -> Result<Option<RunnerJob>, StoreError> {
    Ok(db.select::<RunnerJob>("WHERE t.token_hash = $1", vec![token_hash.into()]).await?.pop())
}

/// Newest first.
pub async fn list(
    db: &Db,
    run_id: RunId,
    command_id: Option<CommandId>,
    after: Option<&Cursor>,
    limit: u32,
) -> Result<Vec<RunnerJob>, StoreError> {
    let mut args = vec![text(run_id)];
    let mut sql = "WHERE t.run_id = $1".to_owned();
    if let Some(id) = command_id {
        args.push(text(id));
        sql += " AND t.command_id = $2";
    }
    let order = db.byte_order();
    if let Some(cursor) = after {
        args.push(cursor.created_at_us.into());
        args.push(cursor.id.as_str().into());
        sql += &format!(" AND (t.created_at, t.runner_job_id{order}) < (${}, ${})", args.len() - 1, args.len());
    }
    args.push(i64::from(limit).into());
    sql += &format!(" ORDER BY t.created_at DESC, t.runner_job_id{order} DESC LIMIT ${}", args.len());
    db.select(&sql, args).await
}

/// How long a job that was started before waits for its next start, in microseconds, times the square of the starts
/// beyond the first: none, 1 s, 4 s, 9 s. The second start comes at once, because most runners that are lost are lost once.
const RESTART_PAUSE_US: i64 = 1_000_000;

/// Jobs that wait for a launcher at the time `now`, the parameter of this name.
fn is_waiting(now: &str) -> String {
    format!(
        "phase = 'pending'
             AND (attempt <= 1 OR updated_at <= {now} - (attempt - 1) * (attempt - 1) * {RESTART_PAUSE_US})"
    )
}

/// Jobs of runs whose profile is one of a list, the parameter of this name.
fn is_of_profile(db: &Db, profiles: &str) -> String {
    format!(
        "EXISTS (SELECT 1 FROM runs r WHERE r.run_id = runner_jobs.run_id
             AND r.backend_profile IN (SELECT one FROM {}))",
        db.list(profiles)
    )
}

/// The jobs that a launcher may claim.
#[derive(Clone, Copy, Debug, Default)]
pub struct LaunchableJobs<'a> {
    /// Profiles that runners elsewhere drive. Their jobs are left to those.
    pub external: &'a [String],
    /// The workspace that the launcher's server is bound to. Jobs that need another one are left to other servers.
    pub placement: Option<&'a str>,
}

impl LaunchableJobs<'_> {
    /// A condition, whose parameters are added to the arguments.
    fn condition(&self, db: &Db, args: &mut Vec<Value>) -> String {
        let mut condition = match self.placement {
            // A store in a file has one server, so that a job must not wait for another one.
            _ if !db.multi_replica() => String::new(),
            Some(placement) => {
                args.push(placement.into());
                format!(" AND (placement IS NULL OR placement = ${})", args.len())
            }
            None => " AND placement IS NULL".to_owned(),
        };
        if !self.external.is_empty() {
            args.push(json(&self.external));
            condition += &format!(" AND NOT {}", is_of_profile(db, &format!("${}", args.len())));
        }
        condition
    }
}

/// How many of these jobs wait for a launcher.
pub async fn count_waiting(db: &Db, jobs: LaunchableJobs<'_>, now: Timestamp) -> Result<i64, StoreError> {
    let mut args = vec![now.into()];
    let condition = jobs.condition(db, &mut args);
    let sql = format!("SELECT COUNT(*) FROM runner_jobs WHERE {}{condition}", is_waiting("$1"));
    Ok(db.read_one(sql, args, |row| row.int()).await?.unwrap_or_default())
}

/// Claims pending jobs for a launcher, oldest first, except those named. No two launchers get the same one.
pub async fn claim(
    db: &Db,
    launcher: Launcher,
    owner: &str,
    now: Timestamp,
    limit: u32,
    except: &[RunnerJobId],
    jobs: LaunchableJobs<'_>,
) -> Result<Vec<RunnerJob>, StoreError> {
    let mut args = vec![owner.into(), now.into(), launcher.as_str().into()];
    let mut excluded = String::new();
    if !except.is_empty() {
        args.push(json(&except));
        let named = db.list(&format!("${}", args.len()));
        excluded += &format!(" AND runner_job_id NOT IN (SELECT one FROM {named})");
    }
    excluded += &jobs.condition(db, &mut args);
    claim_where(db, ", heartbeat_at = $2", &excluded, args, limit).await
}

/// Claims pending jobs whose runners a cluster runs, oldest first. `owner` names the claim: no server owns such a job, and none
/// sends heartbeats for it. A report about an earlier claim changes nothing.
pub async fn claim_for_cluster(
    db: &Db,
    owner: &str,
    now: Timestamp,
    limit: u32,
    jobs: LaunchableJobs<'_>,
) -> Result<Vec<RunnerJob>, StoreError> {
    let mut args = vec![owner.into(), now.into(), Launcher::Kubernetes.as_str().into()];
    let condition = jobs.condition(db, &mut args);
    let changes = ", heartbeat_at = NULL, token_hash = NULL, observed = '{}', pod_name = ''";
    claim_where(db, changes, &condition, args, limit).await
}

/// Jobs of the launcher that have been claimed and have not ended, in the order of their ids.
pub async fn list_started(
    db: &Db,
    launcher: Launcher,
    after: Option<RunnerJobId>,
    limit: u32,
) -> Result<Vec<RunnerJob>, StoreError> {
    let order = db.byte_order();
    let rest = format!(
        "WHERE t.phase = 'running' AND t.launcher = $1 AND t.runner_job_id{order} > $2
             ORDER BY t.runner_job_id{order} LIMIT $3"
    );
    let after = after.map(|id| id.to_string()).unwrap_or_default();
    db.select(&rest, vec![launcher.as_str().into(), after.as_str().into(), i64::from(limit).into()]).await
}

/// Of the jobs that [`list_started`] lists, those whose runner holds its run.
pub async fn list_started_and_held(
    db: &Db,
    launcher: Launcher,
    now: Timestamp,
) -> Result<Vec<RunnerJobId>, StoreError> {
    let sql = "SELECT j.runner_job_id FROM runner_jobs j
         JOIN leases l ON l.run_id = j.run_id AND l.runner_id = j.runner_id
         WHERE j.phase = 'running' AND j.launcher = $1 AND l.ended = 0 AND l.expires_at > $2";
    db.read(sql, vec![launcher.as_str().into(), now.into()], |row| row.id()).await
}

/// How many jobs of the launcher wait or run.
pub async fn count_open_of(db: &Db, launcher: Launcher) -> Result<i64, StoreError> {
    // One count for each phase, by the index of that phase: a condition on both would read all finished jobs, too.
    let sql = "SELECT (SELECT COUNT(*) FROM runner_jobs WHERE phase = 'pending' AND launcher = $1)
        + (SELECT COUNT(*) FROM runner_jobs WHERE phase = 'running' AND launcher = $1) AS open_jobs";
    Ok(db.read_one(sql, vec![launcher.as_str().into()], |row| row.int()).await?.unwrap_or_default())
}

/// Stores what a cluster shows of a start. False if that is stored already, or the start has ended.
pub async fn update_observed(
    db: &Db,
    job_id: RunnerJobId,
    owner: &str,
    observed: &str,
    pod_name: &str,
) -> Result<bool, StoreError> {
    let sql = "UPDATE runner_jobs SET observed = $1, pod_name = $2
         WHERE runner_job_id = $3 AND owner = $4 AND phase = 'running' AND observed <> $1 RETURNING 1";
    let args = vec![observed.into(), pod_name.into(), text(job_id), owner.into()];
    Ok(!db.write(sql, args, |_| Ok(())).await?.is_empty())
}

/// As [`update_observed`] for a start without a pod, if what is stored is still `previous`.
pub async fn replace_observed(
    db: &Db,
    job_id: RunnerJobId,
    owner: &str,
    previous: &str,
    observed: &str,
) -> Result<bool, StoreError> {
    let sql = "UPDATE runner_jobs SET observed = $1, pod_name = ''
         WHERE runner_job_id = $2 AND owner = $3 AND phase = 'running' AND observed = $4 RETURNING 1";
    let args = vec![observed.into(), text(job_id), owner.into(), previous.into()];
    Ok(!db.write(sql, args, |_| Ok(())).await?.is_empty())
}

/// The jobs that a runner elsewhere may claim.
#[derive(Clone, Copy, Debug)]
pub struct ExternalJobs<'a> {
    pub profiles: &'a [String],
    /// `None`: those of every tenant.
    pub tenants: Option<&'a [String]>,
}

/// Claims the oldest of these jobs for a runner elsewhere. `owner` names the claim, not the runner. No two claims get the
/// same job, and no job is claimed while a runner holds its run.
pub async fn claim_external(
    db: &Db,
    jobs: ExternalJobs<'_>,
    runner_id: &str,
    owner: &str,
    now: Timestamp,
) -> Result<Option<RunnerJob>, StoreError> {
    let mut args =
        vec![owner.into(), now.into(), Launcher::External.as_str().into(), runner_id.into(), json(&jobs.profiles)];
    let mut wanted = format!(
        " AND {} AND NOT EXISTS (SELECT 1 FROM leases l WHERE l.run_id = runner_jobs.run_id AND l.ended = 0
             AND l.expires_at > $2)",
        is_of_profile(db, "$5")
    );
    if let Some(tenants) = jobs.tenants {
        args.push(json(&tenants));
        wanted += &format!(
            " AND EXISTS (SELECT 1 FROM runs r WHERE r.run_id = runner_jobs.run_id
                 AND r.tenant_id IN (SELECT one FROM {}))",
            db.list("$6")
        );
    }
    Ok(claim_where(db, ", heartbeat_at = $2, runner_id = $4", &wanted, args, 1).await?.pop())
}

/// Claims the oldest pending jobs. The first arguments are the owner, the time and the launcher.
async fn claim_where(
    db: &Db,
    changes: &str,
    condition: &str,
    mut args: Vec<Value>,
    limit: u32,
) -> Result<Vec<RunnerJob>, StoreError> {
    // SQLite has one process, whose writes follow each other; only Postgres needs to skip what others hold.
    let skip = match db.engine {
        Engine::Sqlite(_) => "",
        Engine::Postgres(_) => "FOR UPDATE SKIP LOCKED",
    };
    let order = db.byte_order();
    args.push(i64::from(limit).into());
    let most = args.len();
    let sql = format!(
        "UPDATE runner_jobs AS t SET phase = 'running', owner = $1, updated_at = $2, launcher = $3,
             attempt = attempt + 1, starts = starts + 1{changes}
         WHERE runner_job_id IN (SELECT runner_job_id FROM runner_jobs WHERE {}{condition}
             ORDER BY created_at, runner_job_id{order} LIMIT ${most} {skip})
         RETURNING {}",
        is_waiting("$2"),
        RunnerJob::NAMES
    );
    db.write(sql, args, RunnerJob::decode).await
}

/// The running jobs that `owner` claimed at these times.
pub async fn list_claimed(db: &Db, owner: &str, claimed_at: &[Timestamp]) -> Result<Vec<RunnerJob>, StoreError> {
    let times: Vec<String> = claimed_at.iter().map(|at| at.as_microsecond().to_string()).collect();
    let rest = format!(
        "WHERE t.phase = 'running' AND t.owner = $1
             AND t.updated_at IN (SELECT CAST(one AS BIGINT) FROM {}) ORDER BY t.created_at",
        db.list("$2")
    );
    db.select(&rest, vec![owner.into(), json(&times)]).await
}

/// The runner that this owner starts for the job will come with this token. False: the job is another's by now.
pub async fn update_token(db: &Db, job_id: RunnerJobId, owner: &str, token_hash: &str) -> Result<bool, StoreError> {
    let sql = "UPDATE runner_jobs SET token_hash = $1 WHERE runner_job_id = $2 AND owner = $3 AND phase = 'running'
         RETURNING 1";
    let args = vec![token_hash.into(), text(job_id), owner.into()];
    Ok(!db.write(sql, args, |_| Ok(())).await?.is_empty())
}

/// The owner vouches for these of its jobs: their runners are running, or their ends are being reported.
pub async fn update_heartbeat(db: &Db, owner: &str, jobs: &[RunnerJobId], now: Timestamp) -> Result<(), StoreError> {
    if jobs.is_empty() {
        return Ok(());
    }
    let sql = format!(
        "UPDATE runner_jobs SET heartbeat_at = $1 WHERE owner = $2 AND phase = 'running'
             AND runner_job_id IN (SELECT one FROM {})",
        db.list("$3")
    );
    db.execute(sql, vec![now.into(), owner.into(), json(&jobs)]).await
}

/// Running jobs that no launcher has vouched for since `before`.
pub async fn list_abandoned(db: &Db, before: Timestamp, limit: u32) -> Result<Vec<RunnerJob>, StoreError> {
    let rest = "WHERE t.phase = 'running' AND t.heartbeat_at < $1 ORDER BY t.heartbeat_at LIMIT $2";
    db.select(rest, vec![before.into(), i64::from(limit).into()]).await
}

/// Jobs that wait, and jobs that run. Finished ones are not counted: there may be very many.
pub async fn count_open(db: &Db) -> Result<(i64, i64), StoreError> {
    let sql = "SELECT (SELECT COUNT(*) FROM runner_jobs WHERE phase = 'pending') AS pending,
        (SELECT COUNT(*) FROM runner_jobs WHERE phase = 'running') AS running";
    let decode = |row: &mut Reader<'_>| Ok((row.at("pending")?.int()?, row.at("running")?.int()?));
    Ok(db.read_one(sql, vec![], decode).await?.unwrap_or_default())
}
