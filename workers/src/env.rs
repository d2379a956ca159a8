//! The environment of a host, on top of what the worker inherited. The broker
//! has cleared that to an allow list and put the mark into it; the mark is
//! passed on, the token never was in an environment.

use std::collections::BTreeMap;

use ade_protocol::boot::MARK_ENV;
use ade_protocol::frame::Init;

/// Names the worker whose host a process is, so that a host that was started by
/// somebody else does not run without a parent's death to follow.
pub(crate) const PARENT_ENV: &str = "ADE_HOST_PARENT";

/// The variables that a host gets in addition.
pub(crate) fn host_env(provider: &str, init: &Init) -> BTreeMap<String, String> {
    let mut env = init.env.clone();
    if provider == "pi" {
        for (name, value) in [
            ("PI_OFFLINE", "1"),
            ("PI_SKIP_VERSION_CHECK", "1"),
            ("PI_TELEMETRY", "0"),
        ] {
            env.insert(name.to_owned(), value.to_owned());
        }
        if let Some(dir) = &init.agent_dir {
            env.insert("PI_CODING_AGENT_DIR".to_owned(), dir.clone());
        }
    }
    // What finds strays must not be steered by what a session asks for.
    env.remove(MARK_ENV);
    env.insert(PARENT_ENV.to_owned(), std::process::id().to_string());
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pi_stays_offline_whatever_the_session_asks_for() {
        let mut init = Init {
            agent_dir: Some("/a".into()),
            ..Init::default()
        };
        init.env.insert("PI_OFFLINE".into(), "0".into());
        init.env.insert(MARK_ENV.into(), "forged".into());
        let env = host_env("pi", &init);
        assert_eq!(env["PI_OFFLINE"], "1");
        assert_eq!(env["PI_CODING_AGENT_DIR"], "/a");
        assert!(!env.contains_key(MARK_ENV));
        assert!(!host_env("scripted", &Init::default()).contains_key("PI_OFFLINE"));
    }
}
