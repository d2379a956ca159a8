//! What of our environment a worker gets.
//!
//! A worker's environment is made from nothing: the names that the kind of
//! agent needs, and the mark. Everything else that the broker was started with,
//! tokens of other programs above all, ends here. Variables of ade's own are
//! never passed on, so that nothing below a worker takes itself for a part of
//! the broker.
//!
//! What this module does not do: read a secret's value for any other purpose
//! than to hand it on. No value is logged or put into an error text.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::path::Path;

use ade_protocol::boot::MARK_ENV;
use serde_json::Value;

/// Needed by any program.
const COMMON: &[&str] = &[
    "PATH",
    "HOME",
    "TMPDIR",
    "TEMP",
    "TMP",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "TERM",
    "COLORTERM",
    // Shells and git ask for the user, not for secrets.
    "USER",
    "LOGNAME",
    "SHELL",
    "TZ",
    // Behind a proxy nothing works without these.
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "all_proxy",
    "no_proxy",
    "NODE_EXTRA_CA_CERTS",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
];

/// Needed by Pi: its own variables and the keys of the model providers that it
/// knows.
const PI: &[&str] = &[
    "PI_CODING_AGENT_DIR",
    "PI_CODING_AGENT_SESSION_DIR",
    "PI_OFFLINE",
    "ANTHROPIC_API_KEY",
    "ANTHROPIC_AUTH_TOKEN",
    "ANTHROPIC_BASE_URL",
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "OPENAI_ORG_ID",
    "OPENAI_PROJECT_ID",
    "GOOGLE_API_KEY",
    "GEMINI_API_KEY",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "MISTRAL_API_KEY",
    "DEEPSEEK_API_KEY",
    "XAI_API_KEY",
    "GROQ_API_KEY",
    "TOGETHER_API_KEY",
    "OPENROUTER_API_KEY",
    "CEREBRAS_API_KEY",
    "PERPLEXITY_API_KEY",
    "COHERE_API_KEY",
    "MINIMAX_API_KEY",
    "MOONSHOT_API_KEY",
    "ZAI_API_KEY",
    "OLLAMA_API_KEY",
    "LM_STUDIO_API_KEY",
    "GITHUB_TOKEN",
    "GH_TOKEN",
];

/// Set for Pi: a worker looks for no new version and sends no telemetry.
const PI_FIXED: &[(&str, &str)] = &[
    ("PI_OFFLINE", "1"),
    ("PI_SKIP_VERSION_CHECK", "1"),
    ("PI_TELEMETRY", "0"),
];

/// A `models.json` is a few pages; more is a mistake and names nothing.
const MAX_MODELS_JSON: u64 = 4 * 1024 * 1024;

/// The environment of a worker: what `provider` may have of `inherited`, the
/// names of `extra` too, and the mark.
#[must_use]
pub fn worker_env(
    provider: &str,
    inherited: impl IntoIterator<Item = (OsString, OsString)>,
    extra: &BTreeSet<String>,
    mark: &str,
) -> BTreeMap<OsString, OsString> {
    let (own, fixed): (&[&str], &[(&str, &str)]) = match provider {
        "pi" => (PI, PI_FIXED),
        _ => (&[], &[]),
    };
    let allowed = |name: &OsStr| {
        let Some(name) = name.to_str() else {
            return false;
        };
        !is_ours(name) && (COMMON.contains(&name) || own.contains(&name) || extra.contains(name))
    };
    let mut env: BTreeMap<OsString, OsString> = inherited
        .into_iter()
        .filter(|(name, _)| allowed(name))
        .collect();
    env.extend(
        fixed
            .iter()
            .map(|(name, value)| (OsString::from(name), OsString::from(value))),
    );
    env.insert(MARK_ENV.into(), mark.into());
    env
}

/// Whether a variable is one of ade's own, however it is spelled.
fn is_ours(name: &str) -> bool {
    name.get(..4)
        .is_some_and(|start| start.eq_ignore_ascii_case("ADE_"))
}

/// The variables that Pi's `models.json` in `agent_dir` asks for: `$NAME` and
/// `${NAME}` anywhere in an `apiKey` or in `headers`. A file that cannot be
/// read names none; Pi itself will say what is wrong with it.
#[must_use]
pub fn models_json_names(agent_dir: &Path) -> BTreeSet<String> {
    let path = agent_dir.join("models.json");
    let mut names = BTreeSet::new();
    let fits = std::fs::metadata(&path)
        .is_ok_and(|found| found.is_file() && found.len() <= MAX_MODELS_JSON);
    if fits
        && let Ok(text) = std::fs::read_to_string(&path)
        && let Ok(value) = serde_json::from_str::<Value>(&text)
    {
        collect(&value, false, &mut names);
    }
    names.retain(|name| !is_ours(name));
    names
}

