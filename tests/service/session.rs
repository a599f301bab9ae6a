//! `/api/session`: a cookie stands for its key, and is accepted for same-origin requests only.

use jiff::{SignedDuration, Timestamp};
use reqwest::{Method, RequestBuilder, Response};
use serde_json::{Value, json};
use skep_accounts::SessionToken;
use skep_api::Scope;
use skep_server::TrustedProxies;
use skep_store::{NewSession, RevokeKey};

use crate::harness::{Options, Refused, Skep, refused};

/// A session of a key: `skep_session=...`.
async fn begin(skep: &Skep, key: &str) -> String {
    let response = skep.log_in(key).send().await.unwrap();
    assert_eq!(response.status(), 201);
    let cookie = response.headers()["set-cookie"].to_str().unwrap().to_owned();
    cookie.split(';').next().unwrap().to_owned()
}

fn with_cookie(skep: &Skep, cookie: &str, method: Method, path: &str) -> RequestBuilder {
    skep.bare(method, path).header("cookie", cookie)
}

/// A same-origin request as a browser sends it.
async fn ours(skep: &Skep, cookie: &str, method: Method, path: &str) -> Response {
    with_cookie(skep, cookie, method, path).header("sec-fetch-site", "same-origin").send().await.unwrap()
}

#[track_caller]
fn is(found: &Refused, status: u16, code: &str, message: &str) {
    assert_eq!((found.status, found.code.as_str(), found.message.as_str()), (status, code, message));
}

#[tokio::test]
async fn a_session_counts_as_its_key() {
    let skep = Skep::start().await;
    let (key, record) = skep.key(&[Scope::SwarmRead]).await;
    let response = skep.log_in(&key).send().await.unwrap();
    let header = response.headers()["set-cookie"].to_str().unwrap().to_owned();
    let mut parts = header.split("; ");
    let cookie = parts.next().unwrap();
    let attributes: Vec<&str> = parts.filter(|part| !part.starts_with("Max-Age=")).collect();
    assert_eq!(attributes, ["Path=/", "HttpOnly", "SameSite=Strict"], "{header}");
    let token = cookie.strip_prefix("skep_session=").unwrap();
    assert_eq!(token.len(), 64);
    let text = response.text().await.unwrap();
    assert!(!text.contains(token) && !text.contains(&key), "{text}");
    let begun: Value = serde_json::from_str(&text).unwrap();
    let end: Timestamp = begun["expires_at"].as_str().unwrap().parse().unwrap();
    let left = end.duration_since(Timestamp::now());
    assert!(left <= SignedDuration::from_hours(12) && left > SignedDuration::from_hours(11), "{left:?}");

    let origin = format!("http://{}", skep.address);
    for request in [
        with_cookie(&skep, cookie, Method::GET, "/api/whoami").header("sec-fetch-site", "same-origin"),
        with_cookie(&skep, cookie, Method::GET, "/api/whoami").header("origin", &origin),
        with_cookie(&skep, &format!("a=b; {cookie};c"), Method::GET, "/api/whoami").header("origin", &origin),
    ] {
        let me: Value = request.send().await.unwrap().json().await.unwrap();
        assert_eq!(me["key"]["id"], record.key.id.to_string(), "{me}");
    }
    assert_eq!(refused(ours(&skep, cookie, Method::GET, "/api/keys").await).await.code, "scope_missing");
    let shown: Value = ours(&skep, cookie, Method::GET, "/api/session").await.json().await.unwrap();
    assert_eq!(shown, begun);

    let ended = ours(&skep, cookie, Method::DELETE, "/api/session").await;
    assert!(ended.headers()["set-cookie"].to_str().unwrap().starts_with("skep_session=; Path=/; Max-Age=0"));
    assert_eq!(ended.json::<Value>().await.unwrap()["ended"], true);
    let found = refused(ours(&skep, cookie, Method::GET, "/api/whoami").await).await;
    is(&found, 401, "invalid_token", "Invalid token");
}

/// Origins that are similar to the server's, but not the same.
fn forged_origins(own: &str, port: u16) -> Vec<String> {
    vec![
        "null".to_owned(),
        String::new(),
        "http://evil.example".to_owned(),
        format!("http://evil.example:{port}"),
        "http://127.0.0.1".to_owned(),
        format!("http://127.0.0.1:{}", port ^ 1),
        format!("https://127.0.0.1:{port}"),
        format!("HTTP://127.0.0.1:{port}"),
        format!("http://localhost:{port}"),
        format!("http://127.1:{port}"),
        format!("http://[::ffff:127.0.0.1]:{port}"),
        format!("http://2130706433:{port}"),
        format!("{own}/"),
        format!("{own}."),
        format!("{own}.evil.example"),
        format!("{own}@evil.example"),
        format!("http://evil.example#{own}"),
        format!("http://user@127.0.0.1:{port}"),
        format!("//127.0.0.1:{port}"),
        format!("127.0.0.1:{port}"),
        format!("{own} http://evil.example"),
        format!("{own}, {own}"),
        "file://".to_owned(),
    ]
}

