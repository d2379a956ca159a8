//! `ade actions`: everything that the control endpoint can do, as it says
//! itself.

use ade_protocol::action::{ACTIONS_LIST, ActionInfo};
use ade_protocol::strict;
use serde_json::{Value, json};

use crate::args::Actions;
use crate::client::MODEL;
use crate::client::QUICK;
use crate::commands::lists::print_table;
use crate::commands::run::read_text;
use crate::context::Context;
use crate::error::CommandError;
use crate::table::Table;

/// Lists the actions, or does one.
pub(super) async fn run(context: &Context, command: Actions) -> Result<(), CommandError> {
    match command {
        Actions::List => list(context).await,
        Actions::Run { name, arguments } => {
            let text = if arguments == "-" {
                read_text()?
            } else {
                arguments
            };
            let arguments: Value = serde_json::from_str(&text).map_err(|error| {
                CommandError::usage("the arguments are no JSON")
                    .because(error)
                    .hint("`ade actions list --json` shows each action's schema and an example")
            })?;
            let mut client = context.broker().await?;
            let result: Value = client.call(&name, &arguments, MODEL).await?;
            context.out.document(&result)
        }
    }
}

async fn list(context: &Context) -> Result<(), CommandError> {
    let mut client = context.broker().await?;
    let answer: Value = client.request(ACTIONS_LIST, &json!({}), QUICK).await?;
    if context.out.json() {
        return context.out.document(&answer);
    }
    // The list stands alone or in a field.
    let list = answer.get("actions").unwrap_or(&answer).clone();
    let list: Vec<ActionInfo> = strict::from_value(list)
        .map_err(|e| CommandError::failed("the list of actions is not understood").because(e))?;
    let mut table = Table::new(&["ACTION", "ROLE", "DOES", "EXAMPLE"]);
    for action in list {
        let role = serde_json::to_value(action.role).unwrap_or_default();
        table.row(&[
            action.name,
            role.as_str().unwrap_or_default().to_owned(),
            action.about,
            action.example.to_string(),
        ]);
    }
    print_table(context, &table)
}
