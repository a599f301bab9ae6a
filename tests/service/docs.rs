//! The documentation at `/docs`: complete, and served by this server only.

use reqwest::Method;

use crate::harness::{Refused, Skep, refused};

/// All values of an attribute in a page.
fn values<'a>(page: &'a str, attribute: &str) -> Vec<&'a str> {
    let begin = format!("{attribute}=\"");
    page.split(&begin).skip(1).filter_map(|rest| rest.split('"').next()).collect()
}

#[tokio::test]
async fn the_page_names_files_that_this_server_has() {
    let skep = Skep::start().await;
    let answer = skep.bare(Method::GET, "/docs").send().await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), &answer.headers()["content-type"]),
        (200, &"text/html; charset=utf-8".parse().unwrap())
    );
    let page = answer.text().await.unwrap();
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("\"//"), "{page}");
    let named: Vec<&str> = [values(&page, "src"), values(&page, "href")].concat();
    assert!(named.len() >= 4, "{named:?}");
    for path in named.into_iter().filter(|path| *path != "data:,") {
        let answer = skep.bare(Method::GET, path).send().await.unwrap();
        assert_eq!(answer.status(), 200, "{path}");
        let kind = match path.rsplit('.').next().unwrap() {
            "js" => "text/javascript; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "json" => "application/json",
            other => panic!("{path}: {other}"),
        };
        assert_eq!(answer.headers()["content-type"], kind, "{path}");
        let text = answer.text().await.unwrap();
        // The policy prevents scripts from loading other resources; a style loads by these two.
        assert!(!text.contains("@import") && !text.contains("url(http"), "{path}");
        if path.ends_with("start.js") {
            assert!(!text.contains("://") && text.contains("\"/api/openapi.json\""), "{text}");
        }
        if path.ends_with("bundle.js") {
            assert!(text.contains("SwaggerUIBundle") && text.len() > 1_000_000, "{path} is no script");
        }
    }
}

#[tokio::test]
async fn nothing_but_files_of_this_server_is_let_in() {
    let skep = Skep::start().await;
    for path in ["/docs", "/docs/start.js", "/docs/swagger-ui-bundle.js"] {
        let answer = skep.bare(Method::GET, path).send().await.unwrap();
        let policy = answer.headers()["content-security-policy"].to_str().unwrap().to_owned();
        let rules: Vec<(&str, &str)> =
            policy.split(';').map(|rule| rule.trim().split_once(' ').unwrap()).collect();
        for rule in [
            ("default-src", "'none'"),
            ("script-src", "'self'"),
            ("connect-src", "'self'"),
            ("frame-ancestors", "'none'"),
            ("base-uri", "'none'"),
        ] {
            assert!(rules.contains(&rule), "{path}: {policy}");
        }
        assert!(
            !policy.contains("unsafe-eval") && !policy.contains("http") && !policy.contains('*'),
            "{policy}"
        );
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
        assert_eq!(answer.headers()["referrer-policy"], "no-referrer");
    }
    let page = skep.bare(Method::GET, "/docs").send().await.unwrap().text().await.unwrap();
    // The policy forbids inline scripts.
    for script in page.split("<script").skip(1) {
        assert!(script.starts_with(" src=\"/docs/") && script.contains("\"></script>"), "{script}");
    }
    assert!(!page.contains(" on") || !page.contains("onload="), "{page}");
}

#[tokio::test]
async fn clients_without_compression_get_uncompressed_files() {
    let skep = Skep::start().await;
    let ask = |coding: Option<&'static str>| {
        let request = skep.bare(Method::GET, "/docs/swagger-ui.css");
        coding.map_or(request.try_clone().unwrap(), |coding| request.header("accept-encoding", coding)).send()
    };
    let packed = ask(Some("gzip")).await.unwrap();
    assert_eq!(packed.headers()["content-encoding"], "gzip");
    assert_eq!(packed.headers()["vary"], "accept-encoding");
    assert_eq!(packed.bytes().await.unwrap()[..2], [0x1f, 0x8b]);
    for coding in [None, Some("identity"), Some("gzip;q=0")] {
        let plain = ask(coding).await.unwrap();
        assert!(plain.headers().get("content-encoding").is_none(), "{coding:?}");
        assert!(plain.text().await.unwrap().starts_with(".swagger-ui"), "{coding:?}");
    }
}

#[tokio::test]
async fn what_is_no_file_of_the_page_is_not_found() {
    let skep = Skep::start().await;
    for path in ["/docs/", "/docs/index.html", "/docs/..%2fx", "/docs/a/b", "/docs/swagger-ui-es-bundle.js"] {
        let Refused { status, code, .. } = refused(skep.bare(Method::GET, path).send().await.unwrap()).await;
        assert_eq!((status, code.as_str()), (404, "unknown_route"), "{path}");
    }
}

#[tokio::test]
async fn the_root_leads_browsers_to_the_page_and_programs_to_the_document() {
    let skep = Skep::start().await;
    let plain = reqwest::Client::builder().redirect(reqwest::redirect::Policy::none()).build().unwrap();
    let get = |accept: &'static str| {
        let request = plain.get(format!("http://{}/", skep.address)).header("accept", accept);
        async move { request.send().await.unwrap() }
    };
    for accept in ["text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8", "text/html"] {
        let browser = get(accept).await;
        assert_eq!(browser.status(), 303, "{accept}");
        assert_eq!(browser.headers()["location"], "/ui/");
    }
    for accept in ["*/*", "application/json", "application/json, text/html;q=0.5"] {
        let answer = get(accept).await;
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["vary"]),
            (200, &"accept".parse().unwrap()),
            "{accept}"
        );
        let body: serde_json::Value = answer.json().await.unwrap();
        for path in [&body["openapi"], &body["docs"]] {
            let path = path.as_str().unwrap();
            assert_eq!(skep.bare(Method::GET, path).send().await.unwrap().status(), 200, "{path}");
        }
    }
    let refused = refused(get("image/png").await).await;
    assert_eq!((refused.status, refused.code.as_str()), (406, "not_acceptable"));
}
