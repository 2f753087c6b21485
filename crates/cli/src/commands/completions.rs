//! `ostler completions`: the script by which a shell completes commands, flags and ids. Commands and flags come from the
//! command line's own definition, ids and names from `candidates`.

use std::{ffi::OsString, path::PathBuf};

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
    let program = program(std::env::var_os("PATH"), std::env::current_exe().ok());
    shell.write_registration(VARIABLE, "ostler", "ostler", &program, &mut script).map_err(Failure::internal)?;
    output::data(&String::from_utf8_lossy(&script));
    Ok(exit_codes::OK)
}

/// What the script calls: `ostler`, or if that is an alias of the shell, which a script cannot use, this program by its path.
fn program(path: Option<OsString>, own: Option<PathBuf>) -> String {
    let is_found = path.is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join("ostler").is_file()));
    let own = own.and_then(|own| own.into_os_string().into_string().ok());
    own.filter(|_| !is_found).unwrap_or_else(|| "ostler".to_owned())
}

/// Prints candidates and exits if a shell's script started this process to get them; returns otherwise.
pub(crate) fn complete(command: fn() -> Command) {
    clap_complete::CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_script_calls_the_program_by_its_path_unless_a_shell_finds_it() {
        let own = || Some(PathBuf::from("/build/ostler"));
        assert_eq!(program(Some("/nowhere".into()), own()), "/build/ostler");
        assert_eq!(program(None, None), "ostler");
        let dir = std::env::temp_dir().join(format!("ostler-completions-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        std::fs::write(dir.join("ostler"), "").unwrap();
        assert_eq!(program(Some(dir.clone().into()), own()), "ostler");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
