//! Completions and manual pages, made from the definition of the command line.

use clap::CommandFactory;

use crate::args::Cli;
use crate::context::Context;
use crate::error::CommandError;

/// Prints completions for a shell.
pub(super) fn completions(
    context: &Context,
    shell: clap_complete::Shell,
) -> Result<(), CommandError> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "ade", &mut script);
    context.out.answer(&String::from_utf8_lossy(&script))
}

/// Prints the manual page of ade, or of one of its commands.
pub(super) fn man(context: &Context, path: &[String]) -> Result<(), CommandError> {
    let mut command = Cli::command();
    command.build();
    let mut name = "ade".to_owned();
    for word in path {
        let found = command.find_subcommand(word).cloned();
        command = found.ok_or_else(|| {
            CommandError::usage(format!("`{name}` has no command `{word}`"))
                .hint(format!("`{name} --help` lists them"))
        })?;
        name = format!("{name} {word}");
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut page)
        .map_err(|e| CommandError::failed("the manual page could not be made").because(e))?;
    context.out.answer(&String::from_utf8_lossy(&page))
}
