//! `ostler apply`: makes profiles and agents as files describe them. Everything is checked and compared first; nothing is changed
//! if anything is wrong. What a file does not name stays as it is, so that files of several teams do not disturb each other.

mod agents;
pub(crate) mod file;
mod outcome;
mod profiles;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use ostler_client::Client;
use ostler_protocol::{Failure, Rule, callers::CallerView, problems::Problems};

use agents::{AgentPlan, WantedAgent};
use file::{AppliedEntries, ApplyDocument, dotted, shown_name};
use outcome::AppliedObject;
use profiles::{ProfilePlan, WantedProfile};

use crate::{
    connection::Connection,
    errors, exit_codes,
    terminal::output::{self, Output},
};

/// Create and change profiles and agents as files describe them
///
/// Prints a line for each object: created, configured, new version or unchanged. Applying a file again changes nothing. All
/// problems of the files are reported at once, before anything is changed. Nothing is deleted. A file contains no secrets: it
/// names the variable or the file of a credential.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler apply -f ostler.toml\n  ostler apply -f ostler.toml --dry-run\n  \
    ostler apply -f profiles.toml -f agents.toml -o json\n  cat ostler.toml | ostler apply -f -\n\n\
    A file:\n  [profiles.model]\n  config_file = \"model.toml\"      # relative to this file\n  \
    credential_env = \"MODEL_KEY\"    # or credential_file\n\n  [agents.reader]\n  \
    manifest_file = \"reader.manifest.json\"\n  profile = \"model\"\n\n\
    `ostler explain apply` explains every field.")]
pub(crate) struct ApplyArgs {
    /// A file to apply; `-` is stdin. May be repeated
    #[arg(short, long = "file", value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Show what would be changed, and change nothing
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    output: Output,
}

/// What the files want, with the place of each object for messages about it.
#[derive(Default)]
struct WantedObjects {
    documents: Vec<ApplyDocument>,
    profiles: Vec<(usize, WantedProfile)>,
    agents: Vec<(usize, WantedAgent)>,
}

/// What has to be done for it.
struct ApplyPlan<'a> {
    profiles: Vec<ProfilePlan<'a>>,
    agents: Vec<AgentPlan<'a>>,
}

pub(crate) async fn apply(connection: &Connection, args: &ApplyArgs) -> Result<u8, Failure> {
    let mut problems = Problems::default();
    let wanted = WantedObjects::read(&args.files, &mut problems);
    let planned = match connection.client() {
        Ok(client) => {
            let planned = plan(&client, &wanted, &mut problems).await;
            planned.map(|plan| (client, plan))
        }
        Err(failure) => Err(failure),
    };
    let (client, plan) = match planned {
        Ok(planned) => planned,
        Err(failure) if problems.is_empty() => return Err(failure),
        // The problems of the files are worth more than a server that cannot be reached.
        Err(_) => return Err(nothing_changed(problems.into_failure())),
    };
    problems.check().map_err(nothing_changed)?;
    let mut report = ApplyReport { output: &args.output, objects: vec![] };
    if args.dry_run {
        let profiles = plan.profiles.iter().map(ProfilePlan::preview);
        for object in profiles.chain(plan.agents.iter().map(AgentPlan::preview)) {
            report.add(AppliedObject { dry_run: true, ..object });
        }
        let printed = report.finish();
        output::message("dry run; nothing was changed\n");
        return printed.map(|()| exit_codes::OK);
    }
    let applied = plan.apply(connection, &client, &mut report).await;
    let printed = report.finish();
    // A rejected object is worth more than a filter that fails.
    applied?;
    printed?;
    if report.objects.is_empty() {
        output::message("the files name no profile and no agent\n");
    }
    Ok(exit_codes::OK)
}

impl WantedObjects {
    /// Reads and checks all files, without a server.
    fn read(files: &[PathBuf], problems: &mut Problems) -> Self {
        let mut wanted = Self::default();
        let mut seen = BTreeSet::new();
        if files.iter().filter(|path| *path == Path::new("-")).count() > 1 {
            problems.note::<()>(Err(errors::usage("stdin can be applied only once", "give `-f -` once")));
            return wanted;
        }
        for (number, path) in files.iter().enumerate() {
            if files[..number].contains(path) {
                let message = format!("{} is given twice", shown_name(path));
                problems.note::<()>(Err(Failure::invalid(Rule::ApplyFile, message)));
                continue;
            }
            let Some(document) = problems.note(ApplyDocument::read(path)) else { continue };
            let at = wanted.documents.len();
            let AppliedEntries { profiles, agents } = document.entries(problems);
            for (name, entry) in &profiles {
                if is_first(&mut seen, &document, ["profiles", name], entry.tenant.as_deref(), problems) {
                    wanted.profiles.extend(profiles::check(&document, name, entry, problems).map(|found| (at, found)));
                }
            }
            for (name, entry) in &agents {
                if is_first(&mut seen, &document, ["agents", name], None, problems) {
                    wanted.agents.extend(agents::check(&document, name, entry, problems).map(|found| (at, found)));
                }
            }
            wanted.documents.push(document);
        }
        wanted
    }

