//! All sessions of a broker: made, found, listed, stopped.

mod unusable;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use ade_protocol::action::{CardList, ChatCreate, SessionInfo};
use ade_protocol::card::{Answer, Card};
use ade_protocol::rpc::RpcError;
use ade_protocol::{Generation, RequestId, SessionId, exit};

use crate::cards::AnswerError;
use crate::clock;
use crate::leftovers::OwedEnds;
use crate::session::{Left, Session, ages};
use crate::shared::Shared;
use crate::state::{Death, SessionRow};
use crate::takeover::Takeover;
use crate::wanted;

use unusable::Unusable;
pub(crate) use unusable::transcript_error;

#[derive(Default)]
struct Sessions {
    by_id: BTreeMap<SessionId, Session>,
    /// None of them is in `by_id`.
    unusable: BTreeMap<SessionId, Unusable>,
    /// The broker ends: none is added any more.
    closed: bool,
}

impl Sessions {
    /// A chat, brought up where it could not be before.
    fn find(&mut self, id: &SessionId, shared: &Arc<Shared>) -> Option<Result<Session, RpcError>> {
        if let Some(session) = self.by_id.get(id) {
            return Some(Ok(session.clone()));
        }
        let unusable = self.unusable.get_mut(id)?;
        if self.closed {
            return Some(Err(crate::session::closed()));
        }
        let session = match unusable.revive(shared) {
            Ok(session) => session,
            Err(why) => return Some(Err(why)),
        };
        tracing::info!(session = %id, "a chat can be used again");
        self.unusable.remove(id);
        self.by_id.insert(id.clone(), session.clone());
        Some(Ok(session))
    }
}

/// All sessions.
pub struct Manager {
    shared: Arc<Shared>,
    sessions: RwLock<Sessions>,
}

/// An error of `state.db` for a client.
pub(crate) fn state_error(error: &crate::state::StateError) -> RpcError {
    let mut answer = RpcError::failed("state", error.exit_code(), error.to_string());
    for hint in error.hints() {
        answer = answer.hint(hint);
    }
    answer
}

impl Manager {
    /// Starts the actors of all sessions that `state.db` knows; those of
    /// `takeover` get their workers back. `owed`: ends that could not be written yet.
    ///
    /// # Errors
    /// When `state.db` cannot be read. A session whose transcript cannot be
    /// opened, or whose row is damaged, can't be used; the others are not held up
    /// by it.
    pub async fn load(
        shared: Arc<Shared>,
        mut takeover: Takeover,
        mut owed: OwedEnds,
    ) -> Result<Self, crate::state::StateError> {
        let rows = shared.state.run(crate::state::State::sessions).await?;
        let mut sessions = Sessions::default();
        for kept in takeover.kept {
            if let Some(row) = rows
                .iter()
                .find(|row| row.session_id == kept.entry.session_id)
            {
                crate::session::watch_over(&shared, row, kept);
            }
        }
        let deaths = shared.state.run(crate::state::State::deaths).await?;
        recall_failed_starts(&shared, &deaths);
        let mut left_of = |id: &SessionId| Left {
            legacy: takeover.legacies.remove(id),
            owed: owed.remove(id).unwrap_or_default(),
            deaths: ages(deaths.iter().filter(|death| death.session_id == *id)),
        };
        for row in rows {
            let id = row.session_id.clone();
            let left = left_of(&id);
            match Session::start(&shared, row.clone(), left.clone()) {
                Ok(session) => drop(sessions.by_id.insert(id, session)),
                Err(error) => {
                    tracing::error!(session = %id, %error, "a chat can't be used");
                    let unusable = Unusable::unreadable(row, left, &error);
                    sessions.unusable.insert(id, unusable);
                }
            }
        }
        for (row, error) in shared
            .state
            .run(crate::state::State::damaged_sessions)
            .await?
        {
            let id = row.session_id.clone();
            tracing::error!(session = %id, %error, "a chat can't be used");
            let unusable = Unusable::damaged(row, left_of(&id), &error);
            sessions.unusable.insert(id, unusable);
        }
        Ok(Self {
            shared,
            sessions: RwLock::new(sessions),
        })
    }

