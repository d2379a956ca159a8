//! The tally of deaths that the start budgets count, on disk: a broker that dies
//! with its workers, or because of them, must not begin to count anew.

use std::time::Duration;

use super::actor::Actor;
use crate::clock;
use crate::state::{Death, State, StateError};
use crate::turn::{Failure, Mono};

/// How long ago deaths were, oldest first; those of an earlier boot are left out.
pub(crate) fn ages<'a>(deaths: impl Iterator<Item = &'a Death>) -> Vec<Duration> {
    let now = clock::monotonic_ms();
    deaths
        .filter_map(|death| now.checked_sub(death.at_ms))
        .map(Duration::from_millis)
        .collect()
}

impl Actor {
    /// The clock of the budget: what another broker counted lies before the actor's
    /// birth.
    pub(super) fn budget_now(&self) -> Mono {
        self.now() + self.shared.config.start_limits().long_window
    }

    /// A worker, or its host, ended that nobody had told to. `at_start`: before it
    /// was ready.
    pub(super) async fn death(&mut self, failure: &Failure, at_start: bool) {
        let now = self.budget_now();
        self.budget.death(now);
        self.last_death = Some(failure.clone());
        let death = Death {
            session_id: self.row.session_id.clone(),
            provider: self.row.provider.clone(),
            at_start,
            at_ms: clock::monotonic_ms(),
        };
        let window = self.shared.config.start_limits().long_window.as_millis();
        let window = u64::try_from(window).unwrap_or(u64::MAX);
        let oldest = death.at_ms.saturating_sub(window);
        self.tally(move |state| state.put_death(&death, oldest))
            .await;
    }

    /// What the session's own budget counted says nothing any more.
    pub(super) async fn forget_deaths(&self) {
        let session = self.row.session_id.clone();
        self.tally(move |state| state.forget_deaths(&session)).await;
    }

    /// The same for what the kind of agent's budget counted.
    pub(super) async fn forget_failed_starts(&self) {
        let provider = self.row.provider.clone();
        self.tally(move |state| state.forget_failed_starts(&provider))
            .await;
    }

    /// The tally is not worth a turn: what can't be written is logged.
    async fn tally(&self, change: impl FnOnce(&State) -> Result<(), StateError> + Send + 'static) {
        if let Err(error) = self.shared.state.run(change).await {
            tracing::error!(session = %self.row.session_id, %error, "deaths are not kept");
        }
    }
}
