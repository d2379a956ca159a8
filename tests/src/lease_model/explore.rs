//! The search, and what it reports.

use super::judge::Verdict;
use super::state::{File, Key, Pc, State};
use super::{Config, foreign, ours};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fmt::{self, Write as _};
use std::hash::{BuildHasherDefault, Hasher};
use std::time::{Duration, Instant};

/// What can be wrong with a state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Hazard {
    /// Two of ours hold.
    OursOurs,
    /// Two of ours hold, and the first look of one at its own lease ends that.
    OursOursSeen,
    /// One of ours and a foreign one hold; ours would see that by looking.
    OursForeignSeen,
    /// One of ours and a foreign one hold; our record is in its place.
    OursForeignUnseen,
    /// Two foreign ones hold.
    ForeignForeign,
    /// At rest, a record of a process of ours that lives and holds nothing
    /// blocks until that process ends.
    GhostOfOurs,
    /// At rest, a record of a foreign process that lives and holds nothing
    /// blocks until that process ends.
    GhostOfForeign,
    /// At rest, a foreign record blocks whose pid was given away.
    ReusedPid,
    /// At rest, a record of another pid namespace blocks whose lock is gone.
    OtherNamespace,
    /// At rest, a dead lease can't be taken for no reason above.
    Untakable,
    /// The fresh contender left something behind.
    Litter,
    /// Nobody can move, and not everybody is done.
    Stuck,
}

/// What an exploration has found.
#[derive(Clone, Debug)]
pub struct Report {
    /// What was explored.
    pub config: Config,
    /// Different states, our own processes taken as alike.
    pub states: usize,
    /// Transitions.
    pub transitions: u64,
    /// States in which everything had come to rest, and a fresh contender came.
    pub rests: u64,
    /// How often each thing went wrong.
    pub hazards: BTreeMap<Hazard, u64>,
    /// Transitions left out because a process had left two side names already.
    pub overflows: u64,
    /// Whether all states were seen; else the limit was reached.
    pub complete: bool,
    /// How long it took.
    pub took: Duration,
}

impl Report {
    /// How often this went wrong.
    #[must_use]
    pub fn count(&self, hazard: Hazard) -> u64 {
        self.hazards.get(&hazard).copied().unwrap_or(0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Config {
            ours,
            foreign,
            rounds,
            ..
        } = self.config;
        write!(
            f,
            "{ours} ours + {foreign} foreign × {rounds}, {}: {} states, {} transitions, {} rests, {:.1} s",
            self.config.kind(),
            self.states,
            self.transitions,
            self.rests,
            self.took.as_secs_f64()
        )?;
        if !self.complete {
            f.write_str(", NOT COMPLETE")?;
        }
        if self.overflows > 0 {
            write!(f, ", {} overflows", self.overflows)?;
        }
        for (hazard, count) in &self.hazards {
            write!(f, "\n    {hazard:?}: {count}")?;
        }
        Ok(())
    }
}

impl Config {
    fn kind(&self) -> String {
        let mut kind = String::from(if self.exchange { "exchange" } else { "rename" });
        for (set, word) in [
            (self.wait, " wait"),
            (self.watch, " watch"),
            (self.namespace, " namespace"),
            (self.stopped, " stopped"),
        ] {
            if set {
                kind.push_str(word);
            }
        }
        if self.without != super::Without::Nothing {
            let _ = write!(kind, " without {:?}", self.without);
        }
        kind
    }
}

/// Keys are well spread after one multiplication each; they are our own, so
/// nobody can choose them badly.
#[derive(Default)]
struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0 ^ (self.0 >> 32)
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, _: usize) {}
}

type Spread = BuildHasherDefault<Mix>;

thread_local! {
    static OVERFLOWS: Cell<u64> = const { Cell::new(0) };
}

/// A transition had to be left out.
pub(super) fn overflow() {
    OVERFLOWS.set(OVERFLOWS.get() + 1);
}

