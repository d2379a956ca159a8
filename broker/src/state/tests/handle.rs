//! The handle, which does things in order on a thread of its own.

use super::*;

#[tokio::test]
async fn the_handle_does_things_in_order_and_survives_a_panic() {
    let folder = TempDir::new().unwrap();
    let handle = StateHandle::start(open(&folder));
    handle
        .run(|state| state.insert_session(&session("s")))
        .await
        .unwrap();
    for turn in 0..100 {
        let message = queued("s", &format!("t{turn}"));
        handle
            .run(move |state| state.enqueue(&message))
            .await
            .unwrap();
    }
    let panicked: Result<(), _> = handle.run(|_| panic!("on purpose")).await;
    assert!(matches!(panicked, Err(StateError::Closed)));
    let queue = handle.run(|state| state.queue(&"s".into())).await.unwrap();
    assert_eq!(queue.len(), 100);
    assert!(
        queue
            .windows(2)
            .all(|pair| pair[0].turn_id.as_str().len() <= pair[1].turn_id.as_str().len())
    );
}

#[tokio::test]
async fn a_job_is_done_although_its_asker_is_gone() {
    let folder = TempDir::new().unwrap();
    let handle = StateHandle::start(open(&folder));
    {
        let asked = handle.run(|state| state.insert_session(&session("s")));
        tokio::pin!(asked);
        let waker = std::task::Waker::noop();
        let _ = asked
            .as_mut()
            .poll(&mut std::task::Context::from_waker(waker));
    }
    assert_eq!(handle.run(State::sessions).await.unwrap().len(), 1);
}
