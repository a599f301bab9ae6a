//! What is refused, is refused in both places in the same words.

use reqwest::Method;
use serde_json::json;

use super::fixture::{Fixture, percent_encoded};
use crate::harness::{Answer, Skep, send};

/// Status, code and message of a refusal, wherever the folder lies.
fn refusal(fixture: &Fixture<'_>, answer: &Answer) -> (u16, String, String) {
    let code = answer.headers.get("skep-error").map(|code| code.to_str().unwrap().to_owned());
    let message = answer.body["message"].as_str().unwrap_or_default();
    // A path's length differs with the folder's.
    let counted =
        |name: &str| message.starts_with("`path` ") && name.parse::<u32>().is_ok_and(|number| number > 255);
    let message: Vec<&str> = message.split(' ').map(|word| if counted(word) { "N" } else { word }).collect();
    (answer.status.as_u16(), code.unwrap_or_default(), message.join(" ").replace(&fixture.dir, "DIR"))
}

/// What all the wrong requests were answered.
async fn refusals(fixture: &Fixture<'_>) -> Vec<(String, u16, String, String)> {
    fixture
        .shell(
            "mkdir -p r/full; echo x > r/full/f; printf '\\377\\376\\375' > r/binary; printf 'h\\303\\274' > r/split; \
             ln -s loop2 r/loop1; ln -s loop1 r/loop2; mkfifo r/fifo; ln -s nowhere r/dangling; \
             perl -e 'use Socket; socket(my $s, PF_UNIX, SOCK_STREAM, 0); bind($s, pack_sockaddr_un(\"r/socket\")) or die' \
             ; ln r/full/f r/hard; truncate -s 10T r/sparse",
        )
        .await;
    let long = format!("r/{}", "x/".repeat(2_500));
    let name = format!("r/{}", "n".repeat(256));
    let mut all = Vec::new();
    for (path, query, status, code) in [
        ("r", &[][..], 409, "not_a_file"),
        ("r/none", &[], 404, "unknown_path"),
        ("r/full/f/below", &[], 409, "not_a_directory"),
        ("r/binary", &[], 422, "not_text"),
        ("r/split", &[("limit", "2")], 422, "not_text"),
        ("r/split", &[("encoding", "klingon")], 400, "invalid_value"),
        ("r/split", &[("limit", "0")], 400, "invalid_value"),
        ("r/split", &[("nonsense", "0")], 400, "unknown_field"),
        ("r/loop1", &[], 422, "too_many_links"),
        ("r/dangling", &[], 404, "unknown_path"),
        ("r/fifo", &[], 409, "not_a_file"),
        ("r/socket", &[], 409, "not_a_file"),
        ("r/sparse", &[], 413, "body_too_large"),
        ("r/sparse", &[("offset", "33554432"), ("limit", "33554433")], 413, "body_too_large"),
        ("r/full/f\0.txt", &[], 400, "invalid_value"),
        ("r/%2e%2e/r/full/f", &[], 404, "unknown_path"),
        ("r/..%2f..", &[], 404, "unknown_path"),
        (&long, &[], 400, "invalid_value"),
        (&name, &[], 400, "invalid_value"),
    ] {
        let answer = fixture.read(path, query).await;
        let (found, found_code, message) = refusal(fixture, &answer);
        assert_eq!((found, found_code.as_str()), (status, code), "{fixture:?}: {path} {query:?}: {message}");
        all.push((format!("{path} {query:?}"), found, found_code, message));
    }
    other_refusals(fixture, &mut all).await;
    all
}

/// Those of writes, listings and searches.
async fn other_refusals(fixture: &Fixture<'_>, all: &mut Vec<(String, u16, String, String)>) {
    let body = |name: &str| json!({"path": fixture.at(name), "content": "x"});
    for name in ["r", "r/fifo", "r/socket", "r/loop1", "r/full/f/x"] {
        let answer = fixture.write(&body(name)).await;
        let (status, code, message) = refusal(fixture, &answer);
        assert!([409, 422].contains(&status), "{fixture:?}: {name}: {answer:?}");
        all.push((format!("write {name}"), status, code, message));
    }
    for (route, name) in [("/api/ls", "r/full/f"), ("/api/files/search", "r/full/f"), ("/api/ls", "r/none")] {
        let query: &[(&str, &str)] = if route == "/api/ls" { &[] } else { &[("pattern", "x")] };
        let (status, code, message) = refusal(fixture, &fixture.get(route, name, query).await);
        assert!([404, 409].contains(&status), "{route}");
        all.push((format!("{route} {name}"), status, code, message));
    }
    for pattern in ["(", "a{9999}{9999}", "[z-a]"] {
        let query = [("pattern", pattern), ("syntax", "regex")];
        for route in ["/api/files/search", "/api/files/grep"] {
            let query = if route.ends_with("grep") { &query[..1] } else { &query[..] };
            let (status, code, message) = refusal(fixture, &fixture.get(route, "r", query).await);
            assert_eq!((status, code.as_str()), (422, "invalid_pattern"), "{route} {pattern}: {message}");
            all.push((format!("{route} {pattern}"), status, code, message));
        }
    }
}

