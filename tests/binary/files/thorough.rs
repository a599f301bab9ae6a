//! Attacks on files, in both places.

use serde_json::json;

use super::fixture::{Fixture, in_both_places};

#[tokio::test]
async fn patterns_and_trees_made_to_hurt_do_not() {
    in_both_places(async |fixture| {
        patterns(fixture).await;
        deep_trees(fixture).await;
        wide_folders(fixture).await;
    })
    .await;
}

/// Regexes that take other engines years, and a glob of ten thousand stars.
async fn patterns(fixture: &Fixture<'_>) {
    let body = json!({"path": fixture.at("p/line"), "content": format!("{}!\n", "a".repeat(20_000))});
    fixture.write(&body).await.ok(201);
    for pattern in ["(a+)+$", "(a|a)*b", "(.*)*x(.*)*y", "a{0,500}a{0,500}b"] {
        let found = fixture.get("/api/files/grep", "p", &[("pattern", pattern)]).await.ok(200);
        assert_eq!(
            (found["matches"].as_array().unwrap().len(), &found["truncated"]),
            (0, &json!(false)),
            "{pattern}"
        );
    }
    let stars = "*".repeat(10_000);
    for pattern in [stars.clone(), format!("{}x", "*a".repeat(5_000)), "{a,b}".repeat(2_000)] {
        let answer =
            fixture.get("/api/files/search", "p", &[("pattern", &pattern), ("syntax", "glob")]).await;
        assert!([200, 400, 414, 422, 431].contains(&answer.status.as_u16()), "{answer:?}");
    }
}

/// Folders in folders, deeper than any path reaches and than descriptors would last.
async fn deep_trees(fixture: &Fixture<'_>) {
    let depth = 3_000;
    let make = format!(
        "perl -e 'mkdir \"deep\"; chdir \"deep\"; for (1..{depth}) {{ mkdir \"d\" or die; chdir \"d\" or die }}'"
    );
    fixture.shell(&make).await;
    let copied =
        fixture.post("/api/files/copy", &json!({"from": fixture.at("deep"), "to": fixture.at("copy")})).await;
    copied.refused(422, "too_deep");
    fixture.get("/api/files/search", "deep", &[("pattern", "nothing")]).await.ok(200);
    assert_eq!(fixture.remove("deep", &[]).await.ok(200)["removed"], depth + 1);
    // What was copied until then went again.
    fixture.remove("copy", &[]).await.refused(404, "unknown_path");
}

async fn wide_folders(fixture: &Fixture<'_>) {
    let count = if fixture.vm.is_some() { 5_000 } else { 100_000 };
    fixture.shell(&format!("mkdir wide; cd wide; seq -f n%06g 1 {count} | xargs touch")).await;
    let page = fixture.get("/api/ls", "wide", &[("limit", "1000")]).await.ok(200);
    assert_eq!(page["entries"][999]["name"], "n001000");
    assert_eq!(fixture.remove("wide", &[]).await.ok(200)["removed"], count + 1);
}