    /// What all sessions share.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Makes a chat. Starts no worker.
    ///
    /// # Errors
    /// When the provider is unknown or cannot be used, the lane is not a
    /// directory, or nothing can be written.
    pub async fn create(&self, request: ChatCreate) -> Result<SessionInfo, RpcError> {
        let lane = wanted::lane(&request.lane)?;
        wanted::absolute("agentDir", request.agent_dir.as_deref())?;
        wanted::model(request.model.as_deref())?;
        self.check_provider(&request.provider).await?;
        if let Some(file) = &request.session_file {
            self.check_owner(&wanted::session_file(file)?, request.take_over)
                .await?;
        }
        if request.first_event_ms.is_some() && !self.shared.config.tells_progress(&request.provider)
        {
            let message = format!(
                "`firstEventMs` cannot be set: {} sends nothing before its whole answer",
                request.provider
            );
            return Err(RpcError::failed("invalid", exit::USAGE, message));
        }
        let row = SessionRow::new(SessionId::generate(), &request, lane, clock::timestamp());
        let session = Session::start(&self.shared, row.clone(), Left::default())
            .map_err(|error| transcript_error(&error))?;
        let id = row.session_id.clone();
        self.shared
            .state
            .run(move |state| state.insert_session(&row))
            .await
            .map_err(|error| state_error(&error))?;
        let info = session.view().info.clone();
        {
            let mut sessions = self.write();
            if !sessions.closed {
                sessions.by_id.insert(id, session);
                return Ok(info);
            }
        }
        // Its row stays: the next broker knows the chat.
        Err(crate::session::closed())
    }

    /// Whether a new chat may go on with a session file: not when it is somebody
    /// else's, or will be with the first message of a chat that was made for it.
    /// A chat that had a worker and does not own the file was refused it.
    async fn check_owner(&self, file: &Path, take_over: bool) -> Result<(), RpcError> {
        let same = |named: &str| std::fs::canonicalize(named).is_ok_and(|named| named == file);
        let user = self.all().into_iter().find_map(|session| {
            let view = session.view();
            let named = view.info.session_file.as_deref()?;
            let will_own = view.info.generation == Generation(0) && same(named);
            will_own.then(|| view.info.session_id.clone())
        });
        let user = user.or_else(|| {
            let waits = |info: &&SessionInfo| info.generation == Generation(0);
            let names = |info: &&SessionInfo| info.session_file.as_deref().is_some_and(same);
            let unusable = self.unusable();
            let found = unusable.iter().filter(waits).find(names)?;
            Some(found.session_id.clone())
        });
        if let Some(chat) = user {
            return Err(wanted::owned_here(file, &chat));
        }
        let Some(claim) = wanted::owner_of(file) else {
            return Ok(());
        };
        let chat = SessionId::from(claim.id.as_str());
        if self.session(&chat).is_ok() || self.is_unusable(&chat) {
            return Err(wanted::owned_here(file, &chat));
        }
        let deleted = self
            .shared
            .state
            .run(move |state| state.was_deleted(&chat))
            .await
            .map_err(|error| state_error(&error))?;
        if take_over || deleted {
            return Ok(());
        }
        Err(wanted::owned_elsewhere(file, &claim))
    }

