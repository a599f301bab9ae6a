//! Restarts of the server.

use serde_json::json;
use skep_harness::wait_until;

use crate::fixture::{Fixture, exchange};

pub(crate) fn a_restart_brings_another_server_to_the_same_vms() {
    let fixture = Fixture::new();
    let keeper = fixture.keeper_with(&json!({"a": 1, "next": {"a": 2, "next": {"exit": 7}}}));
    let vm = keeper.launch_committed();
    let nobodys = keeper.launch("base");
    let before = keeper.server_pid();
    // The fake server ends at SIGTERM, sometimes before it passes the answer on.
    if let Some(answer) = keeper.try_request(&json!({"restart": {}})) {
        assert_eq!(answer, json!({}));
    }
    // Either server answers until only one is left.
    wait_until("the new server", || {
        keeper
            .try_request(&json!({"whoami": {}}))
            .is_some_and(|server| server["alone"] == true && server["pid"] != before)
    });
    assert_eq!(keeper.whoami()["settings"]["a"], 2);
    keeper.assert_adopted(&vm);
    assert_eq!(keeper.list(), std::slice::from_ref(&vm.id), "{} was nobody's", nobodys.id);
    keeper.stop();
}

pub(crate) fn restarts_at_once_share_their_outcome() {
    let fixture = Fixture::new();
    // It is killed some seconds after the restart and answers until then.
    let keeper = fixture.keeper_with(&json!({"patient": true, "next": {"a": 2}}));
    let before = keeper.server_pid();
    // A request that the new server accepted would begin another restart.
    let mut connections = [(); 3].map(|()| keeper.accepted_connection());
    let answers: Vec<_> = std::thread::scope(|scope| {
        let restarts = connections
            .each_mut()
            .map(|connection| scope.spawn(move || exchange(connection, &json!({"restart": {}}))));
        restarts.into_iter().map(|restart| restart.join().unwrap()).collect()
    });
    assert_eq!(answers, vec![Some(json!({})); 3]);
    wait_until("the new server", || {
        keeper
            .try_request(&json!({"whoami": {}}))
            .is_some_and(|server| server["alone"] == true && server["pid"] != before)
    });
    assert_eq!(keeper.whoami()["settings"], json!({"a": 2}), "there was more than one restart");
    keeper.stop();

    let fixture = Fixture::new();
    let keeper = fixture.keeper_with(&json!({"next": {"unable": "the certificate is none"}}));
    let refusals: Vec<_> = std::thread::scope(|scope| {
        let restarts: Vec<_> =
            (0..3).map(|_| scope.spawn(|| keeper.request(&json!({"restart": {}})))).collect();
        restarts.into_iter().map(|restart| restart.join().unwrap()).collect()
    });
    assert_eq!(refusals, vec![json!({"refused": "restart_refused"}); 3]);
    keeper.stop();
}

pub(crate) fn a_failed_restart_changes_nothing() {
    for next in [
        json!({"no_restart": "`listen` changed"}),
        json!({"next": {"unable": "the certificate is none"}}),
        json!({"next": {"exit": 7}}),
    ] {
        let fixture = Fixture::new();
        let keeper = fixture.keeper_with(&next);
        let vm = keeper.launch("base");
        let before = keeper.server_pid();
        assert_eq!(keeper.request(&json!({"restart": {}}))["refused"], "restart_refused", "{next}");
        assert_eq!(keeper.server_pid(), before);
        // Even an uncommitted VM keeps running.
        assert_eq!(keeper.list(), std::slice::from_ref(&vm.id));
        keeper.stop();
    }
}