/// Requests that other sites can make a browser send.
#[tokio::test]
async fn a_cookie_counts_for_nothing_where_another_site_sent_it() {
    let skep = Skep::start().await;
    let cookie = begin(&skep, &skep.admin).await;
    let own = format!("http://{}", skep.address);
    let send = async |lines: &[(&str, &str)]| {
        let request = with_cookie(&skep, &cookie, Method::DELETE, "/api/session");
        let request = lines.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.send().await.unwrap()
    };
    for origin in &forged_origins(&own, skep.address.port()) {
        for lines in
            [&[("origin", origin.as_str())][..], &[("origin", origin), ("sec-fetch-site", "same-origin")]]
        {
            is(&refused(send(lines).await).await, 401, "missing_token", "Missing token");
        }
    }
    for lines in [
        &[][..],
        &[("referer", own.as_str())],
        &[("host", "evil.example"), ("origin", own.as_str())],
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site")],
        &[("sec-fetch-site", "none")],
        &[("sec-fetch-site", "Same-Origin")],
        &[("sec-fetch-site", "same-origin, same-origin")],
        &[("sec-fetch-site", "cross-site"), ("origin", own.as_str())],
        &[("origin", own.as_str()), ("origin", "http://evil.example")],
        &[("origin", own.as_str()), ("origin", own.as_str())],
        &[("sec-fetch-site", "same-origin"), ("sec-fetch-site", "same-origin")],
    ] {
        is(&refused(send(lines).await).await, 401, "missing_token", "Missing token");
    }
    // The control: the session is still valid.
    assert_eq!(send(&[("origin", &own)]).await.json::<Value>().await.unwrap()["ended"], true);
}

#[tokio::test]
async fn invalid_session_tokens_are_refused() {
    let skep = Skep::start().await;
    let cookie = begin(&skep, &skep.admin).await;
    let other = begin(&skep, &skep.admin).await;
    let planted = format!("skep_session={}", "0".repeat(64));
    for wrong in [
        format!("{cookie}; {cookie}"),
        format!("{cookie}; {other}"),
        format!("{planted}; {cookie}"),
        planted.clone(),
        "skep_session=".to_owned(),
        format!("{cookie}0"),
        cookie.to_uppercase().replace("SKEP_SESSION", "skep_session"),
        format!("skep_session={}", skep.admin),
        format!("skep_session=\"{}\"", &cookie[13..]),
    ] {
        let found = refused(ours(&skep, &wrong, Method::GET, "/api/whoami").await).await;
        is(&found, 401, "invalid_token", "Invalid token");
    }
    let two_headers = with_cookie(&skep, &planted, Method::GET, "/api/whoami").header("cookie", &cookie);
    let two_headers = two_headers.header("sec-fetch-site", "same-origin").send().await.unwrap();
    is(&refused(two_headers).await, 401, "invalid_token", "Invalid token");
    for other_name in
        [cookie.replace("skep_session", "Skep_Session"), cookie.replace("skep_", "__Host-skep_")]
    {
        let found = refused(ours(&skep, &other_name, Method::GET, "/api/whoami").await).await;
        is(&found, 401, "missing_token", "Missing token");
    }
    assert_eq!(ours(&skep, &cookie, Method::GET, "/api/whoami").await.status(), 200);
}

#[tokio::test]
async fn a_key_in_the_header_counts_before_the_cookie() {
    let skep = Skep::start().await;
    let cookie = begin(&skep, &skep.admin).await;
    let (key, record) = skep.key(&[]).await;
    let both = |authorization: String| {
        let request = with_cookie(&skep, &cookie, Method::GET, "/api/whoami");
        request.header("sec-fetch-site", "same-origin").header("authorization", authorization).send()
    };
    let me: Value = both(format!("Bearer {key}")).await.unwrap().json().await.unwrap();
    assert_eq!(me["key"]["id"], record.key.id.to_string());
    let wrong = refused(both(format!("Bearer sk-skep-prod-{}", "0".repeat(64))).await.unwrap()).await;
    is(&wrong, 401, "invalid_token", "Invalid token");
    is(&refused(both(String::new()).await.unwrap()).await, 401, "missing_token", "Missing token");
    let ended =
        with_cookie(&skep, &cookie, Method::DELETE, "/api/session").bearer_auth(&key).send().await.unwrap();
    assert_eq!(ended.json::<Value>().await.unwrap()["ended"], false, "that request had no session");
    assert_eq!(ours(&skep, &cookie, Method::GET, "/api/whoami").await.status(), 200);
}

