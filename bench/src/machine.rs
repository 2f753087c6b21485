//! What the machine reports: time, CPU time and memory of processes, and what a sync of the disk costs here.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::outcome::Outcome;
use crate::report::{Report, median};

/// Few enough to take milliseconds, so that each round can have its own.
const SYNCS: u8 = 101;
const SYNC_BYTES: usize = 8 * 1024;
const REFERENCE_ROUNDS: u8 = 9;
/// So that a round takes tens of milliseconds.
const REFERENCE_REPEATS: u16 = 500;

#[expect(clippy::disallowed_methods, reason = "a measurement of our own; nothing here is replayed")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A time that another process of this machine can compare with its own.
#[expect(clippy::disallowed_methods, reason = "a measurement of our own; nothing here is replayed")]
pub(crate) fn unix_us() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

pub(crate) fn since(started: Instant) -> Duration {
    now() - started
}

/// As many open files as this process may ask for, for it and whom it starts: each connection is one.
pub(crate) fn raise_open_files() -> Outcome<()> {
    let limit = getrlimit(Resource::Nofile);
    Ok(setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })?)
}

/// A process's line of numbers: the fields after its name, which may hold anything.
struct Stat(Vec<u64>);

impl Stat {
    fn of(pid: u32) -> Outcome<Self> {
        let text = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let (_, fields) = text.rsplit_once(')').ok_or("a process without a name")?;
        // The first of them is a letter and some are negative; none of those is asked for.
        Ok(Self(fields.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect()))
    }

    /// By the number proc(5) gives it.
    fn field(&self, number: usize) -> u64 {
        self.0.get(number - 3).copied().unwrap_or(0)
    }

    fn cpu(&self) -> Duration {
        ticks(self.field(14) + self.field(15))
    }

    fn cpu_of_ended_children(&self) -> Duration {
        ticks(self.field(16) + self.field(17))
    }
}

fn ticks(count: u64) -> Duration {
    Duration::from_secs_f64(count as f64 / rustix::param::clock_ticks_per_second() as f64)
}

/// User and system time a process has used.
pub(crate) fn cpu(pid: u32) -> Outcome<Duration> {
    Ok(Stat::of(pid)?.cpu())
}

/// The CPU time of each thread of some processes, in nanoseconds. Precise enough for intervals of milliseconds, unlike the ticks of
/// [`cpu`].
pub(crate) struct ThreadTimes(HashMap<(u32, u32), u64>);

impl ThreadTimes {
    pub(crate) fn of(pids: &[u32]) -> Outcome<Self> {
        let mut times = HashMap::new();
        for pid in pids {
            // A process that ends while we look is not counted.
            let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
            for entry in threads.flatten() {
                let Some(thread) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
                    continue;
                };
                let Ok(text) = fs::read_to_string(entry.path().join("schedstat")) else { continue };
                let used_ns = text.split_whitespace().next().and_then(|field| field.parse().ok());
                times.insert((*pid, thread), used_ns.ok_or("schedstat without a number")?);
            }
        }
        Ok(Self(times))
    }

    /// What was used since an earlier reading. Threads that have ended since are not counted.
    pub(crate) fn since(&self, earlier: &Self) -> Duration {
        let used = |(thread, ns): (&(u32, u32), &u64)| ns.saturating_sub(earlier.0.get(thread).copied().unwrap_or(0));
        Duration::from_nanos(self.0.iter().map(used).sum())
    }
}

pub(crate) fn own_cpu() -> Outcome<Duration> {
    cpu(std::process::id())
}

pub(crate) fn parent_of(pid: u32) -> Outcome<u32> {
    Ok(u32::try_from(Stat::of(pid)?.field(4))?)
}

/// CPU time of a process and its children, those that have ended included.
pub(crate) fn cpu_with_children(pid: u32) -> Outcome<Duration> {
    let own = Stat::of(pid)?;
    let mut sum = own.cpu() + own.cpu_of_ended_children();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(child) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // One that ends while we look is counted with its parent next time.
        if let Ok(stat) = Stat::of(child)
            && stat.field(4) == u64::from(pid)
        {
            sum += stat.cpu();
        }
    }
    Ok(sum)
}

/// A process and everything that descends from it.
pub(crate) fn tree(root: u32) -> Outcome<Vec<u32>> {
    let mut parents = vec![];
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // One that ends while we look is not listed.
        if let Ok(stat) = Stat::of(pid) {
            parents.push((pid, stat.field(4)));
        }
    }
    let mut members = vec![root];
    let mut next = 0;
    while let Some(parent) = members.get(next).copied() {
        members.extend(parents.iter().filter(|(_, of)| *of == u64::from(parent)).map(|(pid, _)| *pid));
        next += 1;
    }
    Ok(members)
}

/// CPU time of everything that descends from a process, those that have ended included.
pub(crate) fn tree_cpu(root: u32) -> Outcome<Duration> {
    let stats = tree(root)?.into_iter().filter_map(|pid| Stat::of(pid).ok());
    Ok(stats.map(|stat| stat.cpu() + stat.cpu_of_ended_children()).sum())
}

/// Memory of a process that is in use now, in MiB.
pub(crate) fn rss_mib(pid: u32) -> Outcome<f64> {
    status_mib(pid, "VmRSS:")
}

