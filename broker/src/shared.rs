//! What every session of a broker shares. Nothing here is a session's own
//! state: those belong to their actors.

use std::sync::Arc;

use ade_protocol::Fence;
use tokio::sync::Semaphore;

use crate::config::Config;
use crate::home::Home;
use crate::hub::Hub;
use crate::link::Registry;
use crate::providers::Providers;
use crate::spawn::Spawner;
use crate::state::StateHandle;

/// Shared by all sessions.
#[derive(Debug)]
pub struct Shared {
    /// Paths.
    pub home: Home,
    /// Numbers.
    pub config: Arc<Config>,
    /// Kinds of agents.
    pub providers: Arc<Providers>,
    /// What survives a broker.
    pub state: StateHandle,
    /// Starts processes.
    pub spawner: Spawner,
    /// Workers whose connection is expected.
    pub registry: Registry,
    /// Subscribers.
    pub hub: Hub,
    /// This broker's fence.
    pub fence: Fence,
    /// Starts under way at once; beyond it starts wait in order.
    pub starting: Arc<Semaphore>,
    /// Workers in all; beyond it starts wait in order.
    pub workers: Arc<Semaphore>,
}
