//! A model server for tests: OpenAI chat completions with SSE, on loopback only.
//!
//! It is a real HTTP server in a process of its own, so that a real agent talks to it through its
//! own network code. What it answers is chosen by the model id (see [`script::answer`]) and by directives
//! in the last user message: `TOOL:bash:{"command":"ls"}` makes it call that tool; several are
//! called one after another, or all at once when the message also holds the word `PARALLEL`.
//!
//! Invariants: it prints one line, `listening <port>`, when it is ready; it ends when its stdin is
//! closed, so it never outlives the test that started it; an answer depends only on the request
//! (and, for `fake-flaky`, on whether the same text was asked before).
//!
//! It does not check keys, count tokens or speak any other protocol of model providers.

use std::collections::{HashSet, VecDeque};
use std::convert::Infallible;
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use futures_util::stream;
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;

mod script;

use script::{Answer, Step, answer, last_user};

/// Requests kept for `GET /requests`; the oldest goes first.
const KEPT_REQUESTS: usize = 1_000;
/// Largest request body. Contexts with images are a few MiB.
const BODY_LIMIT: usize = 64 * 1024 * 1024;

#[tokio::main]
async fn main() -> io::Result<()> {
    let options = Options::from_args(std::env::args().skip(1))?;
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    let listener = listener.tap_io(|stream| {
        // Without it the kernel joins the small fragments of an answer into bursts of 40 ms.
        let _ = stream.set_nodelay(true);
    });
    let app = axum::Router::new()
        .route("/v1/chat/completions", post(chat))
        .route("/v1/models", get(models))
        .route("/requests", get(requests))
        .layer(DefaultBodyLimit::max(BODY_LIMIT))
        .with_state(Arc::new(Server::new(&options)?));
    writeln!(io::stdout(), "listening {port}")?;
    tokio::select! {
        served = async { axum::serve(listener, app).await } => served,
        () = stdin_closed() => Ok(()),
    }
}

/// Returns when stdin is at its end, whatever was written to it before.
async fn stdin_closed() {
    let mut stdin = tokio::io::stdin();
    let mut sink = [0_u8; 256];
    while matches!(stdin.read(&mut sink).await, Ok(n) if n > 0) {}
}

struct Options {
    drip: Duration,
    log: Option<PathBuf>,
}

impl Options {
    fn from_args(mut args: impl Iterator<Item = String>) -> io::Result<Self> {
        let mut options = Self {
            drip: Duration::from_millis(100),
            log: None,
        };
        while let Some(arg) = args.next() {
            let mut value = || {
                args.next()
                    .ok_or_else(|| usage(&format!("{arg} needs a value")))
            };
            match arg.as_str() {
                "--drip-ms" => {
                    let ms = value()?;
                    let ms = ms
                        .parse()
                        .map_err(|_| usage(&format!("--drip-ms {ms}: not a number")))?;
                    options.drip = Duration::from_millis(ms);
                }
                "--log" => options.log = Some(value()?.into()),
                _ => return Err(usage(&format!("unknown argument {arg}"))),
            }
        }
        Ok(options)
    }
}

fn usage(problem: &str) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("{problem}; usage: fake-model [--drip-ms N] [--log FILE]"),
    )
}

struct Server {
    started: Instant,
    drip: Duration,
    book: Mutex<Book>,
}

/// What the server remembers.
struct Book {
    /// At most [`KEPT_REQUESTS`].
    requests: VecDeque<Value>,
    count: u64,
    /// Texts that `fake-flaky` was asked, and refused once. As many as one test sends.
    flaky_texts: HashSet<String>,
    log: Option<std::fs::File>,
}

