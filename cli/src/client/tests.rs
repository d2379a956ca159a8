use super::*;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::UnixListener;

/// Answers one connection: a line for each line that comes.
async fn broker(listener: UnixListener, answers: Vec<&'static str>) {
    let (stream, _) = listener.accept().await.expect("a client");
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    for answer in answers {
        let _ = lines.next_line().await.expect("a request");
        write
            .write_all(answer.as_bytes())
            .await
            .expect("an open connection");
    }
}

async fn against(answers: Vec<&'static str>) -> (tempfile::TempDir, Result<Client, ConnectError>) {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("s");
    let listener = UnixListener::bind(&socket).expect("a socket");
    tokio::spawn(broker(listener, answers));
    let client = Client::connect(&socket).await;
    (folder, client)
}

const HELLO: &str = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":2,"runtimeInfo":{"version":"9","buildHash":"0","defaultRole":"cto","projectRoot":"/","pid":7},"capabilities":[]}}
"#;

#[tokio::test]
async fn answers_are_taken_by_id_and_noise_is_skipped() {
    let answer = "not json\n{\"jsonrpc\":\"2.0\",\"id\":99,\"result\":1}\n{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"cards\":[]}}\n";
    let (_folder, client) = against(vec![HELLO, answer]).await;
    let mut client = client.expect("a connection");
    let list: ade_protocol::action::CardList = client
        .call("cards.list", &serde_json::json!({}), QUICK)
        .await
        .expect("a list");
    assert!(list.cards.is_empty());
}

#[tokio::test]
async fn events_before_the_answer_are_not_lost() {
    let answer = "{\"jsonrpc\":\"2.0\",\"method\":\"ade/event\",\"params\":{\"a\":1}}\n{\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{\"subscriptionId\":1,\"openCards\":[]}}\n{\"jsonrpc\":\"2.0\",\"method\":\"ade/event\",\"params\":{\"a\":2}}\n";
    let (_folder, client) = against(vec![HELLO, answer]).await;
    let client = client.expect("a connection");
    let mut events = client
        .subscribe(&SubscribeParams::default())
        .await
        .expect("events");
    for expected in ["{\"a\":1}", "{\"a\":2}"] {
        let Ok(Notification::Event(raw)) = events.next().await else {
            panic!("an event")
        };
        assert_eq!(raw.get(), expected);
    }
}

#[tokio::test]
async fn h10_both_versions_and_the_remedy_are_named() {
    let old = r#"{"jsonrpc":"2.0","id":1,"result":{"protocolVersion":1,"runtimeInfo":{"version":"0.0.9","buildHash":"0","defaultRole":"cto","projectRoot":"/","pid":7},"capabilities":[]}}
"#;
    let (_folder, client) = against(vec![old]).await;
    let error = CommandError::from(client.expect_err("another protocol"));
    assert_eq!(error.kind(), "version_mismatch");
    let text = error.to_string();
    assert!(
        text.contains("0.0.9") && text.contains(env!("CARGO_PKG_VERSION")),
        "{text}"
    );
    assert!(error.hints()[0].contains("ade serve --replace"));
}

#[tokio::test]
async fn a_broker_of_an_older_build_is_named_and_not_the_action() {
    let answer = r#"{"jsonrpc":"2.0","id":2,"error":{"code":-32601,"message":"there is no action \"cards.list\"","data":{"kind":"not_found","exitCode":2}}}
"#;
    let (_folder, client) = against(vec![HELLO, answer]).await;
    let mut client = client.expect("a connection");
    let error = client
        .call::<_, serde_json::Value>("cards.list", &serde_json::json!({}), QUICK)
        .await
        .expect_err("it does not know it");
    assert_eq!(error.kind(), "version_mismatch");
    let text = error.to_string();
    assert!(
        text.contains("pid 7") && text.contains("cards.list"),
        "{text}"
    );
    assert!(error.hints()[0].contains("ade serve --replace"));
}

#[tokio::test]
async fn nothing_there_is_told_apart_from_a_silent_broker() {
    let folder = tempfile::tempdir().expect("a folder");
    let none = Client::connect(&folder.path().join("none"))
        .await
        .expect_err("no socket");
    assert!(none.nobody_there());
    let leftover = folder.path().join("leftover");
    drop(UnixListener::bind(&leftover).expect("a socket"));
    let refused = Client::connect(&leftover)
        .await
        .expect_err("nobody listens");
    assert!(refused.nobody_there());
    assert_eq!(CommandError::from(refused).code(), exit::NO_BROKER);
}
