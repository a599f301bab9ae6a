//! Checks that no server under test answered 500.

/// The lines of a server's log for answers with this status.
pub fn lines_of(log: &str, status: u16) -> Vec<&str> {
    let (text, json) = (format!(" status={status} "), format!("\"status\":{status},"));
    log.lines().filter(|line| line.contains(&text) || line.contains(&json)).collect()
}

/// Fails where a server answered 500.
pub fn assert_none_in(log: &str) {
    let faults = lines_of(log, 500);
    assert!(faults.is_empty(), "the server answered 500: {faults:#?}");
}
