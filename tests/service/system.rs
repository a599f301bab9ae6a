//! `GET /api/system`, and samples of a server that runs no VMs.

use skep_api::{Scope, system::ReadSystem};

use crate::harness::{Skep, refused};

#[tokio::test]
async fn the_machine_is_described_to_the_operator() {
    let skep = Skep::start().await;
    let system = skep.client(&skep.admin).run(&ReadSystem {}).await.unwrap().value;
    assert_eq!(system.versions.skep, env!("CARGO_PKG_VERSION"));
    assert_eq!(system.versions.api, skep_server::API_VERSION);
    assert!(system.versions.kernel.starts_with("Linux "), "{}", system.versions.kernel);
    assert!(system.disk.free_bytes > 0 && system.disk.free_bytes <= system.disk.size_bytes, "{system:?}");
    assert!(system.memory.available_mb > 0 && system.memory.available_mb <= system.memory.total_mb);
    assert!(system.uptime >= 0.0 && system.swarm.is_none() && system.versions.engine.is_none());
    assert_eq!(system.swarm_unavailable.unwrap(), "this server runs no VMs: these tests have none");
}

#[tokio::test]
async fn others_than_the_operator_do_not_see_the_machine() {
    let skep = Skep::start().await;
    let (key, _) = skep.key(&[Scope::Admin, Scope::SwarmRead, Scope::MetricsRead]).await;
    let found =
        refused(skep.bare(reqwest::Method::GET, "/api/system").bearer_auth(key).send().await.unwrap()).await;
    assert_eq!((found.status, found.code.as_str()), (403, "scope_missing"));
}
