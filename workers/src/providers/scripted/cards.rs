//! What a turn of the scripted host asks.

use ade_protocol::RequestId;
use ade_protocol::card::{CardKind, CardOption, CardOrigin, CardPayload, Permission};
use ade_protocol::frame::{FromWorker, UiRequest, UiResponse};
use serde_json::json;

use super::turn::{Ended, Spoken, new_id};
use super::{Host, Stop};

impl Host {
    pub(super) fn card(
        &mut self,
        title: String,
        message: String,
        tool: &str,
        spoken: &mut Spoken,
    ) -> Ended {
        let call_id = new_id("call");
        self.call(&call_id, tool, json!({"command": message}));
        let payload = CardPayload {
            title: Some(title),
            source_id: Some(tool.to_owned()),
            ..question(CardOrigin::Approval, CardKind::Confirm, message)
        };
        let answer = match self.question(payload) {
            Ok(answer) => answer,
            Err(stop) => {
                self.result(call_id, tool, false, "cancelled");
                return Ended::Stopped(stop);
            }
        };
        let allowed = answer.answer().permission() != Permission::No;
        self.result(
            call_id,
            tool,
            allowed,
            if allowed { "ok" } else { "denied" },
        );
        spoken.message = new_id("msg");
        Ended::Done
    }

    pub(super) fn ask(&mut self, text: String, options: &[String], spoken: &mut Spoken) -> Ended {
        let option = |label: &String| CardOption {
            value: label.clone(),
            label: label.clone(),
            description: None,
        };
        let payload = CardPayload {
            source_id: Some("ask_user".into()),
            options: options.iter().map(option).collect(),
            ..question(CardOrigin::Tool, CardKind::Select, text)
        };
        match self.question(payload) {
            Err(stop) => Ended::Stopped(stop),
            Ok(answer) => {
                let said = match answer.value.filter(|_| answer.ok) {
                    Some(value) => format!("answer: {value}"),
                    None => "unanswered".into(),
                };
                self.tell(&said, spoken);
                Ended::Done
            }
        }
    }

    pub(super) fn secret(&mut self, text: String, spoken: &mut Spoken) -> Ended {
        match self.question(question(CardOrigin::Auth, CardKind::Secret, text)) {
            Err(stop) => Ended::Stopped(stop),
            Ok(answer) => {
                let length = answer
                    .value
                    .filter(|_| answer.ok)
                    .map_or(0, |value| value.chars().count());
                self.tell(&format!("secret of {length} characters"), spoken);
                Ended::Done
            }
        }
    }

    fn question(&mut self, payload: CardPayload) -> Result<UiResponse, Stop> {
        let request_id = RequestId::generate();
        self.put(&FromWorker::UiRequest(Box::new(UiRequest {
            request_id: request_id.clone(),
            turn_id: None,
            payload,
        })));
        loop {
            if let Some(index) = self
                .answers
                .iter()
                .position(|answer| answer.request_id == request_id)
            {
                return Ok(self.answers.swap_remove(index));
            }
            if let Some(stop) = self.arrival() {
                return Err(stop);
            }
        }
    }
}

fn question(origin: CardOrigin, kind: CardKind, message: String) -> CardPayload {
    CardPayload {
        origin,
        kind,
        message,
        title: None,
        placeholder: None,
        default_value: None,
        options: Vec::new(),
        source_id: None,
        detail: None,
    }
}
