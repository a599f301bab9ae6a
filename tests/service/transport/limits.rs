//! Limits on the connections and the request rate of one caller.

use reqwest::{Method, Response};
use skep_api::Scope;
use skep_server::{Limits, TrustedProxies};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::wire::{LAST, ROOT, answer, connect, exchange};
use crate::{
    access::tenant,
    harness::{Options, Skep, eventually, refused},
};

async fn start(change: impl FnOnce(&mut Options)) -> Skep {
    let mut options = Options { limits: Limits::default(), ..Options::default() };
    change(&mut options);
    Skep::start_with(options).await
}

#[tokio::test]
async fn one_connection_too_many_is_closed_and_there_is_room_again_afterwards() {
    for in_all in [true, false] {
        let skep = start(|options| {
            let limits = &mut options.limits;
            *(if in_all { &mut limits.max_connections } else { &mut limits.max_connections_per_address }) = 3;
        })
        .await;
        let mut open = Vec::new();
        for _ in 0..3 {
            let mut stream = connect(skep.address).await;
            stream.write_all(ROOT.as_bytes()).await.unwrap();
            assert!(answer(&mut stream).await.starts_with("HTTP/1.1 200 "));
            open.push(stream);
        }
        assert_eq!(exchange(&skep, LAST).await, "", "in all: {in_all}");
        // Open connections are still served.
        let mut stream = open.pop().unwrap();
        stream.write_all(LAST.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
        drop(stream);
        // The server notices the closed connection with a delay.
        let is_room = async || exchange(&skep, LAST).await.starts_with("HTTP/1.1 200 ");
        eventually("room for another connection", is_room).await;
    }
}

/// A stream of events is under way until its client drops it.
async fn follow(skep: &Skep, key: &str) -> Response {
    let stream = skep.bare(Method::GET, "/api/events").bearer_auth(key).send().await.unwrap();
    assert_eq!(stream.status(), 200);
    stream
}

async fn overloaded(response: Response, why: &str) {
    assert_eq!(response.headers()["retry-after"], "5");
    let refused = refused(response).await;
    assert_eq!((refused.status, refused.code.as_str()), (503, "overloaded"));
    assert!(refused.message.contains(why), "{}", refused.message);
}

#[tokio::test]
async fn one_request_too_many_is_refused_and_there_is_room_again_afterwards() {
    for (in_all, why) in [(true, "the server accepts"), (false, "3 requests from this address")] {
        let skep = start(|options| {
            let limits = &mut options.limits;
            *(if in_all { &mut limits.max_requests } else { &mut limits.max_requests_per_address }) = 3;
        })
        .await;
        let mut open = Vec::new();
        for _ in 0..2 {
            open.push(follow(&skep, &skep.admin).await);
        }
        // A body that does not end is under way, too.
        let head = format!(
            "POST /api/keys HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\ncontent-type: application/json\r\n\
             content-length: 2\r\nexpect: 100-continue\r\n\r\n",
            skep.admin
        );
        let mut unfinished = connect(skep.address).await;
        unfinished.write_all(head.as_bytes()).await.unwrap();
        let mut line = [0; 25];
        unfinished.read_exact(&mut line).await.unwrap();
        assert_eq!(&line, b"HTTP/1.1 100 Continue\r\n\r\n");
        overloaded(skep.get("/api/whoami").await, why).await;
        // Without a key as well.
        overloaded(skep.bare(Method::GET, "/").send().await.unwrap(), why).await;
        drop(unfinished);
        let is_room = async || skep.get("/api/whoami").await.status() == 200;
        eventually("room for another request", is_room).await;
        open.push(follow(&skep, &skep.admin).await);
        overloaded(skep.get("/api/whoami").await, why).await;
        drop(open);
        eventually("room for another request", is_room).await;
    }
}

#[tokio::test]
async fn an_account_leaves_room_for_the_requests_of_others() {
    let skep = start(|options| options.limits.max_requests_per_account = 2).await;
    let (_, other) = tenant(&skep, "acme").await;
    let open = [follow(&skep, &skep.admin).await, follow(&skep, &skep.admin).await];
    overloaded(skep.get("/api/whoami").await, "2 requests of this account").await;
    let answer = skep.bare(Method::GET, "/api/whoami").bearer_auth(&other).send().await.unwrap();
    assert_eq!(answer.status(), 200);
    drop(open);
    let is_room = async || skep.get("/api/whoami").await.status() == 200;
    eventually("room for another request", is_room).await;
}

/// Checks that an answer is 429 and says when to retry.
async fn too_many(response: Response, policy: &str) {
    let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
    assert_eq!(header("ratelimit-policy"), policy);
    let (name, _) = policy.split_once(';').unwrap();
    let wait: u64 = header("retry-after").parse().unwrap();
    assert!(wait > 0);
    assert_eq!(header("ratelimit"), format!("{name};r=0;t={wait}"));
    let refused = refused(response).await;
    assert_eq!((refused.status, refused.code.as_str()), (429, "rate_limited"));
    assert!(refused.message.contains(&format!("{wait} s")), "{}", refused.message);
}

#[tokio::test]
async fn a_key_over_its_rate_limit_is_told_when_to_retry() {
    let skep = start(|options| options.limits.rate_limit = Some("3/h".parse().unwrap())).await;
    for _ in 0..3 {
        assert_eq!(skep.get("/api/whoami").await.status(), 200);
    }
    too_many(skep.get("/api/whoami").await, "\"key\";q=3;w=3600").await;
    too_many(skep.get("/api/no-such-route").await, "\"key\";q=3;w=3600").await;
    let (other, _) = skep.key(&[Scope::SwarmRead]).await;
    let response = skep.bare(Method::GET, "/api/whoami").bearer_auth(other).send().await.unwrap();
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn an_address_over_its_rate_limit_is_told_when_to_retry() {
    let skep = start(|options| options.limits.address_rate_limit = Some("3/h".parse().unwrap())).await;
    for path in ["/api/health", "/api/whoami", "/nothing"] {
        assert_ne!(skep.get(path).await.status(), 429, "{path}");
    }
    too_many(skep.get("/api/health").await, "\"address\";q=3;w=3600").await;
}

#[tokio::test]
async fn guessing_keys_is_rate_limited_and_valid_keys_are_not_affected() {
    let skep = start(|options| options.limits.failed_auth_limit = "3/h".parse().unwrap()).await;
    let guess = async |n: usize| {
        let key = format!("sk-skep-prod-{n:064x}");
        skep.bare(Method::GET, "/api/whoami").bearer_auth(key).send().await.unwrap()
    };
    // Requests without a key do not count as guesses.
    for _ in 0..10 {
        let response = skep.bare(Method::GET, "/api/whoami").send().await.unwrap();
        assert_eq!(response.status(), 401);
    }
    for n in 0..3 {
        assert_eq!(guess(n).await.status(), 401);
    }
    too_many(guess(3).await, "\"failed-authentications\";q=3;w=3600").await;
    assert_eq!(skep.get("/api/whoami").await.status(), 200);
}

#[tokio::test]
async fn behind_a_proxy_each_caller_is_counted_by_itself() {
    let skep = start(|options| {
        options.limits.failed_auth_limit = "1/h".parse().unwrap();
        options.limits.max_connections_per_address = 1;
        options.proxies = TrustedProxies::new(vec!["127.0.0.0/8".parse().unwrap()]);
    })
    .await;
    let guess = async |from: &str| {
        let request = skep.bare(Method::GET, "/api/whoami").bearer_auth("nonsense");
        let request = request.header("x-forwarded-proto", "https").header("x-forwarded-for", from);
        request.send().await.unwrap().status().as_u16()
    };
    for (from, status) in [
        ("192.0.2.1", 401),
        ("192.0.2.1", 429),
        // The forged part is further left, so this is the same caller.
        ("192.0.2.9, 192.0.2.1", 429),
        ("192.0.2.2", 401),
        ("2001:db8::1", 401),
        ("2001:db8::2", 429),
        ("2001:db8:0:1::1", 401),
    ] {
        assert_eq!(guess(from).await, status, "{from}");
    }
    // The number of the proxy's own connections is not limited.
    let request = "GET / HTTP/1.1\r\nhost: x\r\nx-forwarded-proto: https\r\n\r\n";
    let mut open = Vec::new();
    for _ in 0..5 {
        let mut stream = connect(skep.address).await;
        stream.write_all(request.as_bytes()).await.unwrap();
        assert!(answer(&mut stream).await.starts_with("HTTP/1.1 200 "));
        open.push(stream);
    }
}
