//! What every session of a broker shares. Nothing here is a session's own
//! state: those belong to their actors.

use std::sync::Arc;

use ade_protocol::Fence;

use crate::cgroups::Cgroups;
use crate::config::Config;
use crate::home::Home;
use crate::hub::Hub;
use crate::link::Registry;
use crate::pool::Pool;
use crate::providers::Providers;
use crate::spawn::Spawner;
use crate::state::StateHandle;
use crate::stuck::Stuck;

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
    /// Where the cgroups of workers are made.
    pub cgroups: Cgroups,
    /// Starts processes.
    pub spawner: Spawner,
    /// Workers whose connection is expected.
    pub registry: Registry,
    /// Subscribers.
    pub hub: Arc<Hub>,
    /// This broker's fence.
    pub fence: Fence,
    /// Places for workers.
    pub pool: Arc<Pool>,
    /// Whether there is a descriptor to spare for each worker that is taken over:
    /// its end is waited for with one, and else looked for.
    pub pidfds: bool,
    /// Sessions beside whose last worker nothing is started.
    pub stuck: Stuck,
}
