//! The whole table: every cell of file state, kernel lock, pid state, boot,
//! start tick, namespace, host and version.

use super::*;

const FILES: [FileFact; 7] = [
    FileFact::Record { usable_pid: true },
    FileFact::Record { usable_pid: false },
    FileFact::Newer { usable_pid: true },
    FileFact::Newer { usable_pid: false },
    FileFact::Damaged { young: true },
    FileFact::Damaged { young: false },
    FileFact::NoPermission,
];
const LOCKS: [KernelLock; 3] = [KernelLock::Taken, KernelLock::Free, KernelLock::NotOffered];
const COMPARED: [Compared; 4] = [
    Compared::Same,
    Compared::Other,
    Compared::NotTold,
    Compared::NotKnown,
];

fn processes() -> Vec<ProcessFact> {
    let mut all = vec![
        ProcessFact::NoSuchProcess,
        ProcessFact::Zombie,
        ProcessFact::Hidden,
    ];
    for start in COMPARED {
        for born_after in [false, true] {
            all.push(ProcessFact::Runs { start, born_after });
        }
    }
    all
}

fn every_cell() -> Vec<Facts> {
    let mut all = Vec::new();
    for file in FILES {
        for kernel_lock in LOCKS {
            for host in COMPARED {
                for boot in COMPARED {
                    for namespace in COMPARED {
                        for process in processes() {
                            all.push(Facts {
                                file,
                                kernel_lock,
                                host,
                                boot,
                                namespace,
                                process,
                            });
                        }
                    }
                }
            }
        }
    }
    all
}

/// Says in another way what may be concluded: from the facts that are present
/// as a set of statements, not as an order of questions.
fn oracle(facts: &Facts) -> Verdict {
    let Facts {
        file,
        kernel_lock,
        host,
        boot,
        namespace,
        process,
    } = *facts;
    let record = matches!(file, FileFact::Record { .. });
    let newer = matches!(file, FileFact::Newer { .. });
    let usable = matches!(
        file,
        FileFact::Record { usable_pid: true } | FileFact::Newer { usable_pid: true }
    );
    let locked = kernel_lock == KernelLock::Taken;
    let pid_meaningful = namespace == Compared::Same || namespace == Compared::NotTold;
    let far = host == Compared::Other && (boot != Compared::Same || namespace != Compared::Same);
    let rebooted = boot == Compared::Other && !far;
    let near = usable && !locked && !far && !rebooted && pid_meaningful;
    let runs = matches!(process, ProcessFact::Runs { .. });
    let rules: [(bool, Verdict); 18] = [
        (locked, Verdict::Alive(Alive::KernelLock)),
        (
            !locked && file == FileFact::NoPermission,
            Verdict::Unknown(Why::NoPermission),
        ),
        (
            !locked && file == FileFact::Damaged { young: true },
            Verdict::Unknown(Why::Young),
        ),
        (
            !locked && file == FileFact::Damaged { young: false },
            Verdict::Dead(Dead::Damaged),
        ),
        (
            !locked && record && !usable,
            Verdict::Dead(Dead::PidUnusable),
        ),
        (
            !locked && newer && !usable,
            Verdict::Unknown(Why::NewerVersion),
        ),
        (!locked && usable && far, Verdict::Unknown(Why::OtherHost)),
        (
            !locked && usable && rebooted,
            Verdict::Dead(Dead::OtherBoot),
        ),
        (
            !locked && usable && !far && !rebooted && namespace == Compared::Other,
            Verdict::Unknown(Why::OtherNamespace),
        ),
        (
            !locked && usable && !far && !rebooted && namespace == Compared::NotKnown,
            Verdict::Unknown(Why::ProcUnreadable),
        ),
        (
            near && process == ProcessFact::NoSuchProcess,
            Verdict::Dead(Dead::NoSuchProcess),
        ),
        (
            near && process == ProcessFact::Zombie,
            Verdict::Dead(Dead::Zombie),
        ),
        (
            near && process == ProcessFact::Hidden,
            Verdict::Unknown(Why::ProcUnreadable),
        ),
        (near && newer && runs, Verdict::Unknown(Why::NewerVersion)),
        (
            near && record
                && matches!(
                    process,
                    ProcessFact::Runs {
                        start: Compared::Same,
                        ..
                    }
                ),
            Verdict::Alive(Alive::SameStart),
        ),
        (
            near && record
                && matches!(
                    process,
                    ProcessFact::Runs {
                        start: Compared::Other,
                        ..
                    }
                ),
            Verdict::Dead(Dead::OtherStart),
        ),
        (
            near && record
                && matches!(
                    process,
                    ProcessFact::Runs {
                        start: Compared::NotTold | Compared::NotKnown,
                        born_after: true
                    }
                ),
            Verdict::Dead(Dead::BornAfter),
        ),
        (
            near && record
                && matches!(
                    process,
                    ProcessFact::Runs {
                        start: Compared::NotTold | Compared::NotKnown,
                        born_after: false
                    }
                ),
            Verdict::Alive(Alive::PidExists),
        ),
    ];
    let mut said = rules.iter().filter(|(holds, _)| *holds);
    let (_, verdict) = said
        .next()
        .unwrap_or_else(|| panic!("no rule for {facts:?}"));
    assert!(said.next().is_none(), "two rules for {facts:?}");
    *verdict
}

