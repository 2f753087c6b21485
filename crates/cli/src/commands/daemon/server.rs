//! `ostler daemon`: the server for the current directory, as editors start it.

use std::path::PathBuf;

use ostler_protocol::{Failure, Rule};

use crate::{
    commands::serve::{self, ServeArgs},
    connection::Connection,
};

/// Where editors look for it.
const DEFAULT_LISTEN: &str = "127.0.0.1:4170";

/// Start a server for the current directory, as editors do
///
/// The same as `ostler serve --workspace . --listen 127.0.0.1:4170`: editors, SDKs and `ostler attach` share sessions whose
/// agents work in this directory. Prints the same ready line.
#[derive(clap::Args, Debug)]
#[command(
    mut_arg("listen", |arg| arg.help("The address to listen on; port 0 picks a free one [default: 127.0.0.1:4170]")),
    after_help = "Examples:\n  ostler daemon\n  ostler daemon --listen 127.0.0.1:0 --require-auth\n  \
        ostler --server http://127.0.0.1:4170 attach"
)]
pub(crate) struct DaemonArgs {
    #[command(flatten)]
    serve: ServeArgs,
}

pub(crate) async fn daemon(connection: &Connection, args: &DaemonArgs) -> Result<u8, Failure> {
    let (file, mut overrides) = args.serve.overrides(connection);
    overrides.listen.get_or_insert_with(|| DEFAULT_LISTEN.to_owned());
    if !overrides.keys.iter().any(|(key, _)| *key == serve::WORKSPACE) {
        overrides.keys.push((serve::WORKSPACE, current_directory()?));
    }
    serve::serve_with(file, overrides, args.serve.log_format(), "attach").await
}

fn current_directory() -> Result<String, Failure> {
    let unusable = |why: String| Failure::invalid(Rule::Config, format!("the current directory cannot be used: {why}"));
    let directory: PathBuf = std::env::current_dir().map_err(|error| unusable(error.to_string()))?;
    directory.into_os_string().into_string().map_err(|_| unusable("its path is not UTF-8".into()))
}

#[cfg(test)]
mod tests {
    use clap::Args as _;

    use super::*;

    #[test]
    fn the_help_names_the_default_address_of_editors() {
        let help = DaemonArgs::augment_args(clap::Command::new("daemon")).render_long_help().to_string();
        assert!(help.contains(&format!("[default: {DEFAULT_LISTEN}]")), "{help}");
        assert!(!help.contains(ostler_server::config::DEFAULT_LISTEN), "{help}");
    }
}
