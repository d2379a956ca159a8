//! What is still to be learned from a line that is no valid frame: what it was to
//! answer, and which field is to blame. Never a content.

use serde::Deserialize;

use super::{Ready, ReadyFrame, Response};
use crate::{RequestId, strict};

impl ReadyFrame {
    /// The field for which a line is no such frame, where it is one of ours and its
    /// value is to blame. Says nothing of the value.
    #[must_use]
    pub fn wrong_field(line: &str) -> Option<&'static str> {
        #[derive(Deserialize)]
        struct Loose {
            ready: serde_json::Map<String, serde_json::Value>,
        }
        let told = strict::from_str::<Loose>(line).ok()?.ready;
        Ready::FIELDS.into_iter().find(|field| {
            let Some(value) = told.get(*field) else {
                return false;
            };
            // All else is right in this one.
            let mut probe =
                serde_json::json!({"protocolVersion": 2, "provider": "", "version": ""});
            probe[*field] = value.clone();
            strict::from_value::<Ready>(probe).is_err()
        })
    }
}

impl Response {
    /// The request that a line answers which is no valid response.
    #[must_use]
    pub fn names(line: &str) -> Option<RequestId> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Loose {
            request_id: RequestId,
        }
        let Loose { request_id } = strict::from_str(line).ok()?;
        Some(request_id)
    }
}

impl Ready {
    /// The fields, as they stand on the wire.
    const FIELDS: [&str; 13] = [
        "protocolVersion",
        "provider",
        "version",
        "sessionFile",
        "sessionId",
        "currentModel",
        "thinkingLevel",
        "availableModels",
        "account",
        "extensions",
        "extensionsError",
        "ungateableTools",
        "capabilities",
    ];
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::frame::{Capabilities, Model};

    #[test]
    fn every_field_of_ready_is_known_here() {
        let model = Model {
            provider: "p".into(),
            id: "m".into(),
            name: None,
            context_window: None,
        };
        let ready = Ready {
            protocol_version: 2,
            provider: "p".into(),
            version: "1".into(),
            session_file: Some("/f".into()),
            session_id: Some("s".into()),
            current_model: Some(model.clone()),
            thinking_level: Some("off".into()),
            available_models: vec![model],
            account: Some(json!({})),
            extensions: Some(json!([])),
            extensions_error: Some("e".into()),
            ungateable_tools: vec!["bash".into()],
            capabilities: Capabilities::default(),
        };
        let written = serde_json::to_value(&ready).unwrap();
        let mut written: Vec<&str> = written
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let mut known = Ready::FIELDS;
        written.sort_unstable();
        known.sort_unstable();
        assert_eq!(written, known);
    }

    #[test]
    fn the_field_to_blame_is_named_and_no_other() {
        let table = [
            (json!({"sessionFile": 7}), Some("sessionFile")),
            (
                json!({"version": "1", "currentModel": {"id": "m"}}),
                Some("currentModel"),
            ),
            (json!({"protocolVersion": "2"}), Some("protocolVersion")),
            (json!({"capabilities": []}), Some("capabilities")),
            // What is missing is named elsewhere; what is unknown is nobody's.
            (json!({"provider": "p"}), None),
            (json!({"secret-word": 7}), None),
            (json!(7), None),
        ];
        for (ready, field) in table {
            let line = json!({"protocolVersion": 2, "type": "ready", "ready": ready}).to_string();
            assert_eq!(ReadyFrame::wrong_field(&line), field, "{line}");
        }
    }
}