#[tokio::test]
async fn a_session_ends_with_its_key_and_by_itself() {
    let skep = Skep::start().await;
    let (key, record) = skep.key(&[]).await;
    let cookie = begin(&skep, &key).await;
    assert_eq!(ours(&skep, &cookie, Method::GET, "/api/whoami").await.status(), 200);
    let (account, id) = (skep.account.id, record.key.id);
    skep.store.revoke_key(RevokeKey { account, id, at: Timestamp::now(), request_id: None }).await.unwrap();
    let found = refused(ours(&skep, &cookie, Method::GET, "/api/whoami").await).await;
    is(&found, 403, "token_expired", "Token expired");

    let soon = Timestamp::now() + SignedDuration::from_hours(1);
    let (brief, record) = skep.key_until(&[], Some(soon)).await;
    let begun = skep.log_in(&brief).send().await.unwrap();
    let seconds: i64 = {
        let cookie = begun.headers()["set-cookie"].to_str().unwrap();
        cookie.split("Max-Age=").nth(1).unwrap().split(';').next().unwrap().parse().unwrap()
    };
    assert!(seconds <= 3_600, "never past its key: {seconds}");
    let begun: Value = begun.json().await.unwrap();
    assert_eq!(begun["expires_at"], format!("{soon:.3}"));

    let now = Timestamp::now();
    let token = SessionToken::from_random([7; 32]);
    let past = NewSession { hash: token.hash(), key: record.key.id, at: now, expires_at: now };
    skep.store.create_session(past).await.unwrap();
    let cookie = format!("skep_session={}", token.expose());
    let found = refused(ours(&skep, &cookie, Method::GET, "/api/whoami").await).await;
    is(&found, 403, "token_expired", "Token expired");
}

/// An attacker cannot make a browser use a token that the attacker knows (session fixation).
#[tokio::test]
async fn a_token_is_never_of_the_callers_choosing() {
    let skep = Skep::start().await;
    let planted = format!("skep_session={}", "ab".repeat(32));
    let begun = skep.log_in(&skep.admin).header("cookie", &planted).send().await.unwrap();
    assert_eq!(begun.status(), 201);
    let cookie = begun.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    assert_ne!(cookie, planted);
    let found = refused(ours(&skep, &planted, Method::GET, "/api/whoami").await).await;
    is(&found, 401, "invalid_token", "Invalid token");
    assert_ne!(begin(&skep, &skep.admin).await, cookie, "each has a token of its own");
    // A session that could create another session would never expire.
    let found = refused(ours(&skep, &cookie, Method::POST, "/api/session").await).await;
    is(&found, 401, "missing_token", "Missing token");
}

#[tokio::test]
async fn under_tls_the_cookie_is_sent_encrypted_and_to_this_host_alone() {
    let proxies = TrustedProxies::new(vec!["127.0.0.0/8".parse().unwrap()]);
    let skep = Skep::start_with(Options { proxies, ..Options::default() }).await;
    let by_https =
        |request: RequestBuilder| request.header("x-forwarded-proto", "https").header("host", "skep.example");
    let login = skep.bare(Method::POST, "/api/session").bearer_auth(&skep.admin);
    let begun = by_https(login).send().await.unwrap();
    assert_eq!(begun.status(), 201);
    let header = begun.headers()["set-cookie"].to_str().unwrap().to_owned();
    let mut parts = header.split("; ");
    let cookie = parts.next().unwrap();
    // Browsers accept the prefix only with `Secure`, with this path and without a domain.
    assert!(cookie.starts_with("__Host-skep_session="), "{header}");
    let attributes: Vec<&str> = parts.filter(|part| !part.starts_with("Max-Age=")).collect();
    assert_eq!(attributes, ["Path=/", "HttpOnly", "SameSite=Strict", "Secure"], "{header}");

    let whoami = |cookie: &str| {
        with_cookie(&skep, cookie, Method::GET, "/api/whoami").header("origin", "https://skep.example")
    };
    assert_eq!(by_https(whoami(cookie)).send().await.unwrap().status(), 200);
    // A sibling domain can set a cookie without the prefix.
    let plain = cookie.strip_prefix("__Host-").unwrap();
    let found = refused(by_https(whoami(plain)).send().await.unwrap()).await;
    is(&found, 401, "missing_token", "Missing token");
    let found = refused(whoami(cookie).send().await.unwrap()).await;
    is(&found, 403, "https_required", "HTTPS required");
}

