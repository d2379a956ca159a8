//! The commands, one module for each group. Each gets what it needs and returns
//! an error or nothing; none ends the process.

use tokio::runtime::Builder;

use crate::args::{Command, Lease};
use crate::context::Context;
use crate::error::CommandError;

mod actions;
mod attach;
mod broker;
mod cards;
mod chat;
mod demo;
mod doctor;
mod lease;
mod lists;
mod owner;
mod queue;
mod run;
mod shell;
mod store;

/// Threads of the broker's runtime.
const BROKER_THREADS: usize = 2;

/// Runs a command.
///
/// # Errors
/// Why it failed, with the exit code of the process.
pub(crate) fn run(context: &Context, command: Command) -> Result<(), CommandError> {
    match command {
        Command::Completions { shell } => return shell::completions(context, shell),
        Command::Man { command } => return shell::man(context, &command),
        Command::Lease(command) if !matches!(command, Lease::Hold(_)) => {
            return lease::run(context, &command);
        }
        Command::HeldProgram { parent, command } => return lease::follow(parent, &command),
        Command::Owner(command) => return owner::run(context, &command),
        Command::Store(command) => return store::run(context, &command),
        Command::DemoLease(arguments) => return demo::lease_side(context, &arguments),
        Command::Serve(arguments) => return broker::serve(context, arguments, BROKER_THREADS),
        _ => {}
    }
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| CommandError::failed("the runtime could not be started").because(e))?;
    let result = runtime.block_on(asynchronous(context, command));
    // A thread may still sit in a read of the terminal: it is not waited for.
    runtime.shutdown_background();
    result
}

async fn asynchronous(context: &Context, command: Command) -> Result<(), CommandError> {
    match command {
        Command::Lease(Lease::Hold(arguments)) => lease::hold(context, arguments).await,
        Command::Demo(arguments) => demo::run(context, &arguments).await,
        Command::DemoGuard(arguments) => demo::guard(context, &arguments).await,
        Command::Run(arguments) => run::run(context, arguments).await,
        Command::Chat(command) => chat::run(context, command).await,
        Command::Attach(arguments) => attach::run(context, &arguments).await,
        Command::Ps => lists::ps(context).await,
        Command::Cards => cards::list(context).await,
        Command::Answer(arguments) => cards::answer(context, arguments).await,
        Command::Providers => lists::providers(context).await,
        Command::Doctor => doctor::run(context).await,
        Command::Actions(command) => actions::run(context, command).await,
        Command::Status => broker::status(context).await,
        Command::Stop => broker::stop(context).await,
        Command::Completions { .. }
        | Command::Man { .. }
        | Command::Lease(_)
        | Command::HeldProgram { .. }
        | Command::Owner(_)
        | Command::Store(_)
        | Command::DemoLease(_)
        | Command::Serve(_) => Ok(()),
    }
}
