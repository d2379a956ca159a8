//! The database's own thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};

use super::{State, StateError};

/// Changes that wait for the database. When it is full, whoever wants to add
/// one waits.
const QUEUE: usize = 256;
/// Idle for so long, the thread flushes.
const IDLE_FLUSH: Duration = Duration::from_millis(200);
/// Never idle, it flushes after so long.
const BUSY_FLUSH: Duration = Duration::from_secs(1);

/// The last flush and the end of the database may take so long.
const CLOSE_BOUND: Duration = Duration::from_secs(5);

type Change = Box<dyn FnOnce(&mut State) + Send>;

enum Job {
    Do(Change),
    /// Ends the thread; told when the database is closed.
    Close(oneshot::Sender<()>),
}

/// Hands work to the thread that owns the database. Cheap to clone; the thread
/// ends, after a last flush, when it is told to ([`StateHandle::close`]) or the last
/// handle is gone.
#[derive(Clone, Debug)]
pub struct StateHandle {
    jobs: mpsc::Sender<Job>,
}

impl StateHandle {
    /// Starts the thread.
    ///
    /// # Panics
    /// When the system cannot start a thread.
    #[must_use]
    pub fn start(state: State) -> Self {
        let (jobs, queue) = mpsc::channel(QUEUE);
        std::thread::Builder::new()
            .name("state".into())
            .spawn(move || work(state, queue))
            .expect("a process that cannot start one more thread cannot be a broker");
        Self { jobs }
    }

    /// Runs `job` on the database, after everything that was handed in before.
    /// When the caller goes away meanwhile, the job is done nevertheless.
    ///
    /// # Errors
    /// What `job` returns; [`StateError::Closed`] when it panicked or the
    /// thread is gone.
    pub async fn run<T: Send + 'static>(
        &self,
        job: impl FnOnce(&State) -> Result<T, StateError> + Send + 'static,
    ) -> Result<T, StateError> {
        self.change(|state| job(state)).await
    }

    /// Puts the database back, see [`State::put_back`].
    ///
    /// # Errors
    /// As there.
    pub async fn put_back(&self, path: PathBuf) -> Result<(), StateError> {
        self.change(move |state| state.put_back(&path)).await
    }

    async fn change<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut State) -> Result<T, StateError> + Send + 'static,
    ) -> Result<T, StateError> {
        let (reply, answer) = oneshot::channel();
        let job: Change = Box::new(move |state| {
            // Whoever asked may be gone.
            let _ = reply.send(job(state));
        });
        let sent = self.jobs.send(Job::Do(job)).await;
        sent.map_err(|_| StateError::Closed)?;
        answer.await.map_err(|_| StateError::Closed)?
    }

    /// Closes the database after everything that was handed in before; what comes
    /// later finds it closed. A process that ends without this may end in the middle
    /// of it, and leave a log that holds nothing any more.
    pub async fn close(&self) {
        let (told, closed) = oneshot::channel();
        let close = async {
            // Without a thread it is closed.
            if self.jobs.send(Job::Close(told)).await.is_ok() {
                let _ = closed.await;
            }
        };
        if tokio::time::timeout(CLOSE_BOUND, close).await.is_err() {
            tracing::warn!("the database was not closed in {CLOSE_BOUND:?}");
        }
    }
}

enum Next {
    Do(Change),
    Flush,
    /// Who is told that it is closed.
    End(Option<oneshot::Sender<()>>),
}

impl From<Option<Job>> for Next {
    /// `None`: the last handle is gone.
    fn from(job: Option<Job>) -> Self {
        match job {
            Some(Job::Do(change)) => Self::Do(change),
            Some(Job::Close(told)) => Self::End(Some(told)),
            None => Self::End(None),
        }
    }
}

fn work(mut state: State, mut queue: mpsc::Receiver<Job>) {
    // The queue wakes by a waker; a runtime of one thread turns it into a wait
    // with a deadline.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build();
    let Ok(runtime) = runtime else { return };
    let mut dirty_since: Option<Instant> = None;
    loop {
        let next = match dirty_since {
            Some(since) if since.elapsed() >= BUSY_FLUSH => Next::Flush,
            Some(_) => runtime.block_on(async {
                match tokio::time::timeout(IDLE_FLUSH, queue.recv()).await {
                    Ok(job) => job.into(),
                    Err(_) => Next::Flush,
                }
            }),
            None => queue.blocking_recv().into(),
        };
        match next {
            Next::Do(job) => {
                let before = state.conn.total_changes();
                // A panic is the asker's; the transaction was taken back.
                let _ = catch_unwind(AssertUnwindSafe(|| job(&mut state)));
                if state.conn.total_changes() != before {
                    dirty_since.get_or_insert_with(Instant::now);
                }
            }
            Next::Flush => {
                flush(&state);
                dirty_since = None;
            }
            Next::End(told) => {
                flush(&state);
                drop(state);
                if let Some(told) = told {
                    // Whoever closed it may be gone.
                    let _ = told.send(());
                }
                return;
            }
        }
    }
}

fn flush(state: &State) {
    if let Err(error) = state.flush() {
        tracing::warn!(%error, "the database was not flushed");
    }
}