/// Over the loopback interface, a session of a host that other programs share would be theirs too.
#[tokio::test]
async fn a_session_is_created_only_at_the_host_of_its_key() {
    let skep = Skep::start().await;
    let (key, _) = skep.key(&[]).await;
    let port = skep.address.port();
    let create =
        |host: String| skep.bare(Method::POST, "/api/session").bearer_auth(&key).header("host", host).send();
    let own = skep.session_host(&key);
    for host in [
        format!("127.0.0.1:{port}"),
        format!("localhost:{port}"),
        format!("localhost.localdomain:{port}"),
        format!("skep.localhost:{port}"),
        skep.session_host(&skep.admin),
    ] {
        let answer = create(host.clone()).await.unwrap();
        assert!(!answer.headers().contains_key("set-cookie"), "{host}");
        let found = refused(answer).await;
        assert_eq!((found.status, found.code.as_str()), (403, "session_host_required"), "{host}");
        for named in [&host, &own, "--public-url", "skep open"] {
            assert!(found.message.contains(named), "{}", found.message);
        }
    }
    // The control: the key has a session at its host, also by another port, as through a tunnel.
    for host in [own.clone(), own.replace(&format!(":{port}"), ":8080")] {
        assert_eq!(create(host).await.unwrap().status(), 201);
    }

    let public_url = Some("http://localhost:7700".parse().unwrap());
    let chosen = Skep::start_with(Options { public_url, ..Options::default() }).await;
    let create = |host| chosen.request(Method::POST, "/api/session").header("host", host).send();
    assert_eq!(create("localhost:7700").await.unwrap().status(), 201, "the operator chose this address");
    assert_eq!(refused(create("localhost:7701").await.unwrap()).await.code, "session_host_required");
}

/// Whoever has stolen a session must not be able to keep its rights.
#[tokio::test]
async fn a_session_creates_no_key_and_no_link() {
    let skep = Skep::start().await;
    let cookie = begin(&skep, &skep.admin).await;
    let (_, other) = skep.key(&[]).await;
    let rotate = format!("/api/keys/{}/rotate", other.key.id);
    let wanted = [
        ("/api/keys", json!({"name": "kept", "role": "agent"})),
        (rotate.as_str(), json!({})),
        ("/api/session/links", json!({})),
    ];
    for (path, body) in &wanted {
        let stolen = with_cookie(&skep, &cookie, Method::POST, path).header("sec-fetch-site", "same-origin");
        let found = refused(stolen.json(body).send().await.unwrap()).await;
        assert_eq!((found.status, found.code.as_str()), (403, "key_required"), "{path}");
        assert!(found.message.contains("send the key itself"), "{}", found.message);
    }
    let names = |keys: &Value| keys["keys"].to_string();
    let keys: Value = ours(&skep, &cookie, Method::GET, "/api/keys").await.json().await.unwrap();
    assert!(!names(&keys).contains("kept"), "the session itself is valid, and no key was created: {keys}");
    // The control: with the key itself, also beside the cookie.
    for (path, body) in &wanted {
        let typed = with_cookie(&skep, &cookie, Method::POST, path).bearer_auth(&skep.admin);
        assert_eq!(typed.json(body).send().await.unwrap().status(), 201, "{path}");
    }
}

/// A browser lets a page of another site read an answer only where a header of the answer allows it (CORS).
#[tokio::test]
async fn no_answer_allows_another_site_to_read_it() {
    let skep = Skep::start().await;
    for (method, status) in [(Method::GET, 200), (Method::OPTIONS, 405)] {
        for path in ["/", "/api/openapi.json", "/api/whoami"] {
            let request = skep.request(method.clone(), path).header("origin", "http://evil.example");
            let request = request.header("access-control-request-method", "GET");
            let request = request.header("access-control-request-headers", "authorization");
            let answer = request.send().await.unwrap();
            assert_eq!(answer.status(), status, "{method} {path}");
            let mut names = answer.headers().keys();
            let allowed = names.find(|name| name.as_str().starts_with("access-control-"));
            assert_eq!(allowed, None, "{method} {path}");
        }
    }
}