#[tokio::test]
async fn refusals_leave_a_vm_unchanged() {
    let skep = Skep::start().await;
    let vm = skep.boot_one().await;
    let (here, there) = (Fixture::on_the_server(&skep).await, Fixture::in_vm(&skep, vm).await);
    let (of_the_server, of_the_vm) = (refusals(&here).await, refusals(&there).await);
    for (here, there) in of_the_server.iter().zip(&of_the_vm) {
        assert_eq!(here, there);
    }
    assert_eq!(of_the_server.len(), of_the_vm.len());
    what_is_allowed_all_the_same(&here).await;
    what_is_allowed_all_the_same(&there).await;
    outside_the_roots(&here).await;
    kernels_own(&there).await;
}

async fn what_is_allowed_all_the_same(fixture: &Fixture<'_>) {
    assert_eq!(fixture.read("r/hard", &[]).await.ok(200)["content"], "x\n", "a hard link is a file");
    let window =
        fixture.read("r/sparse", &[("offset", "9000000000000"), ("limit", "2"), ("encoding", "hex")]).await;
    assert_eq!(window.ok(200)["content"], "0000");
    assert_eq!(fixture.read("r/full/../full/f", &[]).await.ok(200)["content"], "x\n");
    // A name that is not UTF-8.
    fixture.shell("printf wert > \"$(printf 'r/full/n\\377')\"").await;
    let page = fixture.get("/api/ls", "r/full", &[]).await.ok(200);
    let entry = &page["entries"][1];
    assert_eq!((&entry["name"], &entry["name_encoding"]), (&json!("n%FF"), &json!("percent")), "{page}");
    let query = [("path_encoding", "percent")];
    assert_eq!(fixture.read("r/full/n%FF", &query).await.ok(200)["content"], "wert");
    fixture.read("r/full/n%FF", &[]).await.refused(404, "unknown_path");
    let removed = fixture.remove("r/full/n%FF", &query).await.ok(200);
    assert_eq!(removed["path_encoding"], "percent");
    // An absolute link that stays below the roots is followed.
    fixture.shell(&format!("ln -s {} r/absolute", fixture.at("r/full/f"))).await;
    assert_eq!(fixture.read("r/absolute", &[]).await.ok(200)["content"], "x\n", "{fixture:?}");
    fixture.write(&json!({"path": fixture.at("r/absolute"), "content": "through it"})).await.ok(200);
    assert_eq!(fixture.shell("test -L r/absolute && cat r/full/f").await, "through it", "{fixture:?}");
}

async fn outside_the_roots(fixture: &Fixture<'_>) {
    fixture.shell("ln -s /etc/hostname r/out; ln -s ../../../../../../../../etc r/up; ln -s /proc/self/environ r/magic").await;
    for path in ["/etc/hostname", "/proc/self/environ", "/", "/dev/zero"] {
        let answer = send(fixture.request(Method::GET, "/api/files/read", path, &[])).await;
        answer.refused(403, "path_outside_roots");
    }
    for name in ["r/out", "r/up/hostname", "r/magic", "../../../../../../etc/hostname", "r/../../../x"] {
        fixture.read(name, &[]).await.refused(403, "path_outside_roots");
        let write = json!({"path": fixture.at(name), "content": "x"});
        fixture.write(&write).await.refused(403, "path_outside_roots");
    }
    let root = fixture.dir.strip_suffix("/suite").unwrap();
    for path in [root, "/", &format!("{root}/."), &format!("{root}/suite/.."), &format!("{root}/")] {
        let answer = send(fixture.request(Method::DELETE, "/api/files", path, &[])).await;
        answer.refused(403, "path_outside_roots");
    }
    assert!(std::path::Path::new(&fixture.at("r/full/f")).exists());
}

async fn kernels_own(fixture: &Fixture<'_>) {
    fixture.shell("ln -s /proc/self/mem r/mem").await;
    for path in ["/proc/self/mem", "/proc/1/environ", "/sys/power/state", &fixture.at("r/mem")] {
        let answer = send(fixture.request(Method::GET, "/api/files/read", path, &[])).await;
        answer.refused(403, "path_outside_roots");
        let write = json!({"path": path, "content": "x"});
        fixture.write(&write).await.refused(403, "path_outside_roots");
    }
    // A link that only the kernel can resolve is not followed.
    let magic = fixture.request(Method::GET, "/api/files/read", "/proc/self/root/etc/hostname", &[]);
    send(magic).await.refused(422, "too_many_links");
    for path in ["/dev/zero", "/dev/null"] {
        let answer = send(fixture.request(Method::GET, "/api/files/read", path, &[])).await;
        answer.refused(409, "not_a_file");
    }
    for path in ["/", "/proc", "/sys", "/dev"] {
        let answer = send(fixture.request(Method::DELETE, "/api/files", path, &[])).await;
        assert_eq!(answer.status, 403, "{path}: {answer:?}");
    }
    let uri = format!("/api/ls?path={}&vm=vm_01jv0000000000000000000000", percent_encoded("/"));
    fixture.skep.get(&uri).await.refused(404, "unknown_vm");
}
