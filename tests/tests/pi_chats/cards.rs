//! Questions: approvals, modes, and what the agent and its extensions ask.

use std::collections::HashSet;
use std::fs;

use ade_tests::pi::{PiAde, answer, bash, next_card, one_branch, status_of, tool};
use ade_tests::rpc::text_of;
use ade_tests::turns::of_type;
use ade_tests::wait::wait_true;
use serde_json::{Value, json};

use crate::HELLO;

#[test]
fn a_gated_command_runs_only_when_it_was_allowed() {
    let pi = PiAde::serve();
    let lane = pi.ade.lane("lane");
    let chat = pi.chat("lane", "fake/fake-text", "default");

    let (mut rpc, turn) = pi.send(&chat, &bash("touch allowed"));
    let card = next_card(&mut rpc);
    assert_eq!(card["payload"]["origin"], "approval");
    assert_eq!(card["payload"]["kind"], "confirm");
    assert_eq!(card["payload"]["sourceId"], "bash");
    assert!(
        card["payload"]["message"]
            .as_str()
            .unwrap()
            .contains("touch allowed")
    );
    assert_eq!(card["turnId"], json!(turn));
    assert_eq!(pi.ade.session(&chat)["state"], "awaiting_card");
    assert!(
        !lane.join("allowed").exists(),
        "it ran before it was allowed"
    );
    answer(&mut rpc, &card, "allow");
    let events = rpc.until_done(&turn);
    assert_eq!(status_of(&events), "completed");
    assert_eq!(of_type(&events, "tool_result")[0]["ok"], true);
    assert!(lane.join("allowed").exists());

    let (mut rpc, turn) = pi.send(&chat, &bash("touch denied"));
    let card = next_card(&mut rpc);
    answer(&mut rpc, &card, "deny");
    let events = rpc.until_done(&turn);
    assert_eq!(
        status_of(&events),
        "completed",
        "a denial is told to the model"
    );
    let result = &of_type(&events, "tool_result")[0];
    assert_eq!(result["ok"], false);
    assert!(
        result["text"].as_str().unwrap().contains("denied"),
        "{result}"
    );
    assert_eq!(text_of(&events), "The tool is done.", "the turn goes on");
    assert!(!lane.join("denied").exists());

    let both = format!("{} {}", bash("touch first"), bash("touch second"));
    let (mut rpc, turn) = pi.send(&chat, &both);
    let card = next_card(&mut rpc);
    answer(&mut rpc, &card, "allow_session");
    let events = rpc.until_done(&turn);
    assert!(
        of_type(&events, "card_opened").is_empty(),
        "bash was allowed for the session"
    );
    assert!(lane.join("first").exists() && lane.join("second").exists());
    let events = pi.completed(&chat, &bash("touch third"));
    assert!(of_type(&events, "card_opened").is_empty() && lane.join("third").exists());

    fs::write(lane.join("file"), "old").unwrap();
    let edits = json!({"path": "file", "edits": [{"oldText": "old", "newText": "new"}]});
    let (mut rpc, turn) = pi.send(&chat, &tool("edit", edits));
    let card = next_card(&mut rpc);
    assert_eq!(card["payload"]["sourceId"], "edit", "allowed was bash only");
    answer(&mut rpc, &card, "deny");
    assert_eq!(status_of(&rpc.until_done(&turn)), "completed");
    assert_eq!(fs::read(lane.join("file")).unwrap(), b"old");
}

#[test]
fn two_questions_at_once_are_answered_in_any_order() {
    let pi = PiAde::serve();
    let lane = pi.ade.lane("lane");
    let chat = pi.chat("lane", "fake/fake-text", "default");
    let both = format!("{} {} PARALLEL", bash("touch a"), bash("touch b"));
    let (mut rpc, turn) = pi.send(&chat, &both);
    let cards = [next_card(&mut rpc), next_card(&mut rpc)];
    let file = |card: &Value| card["payload"]["message"].as_str().unwrap()[6..].to_owned();
    answer(&mut rpc, &cards[1], "allow");
    wait_true("the second call runs", || {
        lane.join(file(&cards[1])).exists()
    });
    assert!(!lane.join(file(&cards[0])).exists());
    answer(&mut rpc, &cards[0], "deny");
    let events = rpc.until_done(&turn);
    assert_eq!(status_of(&events), "completed");
    let ok = |event: &&Value| event["ok"] == true;
    assert_eq!(
        of_type(&events, "tool_result")
            .iter()
            .filter(|one| ok(one))
            .count(),
        1
    );
    assert!(!lane.join(file(&cards[0])).exists());
}

