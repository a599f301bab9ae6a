//! Routes that need no VMs, and the stop of the server.

use std::time::Duration;

use skep_api::{
    ErrorCode,
    health::{CheckHealth, HealthStatus},
};
use skep_client::{Client, Error};

use crate::harness::{Skep, eventually};

#[tokio::test]
async fn health_says_what_is_missing() {
    let skep = Skep::start().await;
    let public = Client::new(&format!("http://{}", skep.address), None).unwrap();
    let ask = async || {
        let mut found = None;
        // It is refused where a write takes longer than two seconds.
        eventually("the health", async || {
            let last = public.run(&CheckHealth {}).await;
            let is_refused =
                matches!(last, Err(Error::Refused { code: Some(ErrorCode::StoreUnavailable), .. }));
            found = Some(last);
            !is_refused
        })
        .await;
        found.unwrap().unwrap().value
    };
    let health = ask().await;
    assert_eq!((health.status, health.checks.store.as_str()), (HealthStatus::Degraded, "ok"));
    assert!(health.checks.engine.contains("skep doctor"), "{}", health.checks.engine);
    assert!(!health.checks.engine.contains("these tests"), "the reason is not for everybody");
    let later = ask().await;
    assert!(later.uptime > health.uptime);
}

#[tokio::test]
async fn a_server_without_a_swarm_has_an_empty_one() {
    let skep = Skep::start().await;
    let swarm = skep.client(&skep.admin).swarm().await.unwrap().value;
    assert_eq!((swarm.count, swarm.vms.len(), swarm.engine), (0, 0, None));
}

#[tokio::test]
async fn a_server_that_is_told_to_stop_stops() {
    let mut skep = Skep::start().await;
    // An idle open connection must not delay the stop.
    skep.client(&skep.admin).swarm().await.unwrap();
    skep.stop();
    let serving = skep.serving.take().unwrap();
    // Less than the 30 s that the server gives to requests under way.
    tokio::time::timeout(Duration::from_secs(25), serving).await.unwrap().unwrap().unwrap();
    // Another test's server may have the port by now, but only the stopped one knows its key.
    assert!(skep.client(&skep.admin).swarm().await.is_err(), "the server still answers");
}