impl Server {
    fn new(options: &Options) -> io::Result<Self> {
        let log = match &options.log {
            Some(path) => Some(
                std::fs::OpenOptions::new()
                    .create(true)
                    .append(true)
                    .open(path)?,
            ),
            None => None,
        };
        let book = Book {
            requests: VecDeque::new(),
            count: 0,
            flaky_texts: HashSet::new(),
            log,
        };
        Ok(Self {
            started: Instant::now(),
            drip: options.drip,
            book: Mutex::new(book),
        })
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now_ms(&self) -> u128 {
        self.started.elapsed().as_millis()
    }

    /// Records a request as `open` and returns its number.
    fn open(&self, headers: &HeaderMap, body: &Value) -> u64 {
        let headers: serde_json::Map<String, Value> = headers
            .iter()
            .map(|(name, value)| {
                (
                    name.to_string(),
                    json!(String::from_utf8_lossy(value.as_bytes())),
                )
            })
            .collect();
        let at = self.now_ms();
        let mut book = self.book();
        book.count += 1;
        let n = book.count;
        let record =
            json!({"n": n, "atMs": at, "outcome": "open", "headers": headers, "body": body});
        book.write_log(&record);
        if book.requests.len() == KEPT_REQUESTS {
            book.requests.pop_front();
        }
        book.requests.push_back(record);
        n
    }

    /// Records how request `n` ended. The first outcome stays.
    fn close(&self, n: u64, outcome: &str) {
        let at = self.now_ms();
        let mut book = self.book();
        if let Some(record) = book.requests.iter_mut().find(|record| record["n"] == n)
            && record["outcome"] == "open"
        {
            record["outcome"] = json!(outcome);
            record["endMs"] = json!(at);
        }
        book.write_log(&json!({"n": n, "atMs": at, "outcome": outcome}));
    }
}

impl Book {
    fn write_log(&mut self, record: &Value) {
        if let Some(file) = &mut self.log {
            // The log is a help for a human; the tests read `/requests`.
            let _ = writeln!(file, "{record}");
        }
    }
}

/// Writes down that the client went away, unless the answer was finished before.
struct Watch {
    server: Arc<Server>,
    n: u64,
    finished: bool,
}

impl Watch {
    fn finish(&mut self, outcome: &str) {
        self.finished = true;
        self.server.close(self.n, outcome);
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.finished {
            self.server.close(self.n, "client closed");
        }
    }
}

async fn models() -> Json<Value> {
    let list: Vec<Value> = ["fake-text", "fake-think", "fake-echo"]
        .iter()
        .map(|id| json!({"id": id, "object": "model"}))
        .collect();
    Json(json!({"object": "list", "data": list}))
}

async fn requests(State(server): State<Arc<Server>>) -> Json<Value> {
    Json(Value::Array(
        server.book().requests.iter().cloned().collect(),
    ))
}

async fn chat(State(server): State<Arc<Server>>, headers: HeaderMap, body: Bytes) -> Response {
    let request: Value = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => {
            return problem(
                400,
                &format!("body is not JSON: {error}"),
                "invalid_request_error",
            );
        }
    };
    let n = server.open(&headers, &request);
    let mut watch = Watch {
        server: Arc::clone(&server),
        n,
        finished: false,
    };
    let flaky = request["model"] == "fake-flaky";
    let first_time = flaky && server.book().flaky_texts.insert(last_user(&request).1);
    match answer(&request, n, first_time, server.drip) {
        Answer::Problem {
            status,
            message,
            kind,
        } => {
            watch.finish(&format!("status {status}"));
            problem(status, &message, kind)
        }
        Answer::Never => {
            // Keeps the watch: it notes when the client gives up.
            let _watch = watch;
            std::future::pending::<Infallible>().await;
            StatusCode::NO_CONTENT.into_response()
        }
        Answer::Stream(steps) => play(steps, watch),
    }
}

fn problem(status: u16, message: &str, kind: &str) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let body = Json(json!({"error": {"message": message, "type": kind}}));
    if status == StatusCode::TOO_MANY_REQUESTS {
        return (status, [(header::RETRY_AFTER, "1")], body).into_response();
    }
    (status, body).into_response()
}

/// Streams the steps as server-sent events.
fn play(steps: Vec<Step>, watch: Watch) -> Response {
    let state = (steps.into_iter(), watch);
    let events = stream::unfold(state, |(mut steps, mut watch)| async move {
        loop {
            match steps.next() {
                None => {
                    watch.finish("finished");
                    return None;
                }
                Some(Step::Chunk(chunk)) => {
                    let event = Bytes::from(format!("data: {chunk}\n\n"));
                    return Some((Ok(event), (steps, watch)));
                }
                Some(Step::Pause(time)) => tokio::time::sleep(time).await,
                Some(Step::Hang) => std::future::pending().await,
                Some(Step::Cut) => {
                    watch.finish("cut");
                    // An error in the body makes the server drop the connection without its end.
                    return Some((
                        Err(io::Error::other("cut on purpose")),
                        (Vec::new().into_iter(), watch),
                    ));
                }
            }
        }
    });
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, Body::from_stream(events)).into_response()
}
