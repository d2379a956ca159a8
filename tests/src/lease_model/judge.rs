//! Who is alive, as each side can know it.

use super::state::{File, State};
use super::{Config, Without};

/// The library's verdict.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Alive,
    Dead,
    Unknown,
}

impl State {
    /// Whether the very process that wrote this record runs.
    pub(super) fn writer_runs(&self, file: File) -> bool {
        let proc = &self.procs[file.owner()];
        proc.pc != super::state::Pc::Dead && proc.inc == file.inc()
    }

    /// Whether any process has the pid in this record.
    pub(super) fn pid_exists(&self, file: File) -> bool {
        let proc = &self.procs[file.owner()];
        proc.pc != super::state::Pc::Dead && (proc.inc == file.inc() || proc.same_pid)
    }

    fn in_namespace(config: &Config, who: usize) -> bool {
        config.namespace && who == config.ours - 1
    }

    /// How one of ours judges. A foreign record has no start tick; that its pid
    /// was given away shows only when that was 5 s later, so here it never does.
    pub(super) fn judge(&self, config: &Config, judge: usize, file: File) -> Verdict {
        if file.locked() && self.writer_runs(file) {
            return Verdict::Alive;
        }
        let owner = file.owner();
        if Self::in_namespace(config, judge) != Self::in_namespace(config, owner) {
            return Verdict::Unknown;
        }
        let foreign = owner >= config.ours && owner < config.all();
        let runs = if foreign || config.without == Without::StartTicks {
            self.pid_exists(file)
        } else {
            self.writer_runs(file)
        };
        if runs { Verdict::Alive } else { Verdict::Dead }
    }

    /// How a foreign process judges: by the pid. A pid of another namespace
    /// means nobody here, or somebody else; nobody is the worse case.
    pub(super) fn foreign_says_alive(&self, config: &Config, file: File) -> bool {
        !Self::in_namespace(config, file.owner()) && self.pid_exists(file)
    }
}