#[test]
fn every_cell_of_the_table_is_as_the_contract_says() {
    let cells = every_cell();
    assert_eq!(cells.len(), 7 * 3 * 4 * 4 * 4 * 11);
    for facts in cells {
        assert_eq!(verdict(&facts), oracle(&facts), "{facts:?}");
    }
}

#[test]
fn a_taken_kernel_lock_is_never_dead_and_an_unseen_process_never_either() {
    for facts in every_cell() {
        let dead = matches!(verdict(&facts), Verdict::Dead(_));
        if facts.kernel_lock == KernelLock::Taken {
            assert!(!dead, "{facts:?}");
        }
        let hidden = facts.process == ProcessFact::Hidden;
        if hidden && facts.boot != Compared::Other && facts.file == FILES[0] {
            assert!(!dead, "{facts:?}");
        }
        if facts.file == FILES[0] && facts.namespace == Compared::Other && dead {
            assert_eq!(facts.boot, Compared::Other, "{facts:?}");
        }
    }
}

#[test]
fn the_rows_that_people_ask_about() {
    use Compared::{NotTold, Other, Same};
    let runs = |start, born_after| ProcessFact::Runs { start, born_after };
    let ours = Facts {
        file: FileFact::Record { usable_pid: true },
        kernel_lock: KernelLock::Free,
        host: Same,
        boot: Same,
        namespace: Same,
        process: runs(Same, false),
    };
    let foreign = Facts {
        host: NotTold,
        boot: NotTold,
        namespace: NotTold,
        process: runs(NotTold, false),
        ..ours
    };
    let rows = [
        ("ours, alive", ours, Verdict::Alive(Alive::SameStart)),
        (
            "ours, renamed machine",
            Facts {
                host: Other,
                ..ours
            },
            Verdict::Alive(Alive::SameStart),
        ),
        (
            "ours, after a reboot",
            Facts {
                boot: Other,
                ..ours
            },
            Verdict::Dead(Dead::OtherBoot),
        ),
        (
            "ours, other machine",
            Facts {
                host: Other,
                boot: Other,
                ..ours
            },
            Verdict::Unknown(Why::OtherHost),
        ),
        (
            "ours, other container, killed",
            Facts {
                namespace: Other,
                process: ProcessFact::NoSuchProcess,
                ..ours
            },
            Verdict::Unknown(Why::OtherNamespace),
        ),
        ("foreign, alive", foreign, Verdict::Alive(Alive::PidExists)),
        (
            "foreign, pid reused",
            Facts {
                process: runs(NotTold, true),
                ..foreign
            },
            Verdict::Dead(Dead::BornAfter),
        ),
        (
            "foreign, not ours to look at",
            Facts {
                process: ProcessFact::Hidden,
                ..foreign
            },
            Verdict::Unknown(Why::ProcUnreadable),
        ),
    ];
    for (label, facts, expected) in rows {
        assert_eq!(verdict(&facts), expected, "{label}");
    }
}
