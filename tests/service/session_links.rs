//! Links that open a browser session once, and sessions that end with their streams.

use jiff::{SignedDuration, Timestamp, ToSpan};
use reqwest::{Method, Response};
use serde_json::{Value, json};
use skep_accounts::SessionToken;
use skep_api::{KeyId, Scope};
use skep_server::PublicUrl;
use skep_store::{NewSession, NewSessionLink, RevokeKey};

use crate::{
    access::tenant,
    harness::{Follower, Options, Refused, Skep, done, refused},
};

#[track_caller]
fn is(found: &Refused, status: u16, code: &str) {
    assert_eq!((found.status, found.code.as_str()), (status, code), "{}", found.message);
}

async fn link(skep: &Skep, key: &str) -> Value {
    done(skep.bare(Method::POST, "/api/session/links").bearer_auth(key), 201).await
}

/// The token of a new link of a key.
async fn token(skep: &Skep, key: &str) -> String {
    let url = link(skep, key).await["url"].as_str().unwrap().to_owned();
    url.split_once("/#login=").unwrap().1.to_owned()
}

/// Logs in by a link of a key.
async fn log_in(skep: &Skep, key: &str, token: &str) -> Response {
    let request = skep.bare(Method::POST, "/api/session").header("host", skep.session_host(key));
    request.json(&json!({ "token": token })).send().await.unwrap()
}

