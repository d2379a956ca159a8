//! Agents' hosts that are shell scripts, for what no well-behaved host does.

use std::path::Path;

/// What every script begins with: the words of a host, as functions.
const WORDS: &str = r#"
field() { printf '%s' "$2" | sed "s/.*\"$1\":\"\([^\"]*\)\".*/\1/"; }
frame() { printf '{"protocolVersion":2,"type":%s}\n' "$1"; }
ready() { frame "\"ready\",\"ready\":{\"protocolVersion\":2,\"provider\":\"x\",\"version\":\"1\",\"capabilities\":{$1}}"; }
text() { frame "\"sdk_event\",\"turnId\":\"$id\",\"event\":{\"type\":\"text\",\"messageId\":\"m\",\"text\":\"$1\"}"; }
card() { frame "\"ui_request\",\"requestId\":\"$1\",\"turnId\":\"$id\",\"payload\":{\"origin\":\"tool\",\"kind\":\"text\",\"message\":\"?\"}"; }
cancel() { frame "\"ui_cancel\",\"requestId\":\"$1\""; }
fine() { frame "\"response\",\"requestId\":\"$1\",\"ok\":true"; }
done_as() { frame "\"response\",\"requestId\":\"$id\",\"ok\":true,\"result\":{\"status\":\"$1\"}"; }
hear() { read -r line || exit 0; heard=$(field requestId "$line"); kind=$(field type "$line"); }
start() { hear; ready "$1"; }
message() { hear; id=$heard; }
"#;

/// The configuration that makes a script the host of the scripted provider. Its
/// words: `start CAPABILITIES`, `message` (sets `id`), `hear` (sets `line`,
/// `heard` and `kind`), `text`, `card`, `cancel`, `fine`, `done_as`.
///
/// # Panics
/// When the script cannot be written.
#[must_use]
pub fn shell(folder: &Path, script: &str) -> String {
    let host = folder.join("host.sh");
    std::fs::write(&host, format!("{WORDS}{script}\n")).expect("the host");
    let host = host.display().to_string();
    format!("[providers.scripted]\nhost = \"/bin/sh\"\nargs = [{host:?}]\n")
}

/// The same with a script whose first host in a lane is deaf to its input and to
/// SIGTERM, and leaves its pid in `first`. Every later one runs `next`, then answers
/// one message with `here`.
///
/// # Panics
/// When the script cannot be written.
#[must_use]
pub fn deaf_at_first(folder: &Path, next: &str) -> String {
    let script = format!(
        "if [ ! -e first ]; then
            trap '' TERM; echo $$ > first.new; mv first.new first
            while :; do sleep 0.05; done
        fi
        {next}
        start; message; text here; done_as completed; cat"
    );
    shell(folder, &script)
}
