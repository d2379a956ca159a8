//! A broker that serves as many clients as it may: what makes room works all the
//! same, and nobody is told that there is no broker.

use ade_tests::ade::{Ade, started};
use ade_tests::rpc::Rpc;
use ade_tests::wait::{PATIENCE, wait_until};

/// As many connections as a broker serves.
const CONNECTIONS: usize = 512;

/// Idle clients, and as many more that wait to hear that they are too many.
fn crowd(ade: &Ade, more: usize) -> Vec<Rpc> {
    let connect = || Rpc::connect_raw(&ade.socket());
    let mut crowd: Vec<Rpc> = (0..CONNECTIONS).map(|_| connect()).collect();
    // The broker has taken all of them once it refuses one.
    crowd.push(wait_until("one is too many", || {
        let mut last = connect();
        last.write(b"{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"method\":\"ade/ping\"}\n");
        let answer = last.line(PATIENCE)?;
        answer["error"].is_object().then_some(last)
    }));
    crowd.extend((0..more).map(|_| connect()));
    crowd
}

#[test]
fn a_broker_without_a_place_for_a_client_hands_over() {
    let (mut ade, rpc) = started("");
    drop(rpc);
    let crowd = crowd(&ade, 8);
    let before = ade.broker_pid();
    let begun = std::time::Instant::now();
    ade.replace();
    assert!(begun.elapsed().as_secs() < 15, "{:?}", begun.elapsed());
    assert_ne!(ade.broker_pid(), before);
    drop(crowd);
    ade.expect_code(0, &["status"]);
}

#[test]
fn nobody_hears_of_a_broker_that_is_full_that_there_is_none() {
    let (mut ade, rpc) = started("");
    drop(rpc);
    let crowd = crowd(&ade, 400);
    for _ in 0..20 {
        let (_, said) = ade.expect_code(1, &["status"]);
        assert!(said.contains("512 clients"), "{said}");
    }
    drop(crowd);
    ade.stop_broker();
}
