//! Agents that write too much.

use ade_tests::ade::Ade;
use ade_tests::rpc::{text_of, types_of};
use ade_tests::turns::{GONE, ended};
use serde_json::json;

/// Resident memory of a process and the most it ever had, in KiB.
fn peak_kib(pid: i32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the broker");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let figure = line.expect("VmHWM").trim().trim_end_matches(" kB");
    figure.parse().expect("a number")
}

/// Says that it is ready, and from the first message on writes one line that
/// never ends, at full speed.
const ENDLESS: &str = r#"
ready='"protocolVersion":2,"provider":"scripted","version":"1","capabilities":{}'
while read -r line; do
  id=$(printf %s "$line" | sed 's/.*"requestId":"\([^"]*\)".*/\1/')
  case $line in
    *'"type":"init"'*)
      printf '{"protocolVersion":2,"type":"ready","ready":{%s}}\n' "$ready"
      printf '{"protocolVersion":2,"type":"response","requestId":"%s","ok":true,"result":{%s}}\n' "$id" "$ready" ;;
    *'"type":"send"'*) tr '\0' x < /dev/zero ;;
  esac
done
"#;

#[test]
fn d04_a_line_without_an_end_fails_its_worker_and_nobody_else() {
    let mut flooded = Ade::new().with_config(&format!(
        "[providers.scripted]\nhost = \"/bin/sh\"\nargs = [\"-c\", '''{ENDLESS}''']\n"
    ));
    flooded.serve();
    let mut rpc = flooded.rpc();
    let lane = flooded.lane("a");
    let chat = flooded.chat(&mut rpc, "scripted", &lane, json!({}));
    let events = flooded.turn(&chat, "go");
    assert_eq!(ended(&events), "failed");
    let error = events
        .iter()
        .find(|e| e["event"]["type"] == "error")
        .expect("an error");
    let message = error["event"]["message"].as_str().expect("a message");
    assert!(message.contains("16 MiB"), "{message}");
    assert_eq!(text_of(&events), "", "{:?}", types_of(&events));
    let peak = peak_kib(flooded.broker_pid());
    assert!(peak < 128 * 1024, "the broker had {peak} KiB");
    flooded.rpc().call("chat.stop", json!({"sessionId": chat}));
    let host: Vec<String> = flooded
        .describe()
        .into_iter()
        .filter(|line| line.contains("/dev/zero"))
        .collect();
    assert_eq!(host, Vec::<String>::new());
    flooded.stop_broker();
    flooded.wait_empty(GONE);
}
