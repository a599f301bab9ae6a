//! Refusals that do not come from handlers, and the order of the checks.

use reqwest::Method;
use skep_api::Scope;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::harness::{Refused, Skep, refused};

#[tokio::test]
async fn below_api_the_key_comes_first() {
    let skep = Skep::start().await;
    for (method, path) in [
        (Method::GET, "/api/nothing"),
        (Method::GET, "/api"),
        (Method::GET, "/api/%ff"),
        (Method::PUT, "/api/swarm/boot"),
        (Method::GET, "/api/swarm/status?nonsense=1"),
        (Method::POST, "/api/swarm/boot"),
    ] {
        let response = skep.bare(method.clone(), path).send().await.unwrap();
        assert_eq!(refused(response).await.status, 401, "{method} {path}");
    }
}

#[tokio::test]
async fn a_wrong_method_is_refused_with_the_allowed_ones() {
    let skep = Skep::start().await;
    let (nothing, _) = skep.key(&[Scope::MetricsRead]).await;
    for (method, path, allow) in [
        (Method::PUT, "/api/swarm/boot", "POST"),
        (Method::POST, "/api/swarm/vm/abc", "GET"),
        (Method::PATCH, "/api/keys", "POST"),
        (Method::DELETE, "/api/health", "GET"),
        (Method::POST, "/api/openapi.json", "GET"),
    ] {
        let request = skep.bare(method.clone(), path);
        // A public route answers so without a key, the others for any key, whatever its scopes.
        let public = path == "/api/health" || path == "/api/openapi.json";
        let request = if public { request } else { request.bearer_auth(&nothing) };
        let response = request.send().await.unwrap();
        let allowed = response.headers()["allow"].to_str().unwrap().to_owned();
        assert!(allowed.contains(allow), "{method} {path}: {allowed}");
        let Refused { status, code, .. } = refused(response).await;
        assert_eq!((status, code.as_str()), (405, "method_not_allowed"), "{method} {path}");
    }
}

#[tokio::test]
async fn an_unknown_path_is_404_and_one_that_is_no_text_is_400() {
    let skep = Skep::start().await;
    for path in ["/nothing", "/api/nothing", "/api/keys/", "/api/swarm/vm"] {
        let Refused { status, code, .. } = refused(skep.get(path).await).await;
        assert_eq!((status, code.as_str()), (404, "unknown_route"), "{path}");
    }
    for path in ["/%ff", "/api/%c3%28", "/api/swarm/vm/%ff"] {
        let Refused { status, code, .. } = refused(skep.get(path).await).await;
        assert_eq!((status, code.as_str()), (400, "malformed_request"), "{path}");
    }
}

#[tokio::test]
async fn the_scope_comes_before_the_parameters_and_these_before_the_resource() {
    let skep = Skep::start().await;
    let (reader, _) = skep.key(&[Scope::SwarmRead]).await;
    let boot = skep.bare(Method::POST, "/api/swarm/boot?x=1").bearer_auth(&reader);
    let Refused { status, code, message } = refused(boot.body("{").send().await.unwrap()).await;
    assert_eq!((status, code.as_str()), (403, "scope_missing"));
    assert!(message.contains("swarm:write"), "{message}");
    for (path, body) in [
        ("/api/swarm/vm/abc/exec", r#"{"commnad": "id"}"#),
        ("/api/swarm/vm/abc/exec?vm=1", r#"{"command": "id"}"#),
        ("/api/swarm/boot", r#"{"count": 0}"#),
        ("/api/exec", r#"{"command": "id", "vm": "abc", "timeout": 0}"#),
    ] {
        assert_eq!(refused(skep.post(path, body).await).await.status, 400, "{path}");
    }
    // The resource: no VM has such a name, and this server has none at all.
    for path in ["/api/swarm/vm/a_b", "/api/swarm/vm/1099511627776", "/api/swarm/vm/-1"] {
        let Refused { status, code, .. } = refused(skep.get(path).await).await;
        assert_eq!((status, code.as_str()), (404, "unknown_vm"), "{path}");
    }
    let Refused { status, code, message } = refused(skep.get("/api/swarm/vm/4242").await).await;
    assert_eq!((status, code.as_str()), (503, "swarm_unavailable"));
    assert!(message.contains("these tests have none"), "{message}");
}

#[tokio::test]
async fn a_body_must_be_json_within_the_size_limit() {
    let skep = Skep::start().await;
    let boot = || skep.request(Method::POST, "/api/swarm/boot");
    for (kind, status) in [
        (Some("text/plain"), 415),
        (Some("application/x-www-form-urlencoded"), 415),
        (None, 415),
        (Some("application/json; charset=utf-8"), 503),
        (Some("APPLICATION/JSON"), 503),
        (Some("application/vnd.skep+json"), 503),
    ] {
        let request = match kind {
            Some(kind) => boot().header("content-type", kind),
            None => boot(),
        };
        let Refused { status: found, .. } = refused(request.body("{}").send().await.unwrap()).await;
        assert_eq!(found, status, "{kind:?}");
    }
    for body in ["{", "[]", "null", "\u{feff}{}", "{} x"] {
        let Refused { status, code, .. } = refused(skep.post("/api/swarm/boot", body).await).await;
        assert_eq!((status, code.as_str()), (400, "malformed_body"), "{body}");
    }
}

/// Sends bytes and reads the answer up to the end of the connection.
async fn raw(skep: &Skep, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(skep.address).await.unwrap();
    // The server may answer and close before it has read everything.
    let _ = stream.write_all(request).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn what_is_no_http_is_refused_in_the_same_shape() {
    let skep = Skep::start().await;
    for request in [
        &b"GET /api/\xff HTTP/1.1\r\nhost: x\r\n\r\n"[..],
        b"nonsense\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
    ] {
        let answer = raw(&skep, request).await;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{answer:?}"));
        assert!(head.starts_with("HTTP/1.1 400 Bad Request"), "{head}");
        for header in ["skep-error: malformed_request", "skep-version: 1", "x-request-id: "] {
            assert!(head.contains(header), "{header} in {head}");
        }
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!(body["error"], "Bad Request");
        assert_eq!(body.as_object().unwrap().len(), 2);
    }
}

#[tokio::test]
async fn a_request_keeps_its_id_or_is_given_one() {
    let skep = Skep::start().await;
    for (given, kept) in [("deploy-7", true), ("a b", false), ("é", false)] {
        let request = skep.bare(Method::GET, "/api/health").header("x-request-id", given.as_bytes());
        let response = request.send().await.unwrap();
        let id = response.headers()["x-request-id"].to_str().unwrap();
        assert_eq!(id == given, kept, "{id}");
        assert_eq!(response.headers()["skep-version"], "1");
    }
}