/// Visits every state that can be reached, up to `limit` of them.
#[must_use]
pub fn explore(config: &Config, limit: usize) -> Report {
    assert!(config.all() <= 4 && (1..=2).contains(&config.rounds));
    assert!(!config.wait || config.foreign == 0);
    let started = Instant::now();
    OVERFLOWS.set(0);
    let mut report = Report {
        config: *config,
        states: 0,
        transitions: 0,
        rests: 0,
        hazards: BTreeMap::new(),
        overflows: 0,
        complete: true,
        took: Duration::ZERO,
    };
    let first = State::first(config);
    let mut seen: HashSet<Key, Spread> = HashSet::default();
    seen.insert(first.key(config));
    let mut queue = VecDeque::from([first]);
    let mut next = Vec::new();
    while let Some(state) = queue.pop_front() {
        next.clear();
        let moves = successors(config, &state, &mut next);
        inspect(config, &state, moves, &mut |hazard| {
            *report.hazards.entry(hazard).or_default() += 1;
        });
        report.rests += u64::from(at_rest(config, &state));
        report.transitions += next.len() as u64;
        for state in &next {
            let state = state.canonical(config);
            if seen.len() < limit {
                if seen.insert(state.key(config)) {
                    queue.push_back(state);
                }
            } else if report.complete {
                report.complete = false;
            }
        }
    }
    report.states = seen.len();
    report.overflows = OVERFLOWS.get();
    report.took = started.elapsed();
    report
}

/// All that can happen next; how many of these, and of those left out, are not
/// crashes.
fn successors(config: &Config, state: &State, next: &mut Vec<State>) -> usize {
    let left_out = OVERFLOWS.get();
    for who in 0..config.all() {
        if who < config.ours {
            ours::steps_of(config, state, who, next);
        } else {
            foreign::steps_of(config, state, who, next);
        }
    }
    let left_out = usize::try_from(OVERFLOWS.get() - left_out).unwrap_or(usize::MAX);
    let moves = next.len() + left_out;
    for who in 0..config.all() {
        let proc = &state.procs[who];
        match proc.pc {
            Pc::Idle => {}
            Pc::Dead => {
                if !proc.inc {
                    come_back(state, who, next);
                }
            }
            _ if state.crashes == 0 => {}
            _ => {
                let mut crashed = *state;
                crashed.crashes -= 1;
                crashed.procs[who] = super::state::Proc {
                    pc: Pc::Dead,
                    inc: proc.inc,
                    same_pid: proc.same_pid,
                    left: proc.left,
                    ..Default::default()
                };
                next.push(crashed);
            }
        }
    }
    moves
}

/// Once, under a fresh pid or under the old one.
fn come_back(state: &State, who: usize, next: &mut Vec<State>) {
    for same_pid in [false, true] {
        let mut back = *state;
        let proc = &mut back.procs[who];
        proc.pc = Pc::Idle;
        proc.inc = true;
        proc.same_pid = same_pid;
        next.push(back);
    }
}

fn at_rest(config: &Config, state: &State) -> bool {
    let mut procs = state.procs[..config.all()].iter();
    procs.all(|proc| matches!(proc.pc, Pc::Idle | Pc::Dead))
}

/// Everything that is wrong here.
fn inspect(config: &Config, state: &State, moves: usize, found: &mut dyn FnMut(Hazard)) {
    if let Some(hazard) = double_hold(config, state) {
        found(hazard);
    }
    if at_rest(config, state) {
        if let Some(hazard) = contend(config, state) {
            found(hazard);
        }
    } else if moves == 0 {
        found(Hazard::Stuck);
    }
}

fn double_hold(config: &Config, state: &State) -> Option<Hazard> {
    let holds = |who: &usize| matches!(state.procs[*who].pc, Pc::Held | Pc::FHeld);
    let (mut ours, mut foreign) = (0, 0);
    let mut first = 0;
    for who in (0..config.all()).filter(holds) {
        if who < config.ours {
            ours += 1;
            first = who;
        } else {
            foreign += 1;
        }
    }
    let in_place = |who: usize| state.path.token() == File::of(who, &state.procs[who]);
    match (ours, foreign) {
        (2.., _) => {
            let placed = (0..config.ours).filter(holds).filter(|who| in_place(*who));
            Some(if placed.count() + 1 >= ours {
                Hazard::OursOursSeen
            } else {
                Hazard::OursOurs
            })
        }
        (1, 1..) if in_place(first) => Some(Hazard::OursForeignUnseen),
        (1, 1..) => Some(Hazard::OursForeignSeen),
        (0, 2..) => Some(Hazard::ForeignForeign),
        _ => None,
    }
}

