//! `ostler completions`: the script by which a shell completes commands, flags and ids. Commands and flags come from the
//! command line's own definition, ids and names from `candidates`.

use clap::{Command, ValueEnum};
use clap_complete::env::{Bash, EnvCompleter, Fish, Powershell, Zsh};
use ostler_protocol::Failure;

use crate::{exit_codes, terminal::output};

/// The variable by which a shell's script requests candidates.
const VARIABLE: &str = "COMPLETE";

/// Print the script that completes commands, flags and ids in a shell
///
/// Ids come from the server that the environment or the current context names.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  echo 'source <(ostler completions bash)' >> ~/.bashrc\n  \
    echo 'source <(ostler completions zsh)' >> ~/.zshrc\n  \
    ostler completions fish > ~/.config/fish/completions/ostler.fish\n  \
    ostler completions powershell >> $PROFILE")]
pub(crate) struct CompletionsArgs {
    shell: ShellName,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ShellName {
    Bash,
    Zsh,
    Fish,
    Powershell,
}

pub(crate) fn completions(args: &CompletionsArgs) -> Result<u8, Failure> {
    let shell: &dyn EnvCompleter = match args.shell {
        ShellName::Bash => &Bash,
        ShellName::Zsh => &Zsh,
        ShellName::Fish => &Fish,
        ShellName::Powershell => &Powershell,
    };
    let mut script = vec![];
    shell.write_registration(VARIABLE, "ostler", "ostler", "ostler", &mut script).map_err(Failure::internal)?;
    output::data(&String::from_utf8_lossy(&script));
    Ok(exit_codes::OK)
}

/// Prints candidates and exits if a shell's script started this process to get them; returns otherwise.
pub(crate) fn complete(command: fn() -> Command) {
    clap_complete::CompleteEnv::with_factory(command).var(VARIABLE).complete();
}