    /// Names the place of an entry in a failure that the server, or the comparison with it, has reported about it.
    fn located(&self, document: usize, place: [&str; 2], failure: Failure) -> Failure {
        match self.documents.get(document) {
            Some(document) => document.located(&place, failure),
            None => failure,
        }
    }

    /// The problem of an entry for an object that another file describes as well.
    fn duplicate(&self, document: usize, place: [&str; 2]) -> Failure {
        match self.documents.get(document) {
            Some(document) => document.problem(&place, &duplicate_message(place)),
            None => Failure::invalid(Rule::ApplyFile, duplicate_message(place)),
        }
    }
}

/// Whether no other file has described the object.
fn is_first(
    seen: &mut BTreeSet<(String, String, Option<String>)>,
    document: &ApplyDocument,
    place: [&str; 2],
    tenant: Option<&str>,
    problems: &mut Problems,
) -> bool {
    let [section, name] = place;
    let is_first = seen.insert((section.to_owned(), name.to_owned(), tenant.map(str::to_owned)));
    if !is_first {
        problems.note::<()>(Err(document.problem(&place, &duplicate_message(place))));
    }
    is_first
}

fn duplicate_message(place: [&str; 2]) -> String {
    format!("{} is also in another file", dotted(&place))
}

/// Compares everything with the server. Problems of single objects are noted; a failure means that nothing can be compared.
async fn plan<'a>(
    client: &Client,
    wanted: &'a WantedObjects,
    problems: &mut Problems,
) -> Result<ApplyPlan<'a>, Failure> {
    let mut plan = ApplyPlan { profiles: vec![], agents: vec![] };
    if wanted.profiles.is_empty() && wanted.agents.is_empty() {
        return Ok(plan);
    }
    let caller: CallerView = client.caller().await?;
    // An entry that names the tenant of the token and one that leaves it out are the same profile.
    let mut seen = BTreeSet::new();
    for (document, profile) in &wanted.profiles {
        let place = ["profiles", &profile.name];
        let planned = unless_lost(profile.plan(client, &caller).await)?;
        let planned = planned.map_err(|failure| wanted.located(*document, place, failure));
        let planned = planned.and_then(|plan| {
            let is_first = seen.insert((&profile.name, plan.tenant().map(str::to_owned)));
            if is_first { Ok(plan) } else { Err(wanted.duplicate(*document, place)) }
        });
        plan.profiles.extend(problems.note(planned));
    }
    for (document, agent) in &wanted.agents {
        let place = ["agents", &agent.name];
        let planned = unless_lost(agent.plan(client, &caller).await)?;
        plan.agents.extend(problems.note(planned.map_err(|failure| wanted.located(*document, place, failure))));
    }
    Ok(plan)
}

/// A failure of the connection concerns all objects, not one.
fn unless_lost<T>(planned: Result<T, Failure>) -> Result<Result<T, Failure>, Failure> {
    match planned {
        Err(failure) if ostler_client::is_transient(&failure) => Err(failure),
        planned => Ok(planned),
    }
}

impl ApplyPlan<'_> {
    /// Profiles first: an agent may name one of them.
    async fn apply(
        &self,
        connection: &Connection,
        client: &Client,
        report: &mut ApplyReport<'_>,
    ) -> Result<(), Failure> {
        for profile in &self.profiles {
            let applied = profile.apply(connection, client).await;
            report.add(applied.map_err(|failure| report.stopped(&profile.preview(), failure))?);
        }
        for agent in &self.agents {
            let applied = agent.apply(client).await;
            report.add(applied.map_err(|failure| report.stopped(&agent.preview(), failure))?);
        }
        Ok(())
    }
}

/// The objects that were applied so far. Text is printed at once, a JSON document at the end.
struct ApplyReport<'a> {
    output: &'a Output,
    objects: Vec<AppliedObject>,
}

impl ApplyReport<'_> {
    fn add(&mut self, object: AppliedObject) {
        if self.output.is_text() {
            output::data(&output::folded(&object.text(), output::width()));
        }
        self.objects.push(object);
    }

    /// Fails if the filter of the output cannot handle a value.
    fn finish(&self) -> Result<(), Failure> {
        if self.output.is_text() { Ok(()) } else { self.output.try_many(&self.objects, String::new) }
    }

    /// Names the object that could not be applied, and reports that the ones before it were.
    fn stopped(&self, object: &AppliedObject, failure: Failure) -> Failure {
        let message = format!("{}: {}", object.title(), failure.message);
        let failure = Failure { message, ..failure };
        match self.objects.len() {
            0 => failure,
            1 => errors::with_hint(
                failure,
                "the object before it is applied; correct this one and apply the files again",
            ),
            several => {
                let hint =
                    format!("the {several} objects before it are applied; correct this one and apply the files again");
                errors::with_hint(failure, hint)
            }
        }
    }
}

fn nothing_changed(failure: Failure) -> Failure {
    let hint = Rule::ApplyFile.hint(failure.kind).unwrap_or_default();
    if errors::has_hint(&failure) { failure } else { errors::with_hint(failure, hint) }
}