fn collect(value: &Value, wanted: bool, names: &mut BTreeSet<String>) {
    match value {
        Value::String(text) if wanted => references(text, names),
        Value::Array(items) => items.iter().for_each(|item| collect(item, wanted, names)),
        Value::Object(fields) => {
            for (key, inner) in fields {
                collect(inner, wanted || key == "apiKey" || key == "headers", names);
            }
        }
        _ => {}
    }
}

/// `$NAME` and `${NAME}`; `$$` and `$!` stand for themselves.
fn references(text: &str, names: &mut BTreeSet<String>) {
    let is_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let mut rest = text;
    while let Some((_, after)) = rest.split_once('$') {
        rest = match after.chars().next() {
            Some('$' | '!') => &after[1..],
            _ => after,
        };
        if rest.len() != after.len() {
            continue;
        }
        let braced = after.strip_prefix('{');
        let start = braced.unwrap_or(after);
        let end = start.find(|letter| !is_name(letter)).unwrap_or(start.len());
        let name = &start[..end];
        let closed = braced.is_none() || start[end..].starts_with('}');
        if closed && name.starts_with(|letter: char| letter.is_ascii_alphabetic() || letter == '_')
        {
            names.insert(name.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(provider: &str, inherited: &[&str], extra: &[&str]) -> Vec<String> {
        let inherited = inherited.iter().map(|name| (name.into(), "canary".into()));
        let extra = extra.iter().map(ToString::to_string).collect();
        worker_env(provider, inherited, &extra, "mark")
            .into_iter()
            .map(|(name, value)| format!("{}={}", name.display(), value.display()))
            .collect()
    }

    #[test]
    fn l01_a_worker_gets_what_it_needs_and_no_secret_of_others() {
        let secrets = [
            "BROKER_TOKEN",
            "OTHER_PROVIDER_KEY",
            "AWS_SECRET_ACCESS_KEY",
            "NPM_TOKEN",
            "SSH_AUTH_SOCK",
            "LD_PRELOAD",
            "NODE_OPTIONS",
            "PATH_TOKEN",
            "path",
            "ADE_HOME",
            "ADE_RPC_SOCKET_PATH",
            "ADE_WORKER_MARK",
            "ade_default_role",
            "Ade_Token",
        ];
        let none: [&str; 0] = [];
        assert_eq!(env("scripted", &secrets, &none), ["ADE_WORKER_MARK=mark"]);
        let pi_alone = [
            "ADE_WORKER_MARK=mark",
            "PI_OFFLINE=1",
            "PI_SKIP_VERSION_CHECK=1",
            "PI_TELEMETRY=0",
        ];
        assert_eq!(env("pi", &secrets, &none), pi_alone);
        // Nobody can ask for one of ours by name.
        assert_eq!(
            env("pi", &secrets, &["ADE_HOME", "ade_default_role"]),
            pi_alone
        );

        let keys = ["PATH", "HOME", "ANTHROPIC_API_KEY", "MY_KEY"];
        assert_eq!(
            env("scripted", &keys, &none),
            ["ADE_WORKER_MARK=mark", "HOME=canary", "PATH=canary"]
        );
        let pi = env("pi", &keys, &["MY_KEY"]);
        for name in keys {
            assert!(pi.contains(&format!("{name}=canary")), "{name}: {pi:?}");
        }
    }

    #[test]
    fn names_that_are_not_text_are_left_out() {
        use std::os::unix::ffi::OsStringExt;
        let inherited = [(
            OsString::from_vec(vec![0xff, 0xfe]),
            OsString::from("canary"),
        )];
        assert_eq!(worker_env("pi", inherited, &BTreeSet::new(), "m").len(), 4);
    }

    #[test]
    fn models_json_asks_for_names_in_keys_and_headers_only() {
        let folder = tempfile::TempDir::new().unwrap();
        let text = r#"{"providers": {
            "a": {"apiKey": "$ONE", "baseUrl": "http://$NOT_HERE", "name": "${NOR_HERE}"},
            "b": {"apiKey": "x${TWO}y$THREE-$$NO$!NO$9NO", "headers": {"X": "Bearer ${FOUR}", "Y": ["$FIVE"]}},
            "c": {"models": [{"headers": {"Z": "$SIX ${OPEN $ADE_HOME ${ade_x}"}}], "apiKey": "$"}
        }}"#;
        std::fs::write(folder.path().join("models.json"), text).unwrap();
        let names = models_json_names(folder.path());
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(names, ["FIVE", "FOUR", "ONE", "SIX", "THREE", "TWO"]);

        for bad in ["", "{", "[1,2", "\"$X\""] {
            std::fs::write(folder.path().join("models.json"), bad).unwrap();
            assert!(models_json_names(folder.path()).is_empty(), "{bad}");
        }
        assert!(models_json_names(Path::new("/nowhere")).is_empty());
    }
}