#[test]
fn an_abort_withdraws_open_cards_and_nothing_runs() {
    let pi = PiAde::serve();
    let lane = pi.ade.lane("lane");
    let chat = pi.chat("lane", "fake/fake-text", "default");
    let both = format!("{} {} PARALLEL", bash("touch a"), bash("touch b"));
    let (mut rpc, turn) = pi.send(&chat, &both);
    let cards = [next_card(&mut rpc), next_card(&mut rpc)];
    rpc.call("chat.abort", json!({"sessionId": chat, "turnId": turn}));
    let events = rpc.until_done(&turn);
    assert_eq!(status_of(&events), "interrupted");
    let resolved = of_type(&events, "card_resolved");
    assert_eq!(resolved.len(), 2, "{events:#?}");
    for event in resolved {
        assert_eq!(
            event["resolution"],
            json!({"outcome": "withdrawn", "why": "aborted"})
        );
    }
    for card in &cards {
        let late = json!({"cardId": card["cardId"], "sessionId": chat,
            "answer": {"ok": true, "value": "allow"}});
        assert_eq!(
            rpc.try_call("cards.answer", late).unwrap_err().kind,
            "card_gone"
        );
    }
    assert_eq!(rpc.call("cards.list", json!({}))["cards"], json!([]));
    assert_eq!(text_of(&pi.completed(&chat, "hello")), HELLO);
    assert!(!lane.join("a").exists() && !lane.join("b").exists());
    one_branch(&pi.ade.session_file(&chat), &lane);
}

#[test]
fn the_mode_says_which_tools_there_are_and_which_ask() {
    let pi = PiAde::serve();
    let lane = pi.ade.lane("lane");
    let tools = || {
        let request = pi.model.requests().pop().unwrap();
        let tools = request["body"]["tools"].as_array().unwrap().clone();
        let name = |tool: &Value| tool["function"]["name"].as_str().unwrap().to_owned();
        tools.iter().map(name).collect::<HashSet<String>>()
    };
    for (mode, writes, runs) in [
        ("plan", false, false),
        ("edit", true, false),
        ("full-auto", true, true),
    ] {
        let chat = pi.chat("lane", "fake/fake-text", mode);
        let (written, touched) = (format!("{mode}-written"), format!("{mode}-touched"));
        let prompt = format!(
            "{} {}",
            tool("write", json!({"path": written, "content": "x"})),
            bash(&format!("touch {touched}"))
        );
        let events = pi.completed(&chat, &prompt);
        assert!(
            of_type(&events, "card_opened").is_empty(),
            "{mode} never asks"
        );
        let offered = tools();
        assert!(offered.contains("read"), "{mode}: {offered:?}");
        for (name, file, allowed) in [("write", written, writes), ("bash", touched, runs)] {
            assert_eq!(offered.contains(name), allowed, "{mode}: {offered:?}");
            assert_eq!(lane.join(file).exists(), allowed, "{name} in {mode}");
        }
        assert_eq!(offered.contains("edit"), writes, "{mode}: {offered:?}");
        pi.stop(&chat);
    }
}

