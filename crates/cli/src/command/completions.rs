//! `ff completions`: a completion script for a shell.

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

/// The arguments of `ff completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  ff completions bash > /etc/bash_completion.d/ff
  ff completions zsh > ~/.zfunc/_ff
  ff completions fish > ~/.config/fish/completions/ff.fish")]
pub(crate) struct Arguments {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut crate::arguments::Arguments::command(), "ff", &mut script);
    match std::io::stdout().write_all(&script) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
