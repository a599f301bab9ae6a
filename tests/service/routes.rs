//! Routes that need no VMs, and the stop of the server.

use std::time::Duration;

use skep_api::health::HealthStatus;
use skep_client::Client;

use crate::harness::Skep;

#[tokio::test]
async fn health_says_what_is_missing() {
    let skep = Skep::start().await;
    let public = Client::new(&format!("http://{}", skep.address), None).unwrap();
    let health = public.health().await.unwrap().value;
    assert_eq!((health.status, health.checks.store.as_str()), (HealthStatus::Degraded, "ok"));
    assert!(health.checks.engine.contains("skep doctor"), "{}", health.checks.engine);
    assert!(!health.checks.engine.contains("these tests"), "the reason is not for everybody");
    let later = public.health().await.unwrap().value;
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
    skep.client(&skep.admin).health().await.unwrap();
    skep.stop();
    let serving = skep.serving.take().unwrap();
    tokio::time::timeout(Duration::from_secs(10), serving).await.unwrap().unwrap().unwrap();
    assert!(tokio::net::TcpStream::connect(skep.address).await.is_err(), "nothing listens any more");
}
