//! The fake model server speaks chat completions as the real agents expect them.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use ade_tests::fake_model::FakeModel;
use serde_json::{Value, json};

/// Sends a request and returns the open connection behind the head of the answer, with its status.
fn ask(server: &FakeModel, request: &Value) -> (u16, BufReader<TcpStream>) {
    let mut connection = BufReader::new(post(server, request));
    let mut status = String::new();
    connection.read_line(&mut status).unwrap();
    let status = status.split(' ').nth(1).unwrap().parse().unwrap();
    let mut line = String::new();
    while line != "\r\n" {
        line.clear();
        connection.read_line(&mut line).unwrap();
    }
    (status, connection)
}

fn post(server: &FakeModel, request: &Value) -> TcpStream {
    let mut stream = TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    stream
        .set_read_timeout(Some(Duration::from_secs(10)))
        .unwrap();
    let body = request.to_string();
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n";
    write!(
        stream,
        "{head}content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    stream
}

/// The `data:` lines of a whole answer.
fn chunks(connection: BufReader<TcpStream>) -> Vec<Value> {
    let lines = connection.lines().map(Result::unwrap);
    let data = lines.filter_map(|line| line.strip_prefix("data: ").map(str::to_owned));
    data.take_while(|line| line != "[DONE]")
        .map(|line| serde_json::from_str(&line).unwrap())
        .collect()
}

fn deltas(chunks: &[Value], field: &str) -> String {
    chunks
        .iter()
        .filter_map(|chunk| chunk["choices"][0]["delta"][field].as_str())
        .collect()
}

fn user(model: &str, text: &str) -> Value {
    json!({"model": model, "stream": true, "messages": [{"role": "user", "content": text}]})
}

#[track_caller]
fn wait_for_outcome(server: &FakeModel, outcome: &str) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while server
        .requests()
        .last()
        .is_none_or(|request| request["outcome"] != outcome)
    {
        assert!(
            Instant::now() < deadline,
            "no {outcome}: {:?}",
            server.requests()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn text_is_streamed_and_logged() {
    let server = FakeModel::start();
    let (status, connection) = ask(&server, &user("fake-text", "hello"));
    assert_eq!(status, 200);
    let chunks = chunks(connection);
    assert_eq!(deltas(&chunks, "content"), "Hello from the fake model.");
    assert_eq!(chunks.last().unwrap()["usage"]["total_tokens"], 110);
    let finish = &chunks[chunks.len() - 2]["choices"][0]["finish_reason"];
    assert_eq!(finish, "stop");
    let requests = server.requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0]["body"]["messages"][0]["content"], "hello");
    assert_eq!(requests[0]["outcome"], "finished");
}

#[test]
fn reasoning_comes_before_the_text() {
    let server = FakeModel::start();
    let chunks = chunks(ask(&server, &user("fake-think", "hello")).1);
    assert_eq!(deltas(&chunks, "reasoning_content"), "Let me think.");
    assert_eq!(deltas(&chunks, "content"), "Hello from the fake model.");
}

#[test]
fn a_directive_becomes_a_tool_call_in_pieces() {
    let server = FakeModel::start();
    let mut request = user("fake-text", r#"TOOL:bash:{"command":"echo é"}"#);
    request["tools"] = json!([{"type": "function", "function": {"name": "bash"}}]);
    let chunks = chunks(ask(&server, &request).1);
    let pieces = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"][0]["function"]);
    let arguments: String = pieces
        .filter_map(|function| function["arguments"].as_str())
        .collect();
    assert_eq!(arguments, r#"{"command":"echo é"}"#);
    assert_eq!(
        chunks[chunks.len() - 2]["choices"][0]["finish_reason"],
        "tool_calls"
    );
}

#[test]
fn refusals_have_their_status() {
    let server = FakeModel::start();
    for (model, expected) in [
        ("fake-401", 401),
        ("fake-429", 429),
        ("fake-500", 500),
        ("fake-flaky", 503),
    ] {
        let (status, mut connection) = ask(&server, &user(model, "hello"));
        assert_eq!(status, expected, "{model}");
        let mut body = String::new();
        connection.read_to_string(&mut body).unwrap();
        let body: Value = serde_json::from_str(&body).unwrap();
        assert!(body["error"]["message"].is_string(), "{body}");
    }
    assert_eq!(ask(&server, &user("fake-flaky", "hello")).0, 200);
}

#[test]
fn a_wedge_answers_nothing_and_notices_when_the_client_leaves() {
    let server = FakeModel::start();
    let stream = post(&server, &user("fake-wedge", "hello"));
    wait_for_outcome(&server, "open");
    stream
        .set_read_timeout(Some(Duration::from_millis(100)))
        .unwrap();
    let nothing = (&stream).read(&mut [0]).unwrap_err();
    assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock);
    drop(stream);
    wait_for_outcome(&server, "client closed");
}

#[test]
fn a_wedge_in_the_middle_begins_and_stays_open() {
    let server = FakeModel::start();
    let (status, connection) = ask(&server, &user("fake-wedge-mid", "hello"));
    assert_eq!(status, 200);
    let half = connection
        .lines()
        .map(Result::unwrap)
        .find(|line| line.contains("half"));
    assert!(half.is_some());
    wait_for_outcome(&server, "client closed");
}

#[test]
fn a_cut_answer_ends_without_its_end() {
    let server = FakeModel::start();
    let (_, mut connection) = ask(&server, &user("fake-cut", "hello"));
    let mut answer = Vec::new();
    // Either a reset or an end in the middle of the chunked body, whichever the kernel reports.
    let _ = connection.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.contains("partial text"), "{answer}");
    assert!(
        !answer.contains("[DONE]") && !answer.ends_with("0\r\n\r\n"),
        "{answer}"
    );
    wait_for_outcome(&server, "cut");
}

#[test]
fn the_server_ends_with_its_stdin() {
    let exe = env!("CARGO_BIN_EXE_fake-model");
    let mut child = std::process::Command::new(exe)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
}
