//! The tree that the entries form, followed with a few bytes for each.

use super::{DuplicateId, Fork, Leaf, OpenCall};
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Entries that are followed; about 100 bytes each. Later ones are counted but
/// not compared.
const ENTRIES_MAX: usize = 400_000;

/// Findings of one kind that are told one by one.
pub(super) const TOLD_MAX: usize = 100;

/// Calls without a result that are remembered at once.
const CALLS_MAX: usize = 10_000;

const NONE: u32 = u32::MAX;

struct Node {
    line: u64,
    parent: u32,
    first_child: u32,
    content: u64,
}

#[derive(Default)]
pub(super) struct Tree {
    ids: HashMap<Box<str>, u32>,
    nodes: Vec<Node>,
    last: Option<u32>,
    forks: BTreeMap<u32, Vec<u32>>,
    calls: HashMap<String, (String, u64, u32)>,
    pub(super) duplicates: Vec<DuplicateId>,
    pub(super) repeated: u64,
    pub(super) orphans: u64,
    pub(super) not_followed: u64,
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

impl Tree {
    /// Takes an entry; `false` when it is the very line of before.
    pub(super) fn take(&mut self, line: u64, bytes: &[u8], entry: &super::line::Entry) -> bool {
        let Some(id) = entry.id.as_deref() else {
            return true;
        };
        let content = hash(bytes);
        if let Some(at) = self.ids.get(id).copied() {
            let node = &self.nodes[at as usize];
            if node.content == content {
                self.repeated += 1;
                return false;
            }
            let lines = (node.line, line);
            if self.duplicates.len() < TOLD_MAX {
                self.duplicates.push(DuplicateId {
                    id: id.to_owned(),
                    lines,
                });
            }
            self.last = Some(at);
            return true;
        }
        if self.nodes.len() == ENTRIES_MAX {
            self.not_followed += 1;
            return true;
        }
        let parent = match entry.parent.as_deref() {
            None => NONE,
            Some(parent) => self.ids.get(parent).copied().unwrap_or_else(|| {
                self.orphans += 1;
                NONE
            }),
        };
        let at = u32::try_from(self.nodes.len()).expect("fewer than ENTRIES_MAX");
        self.ids.insert(id.into(), at);
        self.nodes.push(Node {
            line,
            parent,
            first_child: NONE,
            content,
        });
        self.last = Some(at);
        self.join(parent, at);
        for (call, name) in &entry.calls {
            if self.calls.len() < CALLS_MAX {
                self.calls.insert(call.clone(), (name.clone(), line, at));
            }
        }
        if let Some(call) = &entry.result_of {
            self.calls.remove(call);
        }
        true
    }

    fn join(&mut self, parent: u32, child: u32) {
        let Some(node) = self.nodes.get_mut(parent as usize) else {
            return;
        };
        if node.first_child == NONE {
            node.first_child = child;
        } else if self.forks.len() < TOLD_MAX || self.forks.contains_key(&parent) {
            let children = self
                .forks
                .entry(parent)
                .or_insert_with(|| vec![node.first_child]);
            if children.len() < TOLD_MAX {
                children.push(child);
            }
        }
    }

    /// Which entries are on the branch of the last line.
    fn branch(&self) -> Vec<bool> {
        let mut on = vec![false; self.nodes.len()];
        let mut at = self.last.unwrap_or(NONE);
        while let Some(node) = self.nodes.get(at as usize) {
            if std::mem::replace(&mut on[at as usize], true) {
                break;
            }
            at = node.parent;
        }
        on
    }

    pub(super) fn finish(self) -> (Option<Leaf>, Vec<Fork>, Vec<OpenCall>) {
        let on_branch = self.branch();
        let mut names: HashMap<u32, &str> = HashMap::new();
        let wanted = |at: &u32| {
            self.last == Some(*at)
                || self
                    .forks
                    .iter()
                    .any(|(parent, children)| parent == at || children.contains(at))
        };
        for (id, at) in self.ids.iter().filter(|(_, at)| wanted(at)) {
            names.insert(*at, id);
        }
        let leaf = |at: u32| Leaf {
            id: names.get(&at).copied().unwrap_or_default().to_owned(),
            line: self.nodes[at as usize].line,
        };
        let forks = self
            .forks
            .iter()
            .map(|(parent, children)| Fork {
                parent: leaf(*parent),
                chosen: children
                    .iter()
                    .copied()
                    .find(|at| on_branch[*at as usize])
                    .map(leaf),
                children: children.iter().copied().map(leaf).collect(),
            })
            .collect();
        let mut open: Vec<OpenCall> = self
            .calls
            .iter()
            .filter(|(_, (_, _, at))| on_branch[*at as usize])
            .map(|(id, (name, line, _))| OpenCall {
                id: id.clone(),
                name: name.clone(),
                line: *line,
            })
            .collect();
        open.sort_by(|a, b| (a.line, &a.id).cmp(&(b.line, &b.id)));
        (self.last.map(leaf), forks, open)
    }
}