    async fn check_provider(&self, provider: &str) -> Result<(), RpcError> {
        let providers = Arc::clone(&self.shared.providers);
        let name = provider.to_owned();
        let checked = tokio::task::spawn_blocking(move || providers.check(&name)).await;
        match checked {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => {
                let kind = "provider_not_usable";
                let mut answer = RpcError::failed(kind, error.exit_code(), error.to_string());
                for hint in error.hints() {
                    answer = answer.hint(hint);
                }
                Err(answer)
            }
            Err(_) => Err(RpcError::failed(
                "provider_not_usable",
                exit::PROVIDER_NOT_USABLE,
                format!("looking for the provider {provider} failed unexpectedly"),
            )),
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Sessions> {
        self.sessions.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Sessions> {
        self.sessions
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds a chat. One that could not be used is tried again.
    ///
    /// # Errors
    /// When there is none of that name, or why it can't be used.
    pub fn session(&self, id: &SessionId) -> Result<Session, RpcError> {
        let usable = self.read().by_id.get(id).cloned();
        let found = match usable {
            Some(session) => Some(Ok(session)),
            None => self.write().find(id, &self.shared),
        };
        found.unwrap_or_else(|| {
            let message = format!("there is no chat {id}");
            Err(RpcError::failed("not_found", exit::USAGE, message)
                .hint("`ade ps` lists the chats"))
        })
    }

    fn is_unusable(&self, id: &SessionId) -> bool {
        self.read().unusable.contains_key(id)
    }

    /// Chats that can't be used, each after it was tried again.
    #[must_use]
    pub fn unusable(&self) -> Vec<SessionInfo> {
        if self.read().unusable.is_empty() {
            return Vec::new();
        }
        let mut sessions = self.write();
        let ids: Vec<_> = sessions.unusable.keys().cloned().collect();
        for id in ids {
            // Why not is in what is listed.
            drop(sessions.find(&id, &self.shared));
        }
        sessions.unusable.values().map(Unusable::info).collect()
    }

    /// All chats as clients see them, oldest first.
    #[must_use]
    pub fn infos(&self) -> Vec<SessionInfo> {
        let mut infos = self.unusable();
        infos.extend(self.all().iter().map(|session| session.view().info.clone()));
        infos.sort_by(|one, other| one.session_id.cmp(&other.session_id));
        infos
    }

    /// All chats that can be used, oldest first.
    #[must_use]
    pub fn all(&self) -> Vec<Session> {
        self.read().by_id.values().cloned().collect()
    }

    /// Open cards of all chats, or of one.
    #[must_use]
    pub fn cards(&self, only: Option<&SessionId>) -> Vec<Card> {
        let mut cards: Vec<Card> = self
            .all()
            .iter()
            .flat_map(|session| session.view().cards.clone())
            .filter(|card| only.is_none_or(|only| card.session_id == *only))
            .collect();
        cards.sort_by(|a, b| a.opened_at.cmp(&b.opened_at));
        cards
    }

    /// The same as an answer to a client.
    #[must_use]
    pub fn card_list(&self) -> CardList {
        CardList {
            cards: self.cards(None),
        }
    }

    /// Answers a card; the first answer counts.
    ///
    /// # Errors
    /// Why this one did not count.
    pub async fn answer(
        &self,
        session: Option<&SessionId>,
        card: &RequestId,
        answer: Answer,
        by: &str,
    ) -> Result<(), RpcError> {
        let candidates = match session {
            Some(id) => vec![self.session(id)?],
            None => self.all(),
        };
        // Sessions that have it open come first; the others may still know
        // what became of it.
        let (mut holders, others): (Vec<_>, Vec<_>) = candidates.into_iter().partition(|session| {
            session
                .view()
                .cards
                .iter()
                .any(|open| open.card_id == *card)
        });
        holders.extend(others);
        let mut last = AnswerError::Unknown(card.clone());
        for session in holders {
            match session
                .answer(card.clone(), answer.clone(), by.to_owned())
                .await
            {
                Ok(()) => return Ok(()),
                Err(AnswerError::Unknown(_)) => {}
                Err(error) => {
                    last = error;
                    break;
                }
            }
        }
        Err(answer_error(&last))
    }

    /// Forgets a chat after its worker is gone.
    ///
    /// # Errors
    /// When there is none of that name or nothing can be written.
    pub async fn delete(&self, id: &SessionId) -> Result<(), RpcError> {
        match self.session(id) {
            Ok(session) => session.close().await,
            Err(_) if self.is_unusable(id) => {}
            Err(error) => return Err(error),
        }
        let gone = id.clone();
        self.shared
            .state
            .run(move |state| state.delete_session(&gone).map(drop))
            .await
            .map_err(|error| state_error(&error))?;
        {
            let mut sessions = self.write();
            sessions.by_id.remove(id);
            sessions.unusable.remove(id);
        }
        self.shared.hub.forget(id);
        let path = self.shared.home.transcript(id);
        if let Err(error) = std::fs::remove_file(&path) {
            tracing::warn!(path = %path.display(), %error, "a transcript was not removed");
        }
        Ok(())
    }

    /// Lets go of every worker without ending it; returns when no session
    /// writes any more.
    pub async fn detach_all(&self) {
        let mut detached = tokio::task::JoinSet::new();
        for session in self.all() {
            detached.spawn(async move { session.detach().await });
        }
        while detached.join_next().await.is_some() {}
    }

    /// Ends every turn, queue and worker; returns when all trees are dead.
    /// Nothing new is taken from now on.
    pub async fn stop_all(&self) {
        let mut stops = tokio::task::JoinSet::new();
        let all: Vec<Session> = {
            let mut sessions = self.write();
            sessions.closed = true;
            sessions.by_id.values().cloned().collect()
        };
        for session in all {
            stops.spawn(async move { session.close().await });
        }
        while stops.join_next().await.is_some() {}
    }
}

/// What the last broker counted of each kind of agent.
fn recall_failed_starts(shared: &Shared, deaths: &[Death]) {
    let failed = || deaths.iter().filter(|death| death.at_start);
    let providers: BTreeSet<_> = failed().map(|death| death.provider.as_str()).collect();
    for provider in providers {
        let own = failed().filter(|death| death.provider == provider);
        shared.pool.recall(provider, &ages(own));
    }
}

fn answer_error(error: &AnswerError) -> RpcError {
    let kind = match error {
        AnswerError::AlreadyAnswered { .. } => "already_answered",
        AnswerError::Gone { .. } => "card_gone",
        AnswerError::Unknown(_) => "not_found",
        AnswerError::NotOffered { .. } => "invalid",
    };
    let code = match error {
        AnswerError::Unknown(_) | AnswerError::NotOffered { .. } => exit::USAGE,
        AnswerError::AlreadyAnswered { .. } | AnswerError::Gone { .. } => exit::FAILED,
    };
    RpcError::failed(kind, code, error.to_string()).hint("`ade cards` lists the open cards")
}