/// The cookie of a session: `skep_session=...`.
fn cookie_of(response: &Response) -> String {
    response.headers()["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned()
}

fn with_cookie(skep: &Skep, cookie: &str, method: Method, path: &str) -> reqwest::RequestBuilder {
    skep.bare(method, path).header("cookie", cookie).header("sec-fetch-site", "same-origin")
}

#[tokio::test]
async fn a_link_opens_one_session_with_the_rights_of_its_key() {
    let skep = Skep::start().await;
    let (key, record) = skep.key(&[Scope::SwarmRead]).await;
    let made = link(&skep, &key).await;
    let url = made["url"].as_str().unwrap();
    let token = url.strip_prefix(&format!("http://{}/#login=", skep.session_host(&key))).unwrap();
    let left =
        made["expires_at"].as_str().unwrap().parse::<Timestamp>().unwrap().duration_since(Timestamp::now());
    assert!(left <= SignedDuration::from_mins(10) && left > SignedDuration::from_mins(9), "{left:?}");

    let begun = log_in(&skep, &key, token).await;
    assert_eq!(begun.status(), 201);
    let cookie = cookie_of(&begun);
    let text = begun.text().await.unwrap();
    assert!(!text.contains(token) && !cookie.contains(token), "the session has a token of its own");
    let me: Value = done(with_cookie(&skep, &cookie, Method::GET, "/api/whoami"), 200).await;
    assert_eq!((&me["key"]["id"], &me["scopes"]), (&json!(record.key.id), &json!(["swarm:read"])));
    let keys = with_cookie(&skep, &cookie, Method::GET, "/api/keys").send().await.unwrap();
    is(&refused(keys).await, 403, "scope_missing");

    is(&refused(log_in(&skep, &key, token).await).await, 401, "invalid_token");
    let (account, id) = (skep.account.id, record.key.id);
    skep.store.revoke_key(RevokeKey { account, id, at: Timestamp::now(), request_id: None }).await.unwrap();
    let whoami = with_cookie(&skep, &cookie, Method::GET, "/api/whoami").send().await.unwrap();
    is(&refused(whoami).await, 403, "token_expired");
}

#[tokio::test]
async fn a_link_opens_no_session_at_another_host() {
    let skep = Skep::start().await;
    let [lost, kept] = [token(&skep, &skep.admin).await, token(&skep, &skep.admin).await];
    let at_localhost = skep.bare(Method::POST, "/api/session").json(&json!({ "token": lost }));
    is(&refused(at_localhost.send().await.unwrap()).await, 403, "session_host_required");
    // It was used, and the control: another one opens a session at its host.
    is(&refused(log_in(&skep, &skep.admin, &lost).await).await, 401, "invalid_token");
    assert_eq!(log_in(&skep, &skep.admin, &kept).await.status(), 201);
}

#[tokio::test]
async fn links_that_are_used_expired_or_of_a_lost_key_open_nothing() {
    let skep = Skep::start().await;
    let (key, record) = skep.key(&[]).await;
    let of_revoked = token(&skep, &key).await;
    let (account, id) = (skep.account.id, record.key.id);
    skep.store.revoke_key(RevokeKey { account, id, at: Timestamp::now(), request_id: None }).await.unwrap();
    is(&refused(log_in(&skep, &key, &of_revoked).await).await, 403, "token_expired");
    is(&refused(log_in(&skep, &key, &of_revoked).await).await, 401, "invalid_token");

    let (lost, record) = skep.key(&[]).await;
    let old = SessionToken::from_random([7; 32]);
    let at = Timestamp::now() - 10.minutes();
    let expires_at = Timestamp::now();
    let command = NewSessionLink { hash: old.hash(), key: record.key.id, at, expires_at };
    skep.store.create_session_link(command).await.unwrap();
    is(&refused(log_in(&skep, &lost, old.expose()).await).await, 403, "token_expired");

    for wrong in ["", "x", &"0".repeat(64), &skep.admin, &KeyId::generate().to_string(), &"A".repeat(64)] {
        is(&refused(log_in(&skep, &skep.admin, wrong).await).await, 401, "invalid_token");
    }
    // A token of a session is none of a link, and the reverse.
    let valid = token(&skep, &skep.admin).await;
    let as_session = with_cookie(&skep, &format!("skep_session={valid}"), Method::GET, "/api/whoami");
    is(&refused(as_session.send().await.unwrap()).await, 401, "invalid_token");
    let begun = log_in(&skep, &skep.admin, &valid).await;
    let session = cookie_of(&begun).strip_prefix("skep_session=").unwrap().to_owned();
    is(&refused(log_in(&skep, &skep.admin, &session).await).await, 401, "invalid_token");
}

#[tokio::test]
async fn a_link_opens_a_session_only_from_addresses_that_the_account_allows() {
    let skep = Skep::start().await;
    let (account, key) = tenant(&skep, "acme").await;
    let [here, elsewhere] = [token(&skep, &key).await, token(&skep, &key).await];
    // The control: without a list, every address is allowed.
    assert_eq!(log_in(&skep, &key, &here).await.status(), 201);
    let list = json!({"allowed_ips": ["192.0.2.0/24"]});
    done(skep.request(Method::PATCH, &format!("/api/accounts/{account}")).json(&list), 200).await;
    is(&refused(log_in(&skep, &key, &elsewhere).await).await, 403, "address_not_allowed");
}

#[tokio::test]
async fn a_login_takes_a_key_or_a_token_and_no_page_of_another_origin_sends_one() {
    let skep = Skep::start().await;
    let valid = token(&skep, &skep.admin).await;
    let body = json!({ "token": valid });
    let host = skep.session_host(&skep.admin);
    let post = || skep.bare(Method::POST, "/api/session").header("host", &host);
    let own = format!("http://{host}");
    for (name, value) in [
        ("origin", "http://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ] {
        let sent = post().header(name, value).json(&body).send().await.unwrap();
        is(&refused(sent).await, 401, "missing_token");
    }
    let form = post().header("content-type", "text/plain").body(body.to_string()).send().await.unwrap();
    is(&refused(form).await, 401, "missing_token");
    let both = post().bearer_auth(&skep.admin).json(&body).send().await.unwrap();
    is(&refused(both).await, 400, "invalid_value");
    let from_vm = skep.bare(Method::POST, "/api/session").json(&json!({})).send().await.unwrap();
    is(&refused(from_vm).await, 401, "missing_token");
    let url = format!("http://{}/api/session", skep.vm_address);
    let at_vms = reqwest::Client::new().post(url).json(&body).send().await.unwrap();
    is(&refused(at_vms).await, 401, "missing_token");
    // A cookie of a session that has ended does not stand in the way.
    let stale = format!("skep_session={}", "0".repeat(64));
    let begun = post().header("origin", &own).header("cookie", stale).json(&body).send().await.unwrap();
    assert_eq!(begun.status(), 201, "the control: none of the refused requests used the link");
}

#[tokio::test]
async fn a_link_never_leads_to_a_host_of_the_callers_choosing() {
    let skep = Skep::start().await;
    let ask = async |skep: &Skep, host: &str| {
        let request = skep.request(Method::POST, "/api/session/links").header("host", host);
        request.send().await.unwrap()
    };
    for host in ["evil.example", "evil.example:7700", "198.51.100.1", "localhost.evil.example"] {
        let found = refused(ask(&skep, host).await).await;
        is(&found, 400, "invalid_value");
        assert!(found.message.contains(host) && found.message.contains("--public-url"), "{}", found.message);
    }
    let made: Value = ask(&skep, "localhost:9999").await.json().await.unwrap();
    let own = skep.session_host(&skep.admin).replace(&format!(":{}", skep.address.port()), ":9999");
    let url = made["url"].as_str().unwrap();
    assert!(url.starts_with(&format!("http://{own}/#login=")), "through a tunnel: {made}");

    let public_url: PublicUrl = "https://skep.example".parse().unwrap();
    let public = Skep::start_with(Options { public_url: Some(public_url), ..Options::default() }).await;
    for host in ["evil.example", "localhost"] {
        let made: Value = ask(&public, host).await.json().await.unwrap();
        assert!(made["url"].as_str().unwrap().starts_with("https://skep.example/#login="), "{made}");
    }
}

#[tokio::test]
async fn a_session_without_requests_ends_after_an_hour_and_one_in_use_does_not() {
    let skep = Skep::start().await;
    let (_, record) = skep.key(&[]).await;
    let session = async |number: u8, last_used: Timestamp| {
        let token = SessionToken::from_random([number; 32]);
        let expires_at = Timestamp::now() + 5.hours();
        let command = NewSession { hash: token.hash(), key: record.key.id, at: last_used, expires_at };
        skep.store.create_session(command).await.unwrap();
        format!("skep_session={}", token.expose())
    };
    let idle = session(1, Timestamp::now() - 60.minutes()).await;
    let found = with_cookie(&skep, &idle, Method::GET, "/api/whoami").send().await.unwrap();
    is(&refused(found).await, 403, "token_expired");
    let used = session(2, Timestamp::now() - 59.minutes()).await;
    done(with_cookie(&skep, &used, Method::GET, "/api/whoami"), 200).await;
}

#[tokio::test]
async fn the_end_of_a_session_ends_its_streams_alone() {
    let skep = Skep::start().await;
    let begin = async || cookie_of(&log_in(&skep, &skep.admin, &token(&skep, &skep.admin).await).await);
    let (cookie, other) = (begin().await, begin().await);
    let mut stream = Follower::of(with_cookie(&skep, &cookie, Method::GET, "/api/events")).await;
    let mut other_stream = Follower::of(with_cookie(&skep, &other, Method::GET, "/api/events")).await;
    let mut of_key = Follower::of(skep.request(Method::GET, "/api/events")).await;
    let folder = format!("/api/files/watch?path={}", skep.account.roots[0]);
    let mut watch = with_cookie(&skep, &cookie, Method::GET, &folder).send().await.unwrap();
    assert_eq!(watch.status(), 200);
    done(with_cookie(&skep, &cookie, Method::DELETE, "/api/session"), 200).await;
    let last = stream.next().await.unwrap();
    assert_eq!((last.kind.as_str(), &last.data["code"]), ("error", &json!("token_expired")));
    assert!(stream.next().await.is_none());
    let mut text = String::new();
    while let Some(chunk) = watch.chunk().await.unwrap() {
        text.push_str(std::str::from_utf8(&chunk).unwrap());
    }
    assert!(text.contains("token_expired"), "{text}");
    // The control: the others go on.
    let ticket = skep.simple("after").await;
    for stream in [&mut other_stream, &mut of_key] {
        let event = stream.next().await.unwrap();
        assert_eq!((event.kind.as_str(), &event.data["ticket"]["id"]), ("ticket.created", &json!(ticket)));
    }
}
