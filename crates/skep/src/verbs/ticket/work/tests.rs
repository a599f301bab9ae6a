use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    work: Work,
}

#[test]
fn a_worker_asks_for_two_minutes_and_sends_a_heartbeat_after_each_40_seconds() {
    let Line { work } = Line::try_parse_from(["skep", "./agent"]).unwrap();
    let lease_ms = parse_milliseconds(&work.lease).unwrap();
    assert_eq!((lease_ms, lease_ms / HEARTBEATS_PER_LEASE), (120_000, 40_000));
}
