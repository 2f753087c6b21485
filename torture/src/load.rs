//! The work that goes on while things break, and the ledger of everything that was acknowledged. Each kind of work is a
//! task of its own that goes on through every fault; afterwards it compares the store with its ledger.

mod appends;
mod beat;
mod followers;
mod grants;
mod messages;
mod prompts;
mod turns;

use grants::Grants;
use messages::Messages;
use prompts::Prompts;
use tokio::{runtime::Handle, task::JoinHandle};
use turns::Turns;

use crate::{api::Api, random::Random, report::Facts, server_host::ServerHost};

pub(crate) use appends::{Writer, run_request};
pub(crate) use beat::{Beat, SETTLE_WITHIN};
pub(crate) use followers::Follower;

/// Which kinds of work a round has.
#[derive(Clone, Copy)]
pub(crate) struct Mix {
    pub writers: usize,
    pub turns: bool,
    pub messages: bool,
    /// Prompts and votes of the daemon.
    pub prompts: bool,
    pub grants: bool,
    pub follower: bool,
}

impl Mix {
    pub(crate) const ALL: Self =
        Self { writers: 2, turns: true, messages: true, prompts: true, grants: true, follower: true };
    pub(crate) const NONE: Self =
        Self { writers: 0, turns: false, messages: false, prompts: false, grants: false, follower: false };
}

type Task<T> = JoinHandle<Result<T, String>>;

pub(crate) struct Load {
    pub beat: Beat,
    writers: Vec<Task<Writer>>,
    turns: Option<Task<Turns>>,
    messages: Option<Task<Messages>>,
    prompts: Option<Task<Prompts>>,
    grants: Option<Task<Grants>>,
    follower: Option<Follower>,
    /// The run that the follower reads.
    pub followed: Option<String>,
}

impl Load {
    pub(crate) fn start(runtime: &Handle, api: &Api, mix: Mix, random: &mut Random) -> Result<Self, String> {
        let beat = Beat::new(api.clone());
        let mut writers = vec![];
        for number in 0..mix.writers {
            writers.push(runtime.block_on(Writer::create(&beat, &format!("writer-{number}")))?);
        }
        let followed = writers.first().filter(|_| mix.follower);
        let follower = followed.map(|writer| Follower::start(runtime, api, &writer.run_id));
        let followed = followed.map(|writer| writer.run_id.clone());
        let writers = writers.into_iter().map(|writer| runtime.spawn(writer.work(beat.clone()))).collect();
        let turns = mix.turns.then(|| runtime.spawn(Turns::default().work(beat.clone(), random.fork())));
        let messages = match mix.messages {
            true => Some(runtime.block_on(Messages::create(&beat))?),
            false => None,
        };
        let messages = messages.map(|messages| runtime.spawn(messages.work(beat.clone())));
        let prompts = match mix.prompts {
            true => Some(runtime.block_on(Prompts::create(&beat))?),
            false => None,
        };
        let prompts = prompts.map(|prompts| runtime.spawn(prompts.work(beat.clone())));
        let grants = match mix.grants {
            true => Some(runtime.block_on(Grants::create(&beat))?),
            false => None,
        };
        let grants = grants.map(|grants| runtime.spawn(grants.work(beat.clone())));
        Ok(Self { beat, writers, turns, messages, prompts, grants, follower, followed })
    }

    /// Ends the work, waits until all of it has ended well, and compares the store with the ledger.
    pub(crate) fn finish(self, runtime: &Handle, host: &ServerHost, other_runs: usize) -> (Facts, Vec<String>) {
        self.beat.stop();
        let api = self.beat.api.clone();
        let mut facts = Facts::default();
        let mut violations = vec![];
        runtime.block_on(async {
            let mut runs = other_runs;
            let mut last_seq = None;
            for task in self.writers {
                runs += 1;
                let checked = match task.await {
                    Ok(Ok(writer)) => writer.settle(&self.beat).await,
                    Ok(Err(why)) => Err(why),
                    Err(error) => Err(format!("a writer panicked: {error}")),
                };
                match checked {
                    Ok((events, last)) => {
                        facts.events += events;
                        last_seq.get_or_insert(last);
                    }
                    Err(why) => violations.push(why),
                }
            }
            if let Some(task) = self.turns {
                match joined(task).await {
                    Ok(turns) => {
                        runs += turns.count();
                        facts.runs += runs as u64;
                        violations.extend(turns.settle(&api, runs).await);
                    }
                    Err(why) => violations.push(why),
                }
            }
            if let Some(task) = self.messages {
                match settled(task, |messages| messages.settle(api.clone())).await {
                    Ok(count) => facts.messages += count,
                    Err(why) => violations.push(why),
                }
            }
            if let Some(task) = self.prompts {
                match settled(task, |prompts| prompts.settle(self.beat.clone())).await {
                    Ok(count) => facts.prompts += count,
                    Err(why) => violations.push(why),
                }
            }
            if let Some(task) = self.grants {
                match settled(task, |grants| grants.settle(api.clone())).await {
                    Ok((count, ledger)) => {
                        facts.grants += count;
                        violations.extend(host.verify_ledger(&ledger).err());
                    }
                    Err(why) => violations.push(why),
                }
            }
            if let (Some(follower), Some(last_seq)) = (self.follower, last_seq) {
                match follower.settle(last_seq, SETTLE_WITHIN).await {
                    Ok(seen) => facts.followed += seen,
                    Err(why) => violations.push(why),
                }
            }
        });
        (facts, violations)
    }
}

async fn joined<T>(task: Task<T>) -> Result<T, String> {
    task.await.map_err(|error| format!("a task of the load panicked: {error}"))?
}

async fn settled<T, R, F: Future<Output = Result<R, String>>>(
    task: Task<T>,
    settle: impl FnOnce(T) -> F,
) -> Result<R, String> {
    settle(joined(task).await?).await
}