#[test]
fn another_mode_is_another_set_of_tools_on_the_same_session_file() {
    let pi = PiAde::serve();
    let lane = pi.ade.lane("lane");
    let chat = pi.chat("lane", "fake/fake-text", "plan");
    let permit = |mode: &str| {
        let arguments = json!({"sessionId": chat, "permission": mode});
        pi.ade.rpc().call("chat.permission", arguments);
    };
    let offers_bash = || {
        let request = pi.model.requests().pop().unwrap();
        let tools = request["body"]["tools"].as_array().unwrap().clone();
        tools.iter().any(|tool| tool["function"]["name"] == "bash")
    };
    let events = pi.completed(&chat, &bash("touch planned"));
    assert!(!offers_bash() && !lane.join("planned").exists());
    assert!(of_type(&events, "card_opened").is_empty());
    let file = pi.ade.session_file(&chat);

    permit("default");
    let (mut rpc, turn) = pi.send(&chat, &bash("touch asked"));
    let card = next_card(&mut rpc);
    assert_eq!(card["payload"]["sourceId"], "bash");
    answer(&mut rpc, &card, "allow_session");
    assert_eq!(status_of(&rpc.until_done(&turn)), "completed");
    assert!(offers_bash() && lane.join("asked").exists());

    // There and back: what was allowed is asked again.
    permit("edit");
    permit("default");
    let (mut rpc, turn) = pi.send(&chat, &bash("touch again"));
    let card = next_card(&mut rpc);
    answer(&mut rpc, &card, "deny");
    assert_eq!(status_of(&rpc.until_done(&turn)), "completed");
    assert!(!lane.join("again").exists());

    permit("plan");
    pi.completed(&chat, "hello");
    assert!(!offers_bash());
    assert_eq!(pi.ade.session(&chat)["generation"], 4);
    assert_eq!(pi.ade.session_file(&chat), file);
    one_branch(&file, &lane);
}

#[test]
fn the_agent_can_ask_the_user() {
    let pi = PiAde::serve();
    let chat = pi.chat("lane", "fake/fake-text", "full-auto");
    let question = json!({"question": "Which?", "options": [{"label": "A"}, {"label": "B"}]});
    let (mut rpc, turn) = pi.send(&chat, &tool("ask_user", question));
    let card = next_card(&mut rpc);
    assert_eq!(card["payload"]["origin"], "tool");
    assert_eq!(card["payload"]["kind"], "select");
    let value = card["payload"]["options"][1]["value"]
        .as_str()
        .unwrap()
        .to_owned();
    answer(&mut rpc, &card, &value);
    let events = rpc.until_done(&turn);
    let result = &of_type(&events, "tool_result")[0];
    assert_eq!(result["text"], "The user chose: B");
}

#[test]
fn extensions_of_the_user_can_ask() {
    let pi = PiAde::serve();
    let extensions = pi.ade.agent_dir().join("extensions");
    fs::create_dir(&extensions).unwrap();
    let asks = r#"export default (pi) => pi.on("tool_call", async (event, ctx) => {
        const yes = await ctx.ui.confirm("Really?", event.input.command, { signal: ctx.signal });
        if (!yes) return { block: true, reason: "the extension said no" };
    });"#;
    fs::write(extensions.join("asks.ts"), asks).unwrap();
    let chat = pi.chat("lane", "fake/fake-text", "full-auto");
    for (word, runs) in [("yes", false), ("allow", true)] {
        let (mut rpc, turn) = pi.send(&chat, &bash(&format!("touch {word}")));
        let card = next_card(&mut rpc);
        assert_eq!(card["payload"]["origin"], "extension");
        let given = json!({"cardId": card["cardId"], "sessionId": chat,
            "answer": {"ok": true, "value": word}});
        match rpc.try_call("cards.answer", given) {
            Ok(_) => assert!(runs),
            // Not one of the words: the card is still open.
            Err(error) => {
                assert!(!runs, "{error:?}");
                answer(&mut rpc, &card, "deny");
            }
        }
        assert_eq!(status_of(&rpc.until_done(&turn)), "completed");
        assert_eq!(pi.ade.lane("lane").join(word).exists(), runs);
    }
    // Where calls are gated no foreign code runs beside the gate.
    let gated = pi.chat("lane", "fake/fake-text", "default");
    let (mut rpc, turn) = pi.send(&gated, &bash("true"));
    let card = next_card(&mut rpc);
    assert_eq!(card["payload"]["origin"], "approval");
    answer(&mut rpc, &card, "allow");
    assert!(of_type(&rpc.until_done(&turn), "card_opened").is_empty());
}
