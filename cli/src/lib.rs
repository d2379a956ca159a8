//! The command line of ade.
//!
//! Commands talk to the broker over its control socket and start one where none
//! runs. This crate holds no session state and takes no decision that the broker
//! takes: it parses, asks, shows, and ends with the documented exit code.
//!
//! Invariants:
//! - `output` is the only module that prints;
//! - every wait has a deadline or ends with Ctrl-C;
//! - the process ends by returning from `main`, so that what must be put back
//!   (a terminal's echo, a demo's folder) is.

use std::process::ExitCode;

use clap::Parser;

mod args;
mod ask;
mod client;
mod commands;
mod context;
mod error;
mod harmless;
mod input;
mod live;
mod log;
mod outcome;
mod output;
mod resolve;
mod seam;
mod spinner;
mod start;
mod table;
mod view;

/// Runs the command that the command line names.
#[must_use]
pub fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let cli = match args::Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(error) => {
            let json = arguments
                .iter()
                .skip(1)
                .take_while(|a| *a != "--")
                .any(|a| a == "--json");
            output::Output::new(json, false).usage(&error);
            let code = if error.use_stderr() {
                ade_protocol::exit::USAGE
            } else {
                ade_protocol::exit::OK
            };
            return ExitCode::from(code);
        }
    };
    let context = context::Context::new(&cli.global);
    match commands::run(&context, cli.command) {
        Ok(()) => ExitCode::from(ade_protocol::exit::OK),
        Err(error) => {
            context.out.error(&error);
            ExitCode::from(error.code())
        }
    }
}
