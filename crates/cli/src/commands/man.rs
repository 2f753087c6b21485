//! `ostler man`: the manual pages, from the command line's own definition.

use std::{fs, path::PathBuf};

use clap::Command;
use ostler_protocol::Failure;

use crate::{errors, exit_codes};

/// Write the manual pages of all commands to a directory
///
/// Each command has a page: `man ostler`, `man ostler-run`, `man ostler-tokens-create`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler man ~/.local/share/man/man1\n  man ostler-run")]
pub(crate) struct ManArgs {
    /// Where to write the pages; made if it does not exist
    directory: PathBuf,
}

pub(crate) fn man(args: &ManArgs, command: fn() -> Command) -> Result<u8, Failure> {
    let directory = &args.directory;
    let written = fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(command(), directory));
    written.map_err(|error| {
        let message = format!("cannot write manual pages to {}: {error}", directory.display());
        errors::usage(&message, "name a directory that you may write to")
    })?;
    Ok(exit_codes::OK)
}
