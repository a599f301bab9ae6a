//! Browser sessions: they survive a restart, and the server stores only a hash of their token.

use std::fs;

use reqwest::Method;
use serde_json::json;

use crate::harness::{Answer, Skep, command, output_of, printed, send, temp_dir};

async fn by_cookie(skep: &Skep, cookie: &str) -> Answer {
    let request = skep.bare(Method::GET, "/api/whoami").header("cookie", cookie);
    send(request.header("sec-fetch-site", "same-origin")).await
}

#[tokio::test]
async fn a_session_outlives_a_restart_and_its_token_is_kept_nowhere() {
    let skep = Skep::start().await;
    let link = send(skep.request(Method::POST, "/api/session/links")).await.ok(201);
    let (url, token) = link["url"].as_str().unwrap().split_once("/#login=").unwrap();
    let login = skep.bare(Method::POST, "/api/session").json(&json!({ "token": token }));
    let begun = send(login.header("host", url.strip_prefix("http://").unwrap())).await;
    let cookie = begun.headers["set-cookie"].to_str().unwrap().split(';').next().unwrap().to_owned();
    by_cookie(&skep, &cookie).await.ok(200);
    let unused = send(skep.request(Method::POST, "/api/session/links")).await.ok(201);
    let unused = unused["url"].as_str().unwrap().split_once("/#login=").unwrap().1.to_owned();
    let (log, data_dir) = (skep.log(), skep.stop());
    let token = cookie.split_once('=').unwrap().1.as_bytes();
    let prefix = begun.body["key"]["prefix"].as_str().unwrap().as_bytes();
    let holds = |bytes: &[u8], needle: &[u8]| bytes.windows(needle.len()).any(|window| window == needle);
    let database = fs::read(data_dir.path().join("server/skep.db")).unwrap();
    assert!(holds(&database, prefix), "the search finds what is there");
    for token in [token, unused.as_bytes()] {
        assert!(!holds(&database, token) && !holds(log.as_bytes(), token));
    }

    let skep = Skep::start_on(data_dir, &[]).await;
    let me = by_cookie(&skep, &cookie).await.ok(200);
    assert_eq!(me["key"]["name"], "admin");
    let stranger = cookie.replace('=', "=0").split_at(cookie.len()).0.to_owned();
    by_cookie(&skep, &stranger).await.refused(401, "invalid_token");
}

#[tokio::test]
async fn a_link_that_logs_in_leads_to_the_public_url_of_the_server() {
    let skep = Skep::start_on(temp_dir(), &["--public-url", "https://skep.example"]).await;
    let link = printed(&output_of(&mut command(&skep, &["open"])));
    let token = link.strip_prefix("https://skep.example/#login=").unwrap_or_else(|| panic!("{link}"));
    assert!(!token.is_empty(), "{link}");
}
