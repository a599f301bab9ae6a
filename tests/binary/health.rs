//! Health, and the document of the API.

use reqwest::Method;

use crate::harness::{Skep, send};

#[tokio::test]
async fn health_needs_no_key_and_says_what_was_checked() {
    let skep = Skep::start().await;
    let answer = skep.health_answer(Method::GET).await;
    assert!(answer.headers.contains_key("x-request-id"));
    assert!(answer.headers.contains_key("skep-version"));
    let body = answer.ok(200);
    assert_eq!(body["checks"]["store"], "ok", "{body}");
    assert!(body["uptime"].as_f64().unwrap() >= 0.0);
    // Without root there is no swarm: that is degraded, and says why.
    let engine = body["checks"]["engine"].as_str().unwrap();
    assert_eq!(body["status"] == "ok", engine == "ok", "{body}");
}

#[tokio::test]
async fn the_document_describes_every_route_and_is_public() {
    let skep = Skep::start().await;
    let document = send(skep.bare(Method::GET, "/api/openapi.json")).await.ok(200);
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"), "{document}");
    for path in
        ["/api/health", "/api/keys", "/api/whoami", "/api/swarm/boot", "/api/swarm/status", "/api/exec"]
    {
        assert!(document["paths"][path].is_object(), "{path} is not described");
    }
}

#[tokio::test]
async fn a_request_id_of_the_caller_comes_back_and_a_bad_one_does_not() {
    let skep = Skep::start().await;
    let ask = async |id: &str| {
        let answer = send(skep.bare(Method::GET, "/api/health").header("x-request-id", id)).await;
        answer.headers["x-request-id"].to_str().unwrap().to_owned()
    };
    assert_eq!(ask("agent-7.try_2").await, "agent-7.try_2");
    assert_ne!(ask("not an id").await, "not an id");
}
