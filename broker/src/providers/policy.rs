//! Pi's tool policy: what each permission mode grants, and what of it is fixed
//! when a worker starts. Pure.

use ade_protocol::action::PermissionMode;
use serde::{Deserialize, Serialize};

/// What is fixed when a worker starts. A worker that was started with another
/// one than its session wants is replaced before the next turn; two are never
/// told apart by anything but this.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LaunchSpec {
    /// What the agent may do.
    pub policy: ToolPolicy,
    /// How often that was changed: a worker remembers `allow_session` answers,
    /// and they do not outlive a change there and back.
    pub changes: u64,
    /// The provider's own configuration folder, where one is named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_dir: Option<String>,
}

/// What an agent may do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ToolPolicy {
    /// Tools that are offered at all.
    pub tools: Vec<String>,
    /// Those of them that need a card before each call.
    pub approval: Vec<String>,
    /// Whether the user's extensions are loaded.
    pub extensions: bool,
}

/// The policy of a permission mode.
#[must_use]
pub fn tool_policy(mode: PermissionMode) -> ToolPolicy {
    let (tools, approval, extensions): (&[&str], &[&str], bool) = match mode {
        PermissionMode::Plan => (&["read"], &[], false),
        PermissionMode::Edit => (&["read", "edit", "write"], &[], true),
        PermissionMode::FullAuto => (&["read", "bash", "edit", "write"], &[], true),
        PermissionMode::Default => (
            &["read", "bash", "edit", "write"],
            &["bash", "edit", "write"],
            false,
        ),
    };
    let owned = |names: &[&str]| names.iter().map(ToString::to_string).collect();
    ToolPolicy {
        tools: owned(tools),
        approval: owned(approval),
        extensions,
    }
}

/// Whether a mode does nothing without a card that the other one does not do
/// without one too.
#[must_use]
pub(crate) fn is_no_looser(mode: PermissionMode, than: PermissionMode) -> bool {
    let (this, other) = (tool_policy(mode), tool_policy(than));
    let free = |policy: &ToolPolicy, tool: &String| {
        policy.tools.contains(tool) && !policy.approval.contains(tool)
    };
    let tools_fit = (this.tools.iter())
        .filter(|tool| free(&this, tool))
        .all(|tool| free(&other, tool));
    tools_fit && (other.extensions || !this.extensions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_looser_by_what_it_does_without_a_card() {
        use PermissionMode::{Default, Edit, FullAuto, Plan};
        let all = [Plan, Default, Edit, FullAuto];
        // Of each: those that are no looser.
        let table: [(PermissionMode, &[PermissionMode]); 4] = [
            (Plan, &[Plan, Default]),
            (Default, &[Plan, Default]),
            (Edit, &[Plan, Default, Edit]),
            (FullAuto, &all),
        ];
        for (own, allowed) in table {
            for mode in all {
                let fits = allowed.contains(&mode);
                assert_eq!(is_no_looser(mode, own), fits, "{mode:?} of {own:?}");
            }
        }
    }

    #[test]
    fn a_mode_without_cards_has_no_shell_unless_it_says_everything() {
        use PermissionMode::{Default, Edit, FullAuto, Plan};
        let table = [
            (Plan, "read", "", false),
            (Edit, "read edit write", "", true),
            (FullAuto, "read bash edit write", "", true),
            (Default, "read bash edit write", "bash edit write", false),
        ];
        for (mode, tools, approval, extensions) in table {
            let policy = tool_policy(mode);
            assert_eq!(policy.tools.join(" "), tools, "{mode:?}");
            assert_eq!(policy.approval.join(" "), approval, "{mode:?}");
            assert_eq!(policy.extensions, extensions, "{mode:?}");
        }
    }
}
