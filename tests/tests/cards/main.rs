//! Cards: without a human's answer they are denied, an answer counts once, and
//! a card that nobody can answer any more is withdrawn for every client.

use ade_tests::ade::Ade;
use ade_tests::rpc::Rpc;
use serde_json::json;

mod answers;
mod brokers;
mod limits;
mod withdrawn;

/// A gated call of `bash`, then a word.
const GATED: &str = "!card Run it? | touch x | bash\n!emit went on";

fn started() -> (Ade, Rpc, String) {
    configured("")
}

fn configured(config: &str) -> (Ade, Rpc, String) {
    let mut ade = Ade::new().with_config(config);
    ade.serve();
    let mut rpc = ade.rpc();
    let chat = ade.chat(&mut rpc, "scripted", &ade.lane("lane"), json!({}));
    (ade, rpc, chat)
}

/// Sends a message and waits for its card: the turn, the card, the watcher.
fn asked(ade: &Ade, rpc: &mut Rpc, chat: &str, prompt: &str) -> (String, String, Rpc) {
    let (turn, after) = ade.send(rpc, chat, prompt);
    let mut watch = ade.rpc();
    watch.subscribe(chat, after);
    let card = watch.card();
    (turn, card, watch)
}