/// The part of the resident memory that is the process's own: not the pages of its program, which the system can drop.
pub(crate) fn anonymous_mib(pid: u32) -> Outcome<f64> {
    status_mib(pid, "RssAnon:")
}

/// Open file descriptors of a process.
pub(crate) fn open_files(pid: u32) -> Outcome<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

fn status_mib(pid: u32, field: &str) -> Outcome<f64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)).ok_or_else(|| format!("no {field}"))?;
    let kib: f64 = line.split_whitespace().next().ok_or_else(|| format!("{field} is empty"))?.parse()?;
    Ok(kib / 1024.0)
}

/// The time of a fixed piece of work on one core, the fastest of several: runs on machines of different speed, or on one whose
/// speed changes, are compared by it.
fn reference_ms() -> Outcome<f64> {
    let entries: Vec<_> =
        (0..64).map(|n| serde_json::json!({"id": n, "text": "x".repeat(n), "list": [n, n + 1]})).collect();
    let text = serde_json::to_string(&entries)?;
    let mut fastest = Duration::MAX;
    for _ in 0..REFERENCE_ROUNDS {
        let started = now();
        for _ in 0..REFERENCE_REPEATS {
            let value: serde_json::Value = serde_json::from_str(&text)?;
            std::hint::black_box(value.to_string());
        }
        fastest = fastest.min(since(started));
    }
    Ok(fastest.as_secs_f64() * 1000.0)
}

pub(crate) fn describe(report: &mut Report) -> Outcome<()> {
    report.figure("machine.cores", cores() as f64);
    report.figure("machine.load_before", load());
    report.figure("machine.reference_ms", reference_ms()?);
    report.note(format!("machine: {}", description()));
    Ok(())
}

pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(0, usize::from)
}

/// Time for which the processors were not idle since the machine started, that of other guests of its host included.
pub(crate) fn busy() -> Outcome<Duration> {
    let text = fs::read_to_string("/proc/stat")?;
    let fields: Vec<u64> = text.split_whitespace().skip(1).take(8).map_while(|field| field.parse().ok()).collect();
    // User, nice, system, idle, waiting for a disk, two kinds of interrupts, and what the host took away.
    let [user, nice, system, _, _, interrupts, soft_interrupts, stolen] = fields[..] else {
        return Err("/proc/stat has another format".into());
    };
    Ok(ticks(user + nice + system + interrupts + soft_interrupts + stolen))
}

/// How many processes wanted to run in the last minute, on average.
pub(crate) fn load() -> f64 {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    load.split_whitespace().next().and_then(|load| load.parse().ok()).unwrap_or(0.0)
}

/// The processors and the kernel, for people.
pub(crate) fn description() -> String {
    let cpu_info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu_info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": ")).map_or("", |m| m.1);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{} cores, {model}, Linux {}", cores(), kernel.trim())
}

/// Microseconds that a small write and its `fdatasync` take at the moment: the median of a few. The file does not grow, as
/// the log of a database that reuses its files does not.
pub(crate) fn sync_us(scratch: &Path) -> Outcome<f64> {
    let file = fs::File::create(scratch.join("sync"))?;
    file.write_all_at(&[0; SYNC_BYTES], 0)?;
    file.sync_all()?;
    let mut times = vec![];
    for number in 0..SYNCS {
        let started = now();
        file.write_all_at(&[number; SYNC_BYTES], 0)?;
        file.sync_data()?;
        times.push(since(started).as_secs_f64() * 1e6);
    }
    Ok(median(times))
}

/// Microseconds per `fdatasync` after a small write, by Postgres's own tool. It is stopped as soon as it has said so.
pub(crate) fn fsync_us(program: &Path, scratch: &Path) -> Outcome<f64> {
    let mut command = Command::new(program);
    command.args(["-s", "1", "-f"]).arg(scratch.join("fsync"));
    let mut tool = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let output = tool.stdout.take().ok_or("pg_test_fsync has no stdout")?;
    let mut found = None;
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        // `        fdatasync        19532.123 ops/sec      51 usecs/op`
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["fdatasync", per_second, "ops/sec", ..] = words[..] {
            found = per_second.parse::<f64>().ok();
            break;
        }
    }
    // It may have ended by itself; either way `wait` collects it.
    let _ = tool.kill();
    tool.wait()?;
    let per_second = found.ok_or("pg_test_fsync did not say what fdatasync costs")?;
    Ok(1e6 / per_second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_knows_its_parent_and_its_memory() {
        let own = std::process::id();
        assert_eq!(parent_of(own).unwrap(), std::os::unix::process::parent_id());
        assert!(rss_mib(own).unwrap() > 0.0);
        let alone = cpu(own).unwrap();
        assert!(cpu_with_children(own).unwrap() >= alone);
    }

    #[test]
    fn the_tree_of_a_process_has_its_children() {
        let own = std::process::id();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let members = tree(own).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(busy().unwrap() > Duration::ZERO);
        assert!(members.starts_with(&[own]) && members.contains(&child.id()), "{members:?}");
        assert!(tree_cpu(own).unwrap() + Duration::from_millis(10) >= cpu(own).unwrap());
    }
}
