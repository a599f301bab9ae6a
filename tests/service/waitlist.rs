//! `/api/waitlist`.

use reqwest::Method;
use serde_json::Value;
use skep_api::Scope;
use skep_store::JoinWaitlist;

use crate::harness::{Refused, Skep, refused};

async fn join(skep: &Skep, body: &str) -> reqwest::Response {
    let request = skep.bare(Method::POST, "/api/waitlist").header("content-type", "application/json");
    request.body(body.to_owned()).send().await.unwrap()
}

async fn put(skep: &Skep, email: &str, name: &str) {
    let command = JoinWaitlist {
        email: email.to_owned(),
        name: Some(name.to_owned()),
        company: None,
        use_case: None,
        at: jiff::Timestamp::now(),
    };
    skep.store.join_waitlist(command).await.unwrap();
}

async fn csv(skep: &Skep) -> reqwest::Response {
    skep.request(Method::GET, "/api/waitlist").header("accept", "text/csv").send().await.unwrap()
}

#[tokio::test]
async fn everybody_may_join_and_learns_nothing() {
    let skep = Skep::start().await;
    let mut answers = Vec::new();
    for body in [
        r#"{"email": "ada@example.com", "name": "Ada", "company": "Engines", "use_case": "bees"}"#,
        r#"{"email": "ada@example.com"}"#,
        r#"{"email": "ADA@example.com", "name": "Mallory"}"#,
    ] {
        let response = join(&skep, body).await;
        assert_eq!(response.status(), 202);
        answers.push(response.text().await.unwrap());
    }
    assert!(answers.iter().all(|answer| answer == r#"{"status":"ok"}"#), "{answers:?}");
    let list: Value = skep.get("/api/waitlist").await.json().await.unwrap();
    let entries = list["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 1, "{list}");
    assert_eq!((&entries[0]["email"], &entries[0]["name"]), (&"ada@example.com".into(), &"Ada".into()));
    assert_eq!(list["next_cursor"], Value::Null);
}

#[tokio::test]
async fn invalid_addresses_are_refused_with_their_value() {
    let skep = Skep::start().await;
    let long = format!(r#"{{"email": "a@example.com", "use_case": "{:2001}"}}"#, "");
    for (body, code, named) in [
        (r#"{"email": "not-an-address"}"#, "invalid_value", "not-an-address"),
        (r#"{"email": "a@b.example\r\nBcc: c@d.example"}"#, "invalid_value", "Bcc"),
        (r#"{"email": 7}"#, "invalid_value", "`email`"),
        ("{}", "missing_parameter", "`email`"),
        (r#"{"email": "a@example.com", "phone": "1"}"#, "unknown_field", "`phone`"),
        (r#"{"email": "a@example.com", "name": "a\nb"}"#, "invalid_value", "`name`"),
        // Blank ones as well.
        (r#"{"email": "a@example.com", "name": "\t"}"#, "invalid_value", "`name`"),
        (r#"{"email": "a@example.com", "company": " \n "}"#, "invalid_value", "`company`"),
        (&long, "invalid_value", "`use_case` has 2001 characters"),
    ] {
        let found = refused(join(&skep, body).await).await;
        assert_eq!((found.status, found.code.as_str()), (400, code), "{body}");
        assert!(found.message.contains(named), "{body}: {}", found.message);
    }
    let long = format!(r#"{{"email": "a@example.com", "use_case": "{}"}}"#, "x".repeat(2_001));
    assert!(refused(join(&skep, &long).await).await.message.contains("2001"));
    let list: Value = skep.get("/api/waitlist").await.json().await.unwrap();
    assert_eq!(list["entries"], serde_json::json!([]));
}

#[tokio::test]
async fn an_address_joins_a_few_times_an_hour() {
    let skep = Skep::start().await;
    for wrong in 0..10 {
        assert_eq!(join(&skep, r#"{"email": "wrong"}"#).await.status(), 400, "{wrong}");
    }
    for number in 0..5 {
        let body = format!(r#"{{"email": "{number}@example.com"}}"#);
        assert_eq!(join(&skep, &body).await.status(), 202, "mistakes cost nothing");
    }
    for body in [r#"{"email": "0@example.com"}"#, r#"{"email": "new@example.com"}"#] {
        let response = join(&skep, body).await;
        let header = |name: &str| response.headers()[name].to_str().unwrap().to_owned();
        let seconds: u64 = header("retry-after").parse().unwrap();
        assert!((1..=3_600).contains(&seconds), "{seconds}");
        assert!(header("ratelimit").contains("r=0"), "{}", header("ratelimit"));
        assert!(header("ratelimit-policy").contains("q=5"), "{}", header("ratelimit-policy"));
        let Refused { status, code, message } = refused(response).await;
        assert_eq!((status, code.as_str()), (429, "rate_limited"));
        assert!(message.contains("5/h"), "{message}");
    }
    // A key does not change the limit: the operation is public.
    let response = skep.post("/api/waitlist", r#"{"email": "key@example.com"}"#).await;
    assert_eq!(response.status(), 429);
}

#[tokio::test]
async fn a_spreadsheet_gets_the_whole_list_and_no_formula() {
    let skep = Skep::start().await;
    put(&skep, "=cmd@example.com", "=HYPERLINK(\"http://evil.example\")").await;
    for number in 0..1_005 {
        put(&skep, &format!("{number}@example.com"), "a, \"b\"").await;
    }
    let response = csv(&skep).await;
    assert_eq!(response.status(), 200);
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/csv"));
    assert!(response.headers()["content-disposition"].to_str().unwrap().contains("attachment"));
    let text = response.text().await.unwrap();
    assert_eq!(text.lines().count(), 1_007, "a head and everybody, beyond one page of the store");
    assert!(text.starts_with("id,email,name,company,use_case,joined_at\r\n"), "{}", &text[..80]);
    assert!(text.contains(",'=cmd@example.com,\"'=HYPERLINK(\"\"http://evil.example\"\")\","), "no formula");
    assert!(text.contains(",7@example.com,\"a, \"\"b\"\"\","));

    let whole = skep.request(Method::GET, "/api/waitlist?limit=5").header("accept", "text/csv");
    assert_eq!(refused(whole.send().await.unwrap()).await.status, 400);
    let strange = skep.request(Method::GET, "/api/waitlist").header("accept", "image/png");
    let Refused { status, code, .. } = refused(strange.send().await.unwrap()).await;
    assert_eq!((status, code.as_str()), (406, "not_acceptable"));
}

#[tokio::test]
async fn the_list_is_the_operators_page_by_page() {
    let skep = Skep::start().await;
    for number in 0..5 {
        put(&skep, &format!("{number}@example.com"), "x").await;
    }
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let page: Value = skep.get(&format!("/api/waitlist?limit=2{cursor}")).await.json().await.unwrap();
        seen.extend(page["entries"].as_array().unwrap().clone());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(seen.len(), 5);
    assert!(seen.is_sorted_by(|a, b| a["id"].as_str() > b["id"].as_str()), "newest first, each once");
    for query in ["limit=0", "limit=1001", "cursor=x", "page=1"] {
        assert_eq!(refused(skep.get(&format!("/api/waitlist?{query}")).await).await.status, 400, "{query}");
    }
    let (admin, _) = skep.key(&[Scope::Admin]).await;
    for (method, path) in [(Method::GET, "/api/waitlist"), (Method::DELETE, "/api/waitlist/0@example.com")] {
        let response = skep.bare(method, path).bearer_auth(&admin).send().await.unwrap();
        assert_eq!(refused(response).await.code, "scope_missing");
    }
}

#[tokio::test]
async fn a_removed_address_is_gone() {
    let skep = Skep::start().await;
    for email in ["a@example.com", "A@Example.com", "b+c@example.com"] {
        put(&skep, email, "x").await;
    }
    let remove = async |entry: &str| {
        let request = skep.request(Method::DELETE, &format!("/api/waitlist/{entry}"));
        request.send().await.unwrap()
    };
    assert_eq!(remove("a%40example.com").await.status(), 200);
    let list: Value = skep.get("/api/waitlist").await.json().await.unwrap();
    let entries = list["entries"].as_array().unwrap();
    assert_eq!(entries.len(), 1, "{list}");
    let id = entries[0]["id"].as_str().unwrap();
    let removed: Value = remove(id).await.json().await.unwrap();
    assert_eq!(removed, serde_json::json!({"id": id, "removed": true}));
    for unknown in [id, "a@example.com", "nonsense"] {
        let Refused { status, code, message } = refused(remove(unknown).await).await;
        assert_eq!((status, code.as_str()), (404, "unknown_waitlist_entry"));
        assert!(message.contains(unknown), "{message}");
    }
    assert_eq!(csv(&skep).await.text().await.unwrap().lines().count(), 1);
}