/// Runs a fresh process of ours through an acquire and a release.
fn contend(config: &Config, state: &State) -> Option<Hazard> {
    let who = config.all();
    // It gives up where others would wait.
    let config = &Config {
        wait: false,
        watch: false,
        ..*config
    };
    let mut state = *state;
    state.procs[who].left = 1;
    let (mut next, mut held) = (Vec::new(), false);
    loop {
        next.clear();
        ours::steps_of(config, &state, who, &mut next);
        let Some(first) = next.first() else {
            return Some(Hazard::Stuck);
        };
        state = *first;
        match state.procs[who].pc {
            Pc::Held => held = true,
            Pc::Idle => break,
            _ => {}
        }
    }
    if !held {
        return Some(blocker(config, &state, who));
    }
    let files = state.sides.iter().flatten();
    let left = files.chain(std::iter::once(&state.path));
    let litter = left
        .filter(|file| file.is_some())
        .any(|file| state.judge(config, who, *file) == Verdict::Dead);
    litter.then_some(Hazard::Litter)
}

/// Why it did not get the lease.
fn blocker(config: &Config, state: &State, judge: usize) -> Hazard {
    let claims = (0..2 * config.all()).map(|index| state.side(index));
    let claims = claims.filter(|file| file.is_some() && !file.is_release());
    let blocks = |file: &File| {
        matches!(
            state.judge(config, judge, *file),
            Verdict::Alive | Verdict::Unknown
        )
    };
    let path = std::iter::once(state.path).filter(|file| file.is_some());
    let Some(file) = path.chain(claims).find(blocks) else {
        return Hazard::Untakable;
    };
    let foreign = file.owner() >= config.ours;
    match () {
        () if state.judge(config, judge, file) == Verdict::Unknown => Hazard::OtherNamespace,
        () if foreign && state.writer_runs(file) => Hazard::GhostOfForeign,
        () if foreign => Hazard::ReusedPid,
        () if state.writer_runs(file) => Hazard::GhostOfOurs,
        () => Hazard::Untakable,
    }
}

/// A shortest way to the first state with this hazard, one line a step.
#[must_use]
pub fn way_to(config: &Config, hazard: Hazard) -> Option<String> {
    let first = State::first(config);
    let mut from: HashMap<Key, Option<State>, Spread> = HashMap::default();
    from.insert(first.key(config), None);
    let mut queue = VecDeque::from([first]);
    let mut next = Vec::new();
    while let Some(state) = queue.pop_front() {
        next.clear();
        let moves = successors(config, &state, &mut next);
        let mut here = false;
        inspect(config, &state, moves, &mut |found| here |= found == hazard);
        if here {
            return Some(told(config, &from, state));
        }
        for after in &next {
            from.entry(after.key(config)).or_insert_with(|| {
                queue.push_back(*after);
                Some(state)
            });
        }
    }
    None
}

fn told(config: &Config, from: &HashMap<Key, Option<State>, Spread>, last: State) -> String {
    let mut way = vec![last];
    while let Some(Some(before)) = from.get(&way[way.len() - 1].key(config)) {
        way.push(*before);
    }
    way.reverse();
    let mut text = String::new();
    for pair in way.windows(2) {
        let (before, after) = (&pair[0], &pair[1]);
        for who in 0..config.all() {
            let (was, is) = (&before.procs[who], &after.procs[who]);
            if was.pc != is.pc || was.mask != is.mask {
                let whose = if who < config.ours { "ours" } else { "foreign" };
                let _ = write!(text, "{whose} {who}: {:?} -> {:?}  ", was.pc, is.pc);
            }
        }
        let _ = write!(text, "| path {}", name(after.path));
        for (maker, sides) in after.sides.iter().enumerate() {
            for side in sides.iter().filter(|side| side.is_some()) {
                let kind = if side.is_release() {
                    "release"
                } else {
                    "claim"
                };
                let _ = write!(text, ", {kind} of {maker}: {}", name(*side));
            }
        }
        text.push('\n');
    }
    text
}

fn name(file: File) -> String {
    if file.is_none() {
        return "-".to_owned();
    }
    let lock = if file.locked() { "+lock" } else { "" };
    let life = if file.inc() { "'" } else { "" };
    format!("{}{life}{lock}", file.owner())
}
