//! What the effects have done, and what they must never do.

use std::collections::BTreeMap;

use super::super::*;
use super::PROMPT;

/// What is known of one message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Message {
    pub(super) begun: bool,
    pub(super) sends: u8,
    pub(super) ends: u8,
    /// An event or a card of it was seen.
    pub(super) seen: bool,
    /// Something has shown, at any time, that its agent worked on it.
    pub(super) worked: bool,
    /// It goes on in a way that the user is told nothing of.
    pub(super) silent: bool,
    /// The user has ended it.
    pub(super) stopped: bool,
    /// That the user has ended it is on disk.
    pub(super) end_noted: bool,
    /// It stands in the table of waiting messages.
    pub(super) on_disk: bool,
    /// Its worker took a message for it, and what became of that nobody knows yet:
    /// the turn was not heard, and it was not told.
    pub(super) took: bool,
}

/// What the effects so far have done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Ledger {
    pub(super) messages: BTreeMap<TurnId, Message>,
    /// The worker that is in use must get no message.
    pub(super) outdated: bool,
    /// A worker is in use.
    pub(super) worker: bool,
    /// The worker waits for an answer to a card.
    pub(super) card: bool,
    /// A worker is being had.
    pub(super) starting: bool,
    /// Nothing can be written down.
    pub(super) unwritable: bool,
    /// What the agent can do.
    pub(super) recovery: Recovery,
    /// The next start has a fresh agent.
    pub(super) rotates: bool,
    /// The next send is the second one.
    pub(super) planned: bool,
    /// What is told last is the end of the run, which says what was not read, or
    /// nothing can be told any more.
    pub(super) has_last_word: bool,
}

impl Ledger {
    pub(super) fn of(&mut self, turn: &TurnId) -> &mut Message {
        self.messages
            .get_mut(turn)
            .expect("a message that was given")
    }

    pub(super) fn take(&mut self, effect: &Effect) {
        match effect {
            Effect::Emit(turn, Event::UserMessage { .. }) => {
                let message = self.of(turn);
                assert!(!message.begun && message.ends == 0, "begun twice");
                message.begun = true;
                message.on_disk = false;
            }
            Effect::Emit(turn, event) => {
                let message = self.of(turn);
                let told = !matches!(event, Event::Activity { .. });
                assert!(message.begun);
                assert!(!message.silent || !told, "the user was told of it");
            }
            Effect::Send {
                turn,
                prompt,
                again,
            } => self.sent(turn, prompt, *again),
            Effect::Finish { turn, status, .. } => {
                assert_ne!(*status, TurnStatus::Started);
                assert!(!self.card, "a card outlives its turn");
                let by_itself = !self.unwritable;
                let message = self.of(turn);
                assert!(
                    *status != TurnStatus::Failed || !message.stopped || !by_itself,
                    "a failure of what the user had ended"
                );
                // What cannot be written down fails also before it began.
                let unwritten = *status == TurnStatus::Failed;
                assert!(
                    message.begun || unwritten,
                    "a turn ended that had not begun"
                );
                message.ends += 1;
                message.on_disk = false;
                let vanished = message.took && unwritten;
                assert!(
                    !vanished || self.has_last_word,
                    "a message for the turn vanished"
                );
            }
            Effect::Drop { turn, .. } => {
                let message = self.of(turn);
                assert!(!message.begun, "delivered and cancelled");
                message.ends += 1;
                message.on_disk = false;
            }
            Effect::Enqueue { row, .. } => {
                let message = self.of(&row.turn);
                assert!(!message.on_disk && !message.begun);
                message.on_disk = true;
            }
            Effect::Clear(turn) => {
                let message = self.of(turn);
                assert!(message.on_disk);
                message.on_disk = false;
            }
            Effect::Edit { turn, .. } => assert!(self.of(turn).on_disk),
            Effect::Quiet { turn, .. } => assert!(self.of(turn).ends == 0),
            Effect::NoteEnd(turn) => {
                let message = self.of(turn);
                assert!(message.ends == 0);
                message.end_noted = true;
            }
            Effect::Abort(turn) => {
                let message = self.of(turn);
                assert!(message.ends == 0);
                assert!(message.end_noted, "told before it was on disk");
            }
            Effect::AbortSilent(turn) => {
                let message = self.of(turn);
                // One that was told to go on had been heard before that.
                let heard = message.seen && message.sends == 1;
                assert!(message.ends == 0 && !heard, "told to end though heard");
            }
            Effect::TellSteers(turn) => {
                assert!(!self.worker, "told of a worker that stays");
                let message = self.of(turn);
                assert!(message.begun && message.ends == 0, "told after its end");
                message.took = false;
            }
            Effect::Arm { rotate, again } => self.armed(*rotate, *again),
            Effect::Disarm(turn) => {
                assert!(self.of(turn).ends == 0, "disarmed after its end");
                (self.rotates, self.planned) = (false, false);
            }
            Effect::Acquire => {
                assert!(!self.worker, "two generations at once");
                assert!(
                    !self.starting,
                    "it goes on with a start that was for another"
                );
                self.starting = true;
            }
            Effect::CancelStart => {
                assert!(self.starting, "nothing is being started");
                self.starting = false;
            }
            Effect::Poison | Effect::Dispose => {
                (self.worker, self.outdated, self.starting) = (false, false, false);
            }
            Effect::Withdraw(_) => self.card = false,
        }
        assert!(
            self.messages.values().all(|message| message.ends <= 1),
            "ended twice"
        );
    }
}

impl Ledger {
    fn sent(&mut self, turn: &TurnId, prompt: &str, again: Option<Again>) {
        assert!(self.worker, "sent to nobody");
        assert!(!self.outdated, "sent to a worker that is outdated");
        let message = self.of(turn);
        assert!(message.begun && message.ends == 0, "sent after its end");
        assert!(!message.stopped, "sent although the user had ended it");
        assert!(
            !message.took,
            "a message that the last worker took is not told"
        );
        message.sends += 1;
        assert!(message.sends <= 2, "sent more than twice");
        assert_eq!(again.is_some(), message.sends == 2);
        let go_on = again == Some(Again::Continue);
        assert!(
            again.is_none() || go_on || !message.worked,
            "sent again though it had worked"
        );
        match again {
            Some(Again::Continue) => {
                assert!(message.seen, "told to go on with nothing");
                assert_eq!(prompt, texts::CONTINUE);
            }
            _ => {
                assert!(!message.seen, "sent again though it was heard");
                assert_eq!(prompt, PROMPT, "not byte for byte");
            }
        }
        message.silent = false;
        self.planned = false;
        let message = self.of(turn);
        message.seen = again == Some(Again::Continue);
    }

    /// A turn that has its worker and goes on with it: nothing is armed for another.
    pub(super) fn goes_on(&self) {
        assert!(!self.rotates, "the next start has a fresh agent");
        assert!(!self.planned, "another broker would send it again");
    }

    /// At most one turn runs, and it is that one's recovery.
    fn armed(&mut self, rotate: bool, again: Option<Again>) {
        assert!(!rotate || self.recovery.fresh_agent, "no agent to rotate");
        let reconnects = matches!(again, Some(Again::Reconnect | Again::Continue));
        assert!(!reconnects || self.recovery.reconnects);
        assert!(!reconnects || !rotate, "an expired token keeps its agent");
        self.rotates |= rotate;
        self.planned |= again.is_some();
        let runs = |message: &&mut Message| message.begun && message.ends == 0;
        if let Some(message) = self.messages.values_mut().find(runs) {
            message.silent |= reconnects;
        }
    }
}
