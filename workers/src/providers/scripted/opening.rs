//! What the scripted host opens: its models, and a session.

use ade_protocol::PROTOCOL_VERSION;
use ade_protocol::frame::{Capabilities, Init, Model, Ready, code};

use super::store::Store;
use super::{Opened, PROVIDER};

pub(super) fn models() -> Vec<Model> {
    ["echo", "parrot"]
        .into_iter()
        .map(|id| Model {
            provider: PROVIDER.into(),
            id: id.into(),
            name: Some(format!("Scripted {id}")),
            context_window: Some(200_000),
        })
        .collect()
}

pub(super) fn no_such_model(reference: &str) -> String {
    let known: Vec<String> = models().iter().map(Model::reference).collect();
    format!(
        "there is no model {reference}; there are {}",
        known.join(", ")
    )
}

/// An `errorCode` and a sentence.
pub(super) type Refusal = (&'static str, String);

pub(super) fn open(init: &Init) -> Result<Opened, Refusal> {
    let model = match &init.model_ref {
        None => models().into_iter().next(),
        Some(wanted) => {
            let found = models()
                .into_iter()
                .find(|model| model.reference() == *wanted);
            Some(found.ok_or_else(|| (code::MODEL_NOT_FOUND, no_such_model(wanted)))?)
        }
    };
    let store = if init.inventory_only {
        None
    } else {
        Some(Store::open(init)?)
    };
    let ready = Ready {
        protocol_version: PROTOCOL_VERSION,
        provider: PROVIDER.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        session_file: store
            .as_ref()
            .map(|store| store.path().to_string_lossy().into_owned()),
        session_id: store.as_ref().map(|store| store.id().to_owned()),
        current_model: model,
        thinking_level: Some(init.thinking_level.clone().unwrap_or_else(|| "off".into())),
        available_models: models(),
        capabilities: Capabilities {
            steer: true,
            follow_up: true,
            compact: true,
            models: true,
            interrupt_and_continue: true,
            ..Capabilities::default()
        },
        ..Ready::default()
    };
    Ok(Opened { ready, store })
}
