//! Processor and memory use of workers with everything below them, for
//! `ade ps`. Figures for people: nothing is decided by them, and never
//! identity.

use std::collections::HashMap;

use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};

/// What one tree of processes uses.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Percent of one core since the processes started.
    pub cpu_percent: f32,
    /// Resident bytes, summed. Shared pages count once for each process.
    pub memory_bytes: u64,
}

/// Use of the trees below these pids, by pid. Blocking; a millisecond for a
/// few hundred processes.
#[must_use]
pub fn of_trees(roots: &[i32]) -> HashMap<i32, Usage> {
    if roots.is_empty() {
        return HashMap::new();
    }
    let Ok(mut system) = System::new() else {
        return HashMap::new();
    };
    system.refresh_processes_specifics(
        ProcessesToUpdate::All,
        true,
        ProcessRefreshKind::nothing()
            .with_cpu()
            .with_memory()
            .without_tasks(),
    );
    let mut usage: HashMap<i32, Usage> = HashMap::new();
    for process in system.processes().values() {
        let Some(root) = root_of(&system, process.pid(), roots) else {
            continue;
        };
        let used = usage.entry(root).or_default();
        used.memory_bytes += process.memory();
        // Milliseconds of processor time over seconds of life, in percent.
        let life = process.run_time().max(1) as f32;
        used.cpu_percent += process.accumulated_cpu_time() as f32 / 10.0 / life;
    }
    usage
}

fn root_of(system: &System, pid: Pid, roots: &[i32]) -> Option<i32> {
    // Trees of agents are shallow; the bound only guards against a table that
    // changed while it was read.
    const DEEPEST: usize = 64;
    let mut current = pid;
    for _ in 0..DEEPEST {
        let number = i32::try_from(current.as_u32()).ok()?;
        if roots.contains(&number) {
            return Some(number);
        }
        current = system.process(current)?.parent()?;
    }
    None
}
