//! `ostler backends`: the profiles that the server can run.

use clap::Subcommand;
use ostler_protocol::{
    Failure, Timestamp,
    kernel::{backends::Backend, provider_profiles::CONFIG},
};

use crate::{
    commands::{list::Listing, profile_table},
    connection::Connection,
    terminal::{list_output::ListOutput, output::line, table::Column, times::Times},
};

/// List the backends that the server can run
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler backends list")]
pub(crate) struct BackendsArgs {
    #[command(subcommand)]
    verb: BackendsVerb,
}

#[derive(Subcommand, Debug)]
enum BackendsVerb {
    List(ListBackendsArgs),
}

/// List the profiles that `ostler run --profile` accepts
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler backends list\n  \
    ostler backends list -o json | jq -r '.[] | select(.ready) | .profile'")]
struct ListBackendsArgs {
    #[command(flatten)]
    output: ListOutput,
}

pub(crate) async fn backends(connection: &Connection, args: &BackendsArgs) -> Result<u8, Failure> {
    let BackendsVerb::List(args) = &args.verb;
    let all = connection.client()?.list_backends().await?.backends;
    BACKENDS.print(&all, false, Times::default(), &args.output)
}

const BACKENDS: Listing<Backend> = Listing {
    nothing: "the server has no backends\n",
    columns: &[
        Column::whole("PROFILE"),
        Column::whole("READY"),
        Column::spare(1, "PROTOCOL"),
        Column::wrapped(3, "NEEDS"),
        Column::spare(2, "CAN"),
        Column::wrapped(4, "NOTE"),
    ],
    row: |backend, _, now| {
        vec![
            name_of(backend),
            match (backend.ready, can_run(backend, now)) {
                (false, _) => "no",
                (true, false) => "no runner",
                (true, true) => "yes",
            }
            .into(),
            line(&backend.protocol, 80),
            needs(backend),
            if backend.capabilities.is_empty() { "-".into() } else { line(&backend.capabilities.join(", "), 200) },
            backend
                .message
                .as_deref()
                .map_or(String::new(), |message| profile_table::shorten_message(message, &backend.profile)),
        ]
    },
};

/// Whether a run of this backend starts now: it is set up, and a runner serves it if the server does not.
pub(crate) fn can_run(backend: &Backend, now: Timestamp) -> bool {
    backend.ready && (backend.external.is_none() || has_runner(backend, now))
}

/// Whether a runner has requested a job of an external profile recently.
pub(crate) fn has_runner(backend: &Backend, now: Timestamp) -> bool {
    profile_table::is_recent_claim(backend.external.as_ref().and_then(|external| external.last_claim_at), now)
}

/// The files of the profile that a run needs.
fn needs(backend: &Backend) -> String {
    match backend.required_secret_keys.as_slice() {
        // The address and the model are in it. Whether there has to be a key is for the model server to decide.
        [] if backend.backend_kind == "model" => CONFIG.to_owned(),
        [] => "-".to_owned(),
        keys => line(&keys.join(", "), 200),
    }
}

/// The profile, and its tenant if it has one.
pub(crate) fn name_of(backend: &Backend) -> String {
    let name = line(&backend.profile, 63);
    backend.tenant_id.as_ref().map_or(name.clone(), |tenant| format!("{name} of {}", line(tenant, 80)))
}

#[cfg(test)]
mod tests {
    use ostler_protocol::kernel::backends::ExternalBackend;

    use super::*;

    #[test]
    fn an_external_profile_without_a_runner_is_not_called_ready() {
        let at = Timestamp::UNIX_EPOCH;
        let shown = |last_claim_at| {
            let external = Some(ExternalBackend { last_claim_at });
            let backend = Backend { profile: "mine".into(), ready: true, external, ..Backend::default() };
            (BACKENDS.row)(&backend, Times::default(), at)[1].clone()
        };
        assert_eq!((shown(None).as_str(), shown(Some(at)).as_str()), ("no runner", "yes"));
    }

    #[test]
    fn a_backend_shows_whether_it_is_ready_and_what_it_needs() {
        let mut all = ostler_protocol::kernel::backends::built_in();
        all[0].ready = true;
        all[1].message = Some("the profile \"codex\" is not set up".into());
        let text = BACKENDS.render(&all, Times::default(), Timestamp::UNIX_EPOCH, None);
        assert!(text.contains("\nscripted    yes"), "{text}");
        assert!(text.contains("\ncodex       no"), "{text}");
        assert!(text.contains("auth.json, config.toml") && text.contains("not set up"), "{text}");
        let needed = |name: &str| needs(all.iter().find(|backend| backend.profile == name).unwrap());
        assert_eq!((needed("model").as_str(), needed("scripted").as_str()), ("config.toml", "-"));
    }
}
