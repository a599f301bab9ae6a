//! The routes of the dashboard: its page, its files, and their policy.

use axum::{Router, routing::get};
use reqwest::{Method, Response};
use skep_server::Dashboard;

use crate::harness::{Options, Skep, refused};

const PAGE: &str = "<!doctype html><meta property=\"csp-nonce\" nonce=\"CSP_NONCE\"><title>skep</title>";

/// A server whose dashboard has one script.
async fn with_dashboard() -> Skep {
    let files = || Router::new().route("/index-0a1b.js", get(|| async { "export {}" }));
    let dashboard = Some(Dashboard { page: PAGE, files });
    Skep::start_with(Options { dashboard, ..Options::default() }).await
}

async fn get_page(skep: &Skep, path: &str) -> Response {
    skep.bare(Method::GET, path).send().await.unwrap()
}

fn policy(answer: &Response) -> String {
    answer.headers()["content-security-policy"].to_str().unwrap().to_owned()
}

#[tokio::test]
async fn each_path_below_ui_is_the_page_with_a_nonce_of_its_own() {
    let skep = with_dashboard().await;
    let mut nonces = Vec::new();
    for path in ["/ui/", "/ui/swarm/4242", "/ui/tickets/tkt_x?tab=log", "/ui/..%2fx"] {
        let answer = get_page(&skep, path).await;
        assert_eq!(answer.status(), 200, "{path}");
        assert_eq!(answer.headers()["content-type"], "text/html; charset=utf-8");
        assert_eq!(answer.headers()["cache-control"], "no-store");
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
        assert_eq!(answer.headers()["referrer-policy"], "no-referrer");
        let policy = policy(&answer);
        let nonce = policy.split("'nonce-").nth(1).unwrap().split('\'').next().unwrap().to_owned();
        let expected = format!(
            "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-{nonce}'; style-src-attr 'unsafe-inline'; \
             img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; worker-src 'self'; base-uri 'none'; \
             form-action 'none'; frame-ancestors 'none'"
        );
        assert_eq!(policy, expected);
        let page = answer.text().await.unwrap();
        assert_eq!(page, PAGE.replace("CSP_NONCE", &nonce));
        assert_eq!(nonce.len(), 24, "{nonce}");
        nonces.push(nonce);
    }
    nonces.sort();
    nonces.dedup();
    assert_eq!(nonces.len(), 4, "a nonce was used again");
}

#[tokio::test]
async fn a_file_has_the_policy_and_what_is_no_file_is_not_found() {
    let skep = with_dashboard().await;
    let answer = get_page(&skep, "/ui/files/index-0a1b.js").await;
    assert!(policy(&answer).contains("connect-src 'self'") && !policy(&answer).contains("nonce"));
    assert_eq!(answer.text().await.unwrap(), "export {}");
    for path in ["/ui/files/index-none.js", "/ui/files/", "/uix", "/swarm"] {
        let refusal = refused(get_page(&skep, path).await).await;
        assert_eq!((refusal.status, refusal.code.as_str()), (404, "unknown_route"), "{path}");
    }
}

#[tokio::test]
async fn a_binary_without_the_dashboard_names_the_command_that_builds_it() {
    let skep = Skep::start().await;
    let answer = get_page(&skep, "/ui/").await;
    assert_eq!(answer.status(), 200);
    assert!(answer.text().await.unwrap().contains("<code>make run</code>"));
    let refusal = refused(get_page(&skep, "/ui/files/index-0a1b.js").await).await;
    assert_eq!((refusal.status, refusal.code.as_str()), (404, "unknown_route"));
}
