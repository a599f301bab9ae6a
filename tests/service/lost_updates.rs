//! Concurrent writers with the same tag of a file: one write succeeds, the others are refused.

use futures_util::future::join_all;
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use crate::harness::Skep;

const WRITERS: usize = 64;
const ROUNDS: usize = 40;
/// Rounds of the variants.
const VARIANT_ROUNDS: usize = 20;

/// How a writer writes.
#[derive(Clone, Copy)]
enum WriteMethod {
    Json,
    Raw,
}

/// The precondition of a write.
#[derive(Clone, Copy)]
enum Condition<'a> {
    Match(&'a str),
    Absent,
}

fn writing(
    skep: &Skep,
    by: WriteMethod,
    path: &str,
    content: &str,
    condition: Condition<'_>,
) -> RequestBuilder {
    let request = match by {
        WriteMethod::Json => {
            let body = json!({"path": path, "content": content});
            skep.request(Method::POST, "/api/files/write").json(&body)
        }
        WriteMethod::Raw => skep
            .request(Method::PUT, &format!("/api/files/raw?path={path}"))
            .header("content-type", "application/octet-stream")
            .body(content.to_owned()),
    };
    match condition {
        Condition::Match(tag) => request.header("if-match", tag),
        Condition::Absent => request.header("if-none-match", "*"),
    }
}

/// Sends all requests at once, and returns the accepted ones with their answers. Each refusal must be a 412.
async fn accepted(requests: Vec<(String, RequestBuilder)>) -> Vec<(String, Value)> {
    let answers = join_all(requests.into_iter().map(|(content, request)| async move {
        let answer = request.send().await.unwrap();
        match answer.status() {
            StatusCode::PRECONDITION_FAILED => None,
            StatusCode::OK | StatusCode::CREATED => Some((content, answer.json::<Value>().await.unwrap())),
            status => panic!("{status}: {}", answer.text().await.unwrap()),
        }
    }));
    answers.await.into_iter().flatten().collect()
}

async fn content(skep: &Skep, path: &str) -> (String, String) {
    let read: Value = skep.get(&format!("/api/files/read?path={path}")).await.json().await.unwrap();
    (read["content"].as_str().unwrap().to_owned(), read["etag"].as_str().unwrap().to_owned())
}

async fn written(skep: &Skep, path: &str, content: &str) -> String {
    let body = json!({"path": path, "content": content});
    let answer = skep.request(Method::POST, "/api/files/write").json(&body).send().await.unwrap();
    answer.json::<Value>().await.unwrap()["etag"].as_str().unwrap().to_owned()
}

/// Runs rounds of writers with the same tag, over different servers, paths and methods.
async fn one_wins_each_round(servers: &[&Skep], paths: &[String], ways: &[WriteMethod], rounds: usize) {
    let path = &paths[0];
    let mut tag = written(servers[0], path, "beginning").await;
    for round in 0..rounds {
        let requests = (0..WRITERS).map(|n| {
            let (skep, path) = (servers[n % servers.len()], &paths[n / servers.len() % paths.len()]);
            let by = ways[n / (servers.len() * paths.len()) % ways.len()];
            let content = format!("round {round} writer {n}");
            let request = writing(skep, by, path, &content, Condition::Match(&tag));
            (content, request)
        });
        let winners = accepted(requests.collect()).await;
        let [(expected, answer)] = &winners[..] else {
            panic!("round {round}: {} writers were accepted: {winners:#?}", winners.len())
        };
        // The next round uses the tag of the answer, so that must be the tag of the stored content.
        let (found, tag_now) = content(servers[0], path).await;
        assert_eq!((&found, tag_now.as_str()), (expected, answer["etag"].as_str().unwrap()));
        tag = tag_now;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_writers_with_one_tag_one_wins() {
    let skep = Skep::start().await;
    one_wins_each_round(&[&skep], &[skep.at("file")], &[WriteMethod::Json], ROUNDS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_uploads_with_one_tag_one_wins() {
    let skep = Skep::start().await;
    one_wins_each_round(&[&skep], &[skep.at("file")], &[WriteMethod::Raw], VARIANT_ROUNDS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn links_to_the_file_and_to_its_folder_are_no_way_around() {
    let skep = Skep::start().await;
    std::fs::create_dir(skep.at("folder")).unwrap();
    std::os::unix::fs::symlink("folder", skep.at("other")).unwrap();
    std::os::unix::fs::symlink("folder/file", skep.at("link")).unwrap();
    let paths = ["folder/file", "other/file", "link"].map(|name| skep.at(name));
    one_wins_each_round(&[&skep], &paths, &[WriteMethod::Json, WriteMethod::Raw], VARIANT_ROUNDS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_on_the_same_data_accept_one_writer_together() {
    let skep = Skep::start().await;
    let beside = skep.start_beside().await;
    one_wins_each_round(
        &[&skep, &beside],
        &[skep.at("file")],
        &[WriteMethod::Json, WriteMethod::Raw],
        ROUNDS,
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_writers_that_want_a_new_file_one_makes_it() {
    let skep = Skep::start().await;
    for round in 0..VARIANT_ROUNDS {
        let path = skep.at(&format!("file-{round}"));
        let requests = (0..WRITERS).map(|n| {
            let by = if n % 2 == 0 { WriteMethod::Json } else { WriteMethod::Raw };
            let content = format!("writer {n}");
            let request = writing(&skep, by, &path, &content, Condition::Absent);
            (content, request)
        });
        let winners = accepted(requests.collect()).await;
        assert_eq!(winners.len(), 1, "round {round}: {winners:#?}");
        assert_eq!(content(&skep, &path).await.0, winners[0].0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_is_appended_is_lost() {
    let skep = Skep::start().await;
    for round in 0..20 {
        // There is no file yet: the first append creates it.
        let path = skep.at(&format!("log-{round}"));
        let requests = (0..WRITERS).map(|n| {
            let line = format!("{n}\n");
            let body = json!({"path": path, "content": line, "append": true});
            (line, skep.request(Method::POST, "/api/files/write").json(&body))
        });
        assert_eq!(accepted(requests.collect()).await.len(), WRITERS);
        let text = content(&skep, &path).await.0;
        let mut lines: Vec<usize> = text.lines().map(|line| line.parse().unwrap()).collect();
        lines.sort_unstable();
        assert_eq!(lines, (0..WRITERS).collect::<Vec<_>>(), "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_appends_with_one_tag_one_wins() {
    let skep = Skep::start().await;
    let path = skep.at("log");
    let mut tag = written(&skep, &path, "").await;
    for round in 0..VARIANT_ROUNDS {
        let requests = (0..WRITERS).map(|n| {
            let body = json!({"path": path, "content": format!("{n}\n"), "append": true});
            let request = skep.request(Method::POST, "/api/files/write").json(&body);
            (n.to_string(), request.header("if-match", &tag))
        });
        let winners = accepted(requests.collect()).await;
        assert_eq!(winners.len(), 1, "round {round}: {winners:#?}");
        let (text, tag_now) = content(&skep, &path).await;
        assert_eq!((text.lines().count(), text.lines().last()), (round + 1, Some(winners[0].0.as_str())));
        tag = tag_now;
    }
}

/// Runs writers with the file's tag concurrently with a call that removes or replaces the file. An accepted write must
/// have come before that call, so its content must not be at the path afterwards.
async fn writes_before_or_not_at_all(other: impl Fn(&Skep) -> RequestBuilder, left: Option<&str>) {
    let skep = Skep::start().await;
    let path = skep.at("file");
    for round in 0..VARIANT_ROUNDS {
        std::fs::write(skep.at("source"), "other").unwrap();
        let tag = written(&skep, &path, "before").await;
        let mut requests: Vec<_> = (0..16)
            .map(|n| {
                (n.to_string(), writing(&skep, WriteMethod::Json, &path, "written", Condition::Match(&tag)))
            })
            .collect();
        requests.insert(round % 16, ("other".to_owned(), other(&skep)));
        let mut accepted: Vec<String> = accepted(requests).await.into_iter().map(|(name, _)| name).collect();
        let all = accepted.len();
        accepted.retain(|name| name != "other");
        assert_eq!(accepted.len(), all - 1, "round {round}: the other call was refused");
        assert!(accepted.len() <= 1, "round {round}: {accepted:?}");
        assert_eq!(std::fs::read_to_string(&path).ok().as_deref(), left, "round {round}: {accepted:?}");
    }
}

fn relocation<'a>(verb: &'a str, from: &'a str, to: &'a str) -> impl Fn(&Skep) -> RequestBuilder + 'a {
    move |skep| {
        let body = json!({"from": skep.at(from), "to": skep.at(to), "overwrite": true});
        skep.request(Method::POST, &format!("/api/files/{verb}")).json(&body)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_removed_does_not_come_back_by_a_write_of_its_old_tag() {
    let remove = |skep: &Skep| skep.request(Method::DELETE, &format!("/api/files?path={}", skep.at("file")));
    writes_before_or_not_at_all(remove, None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_moved_does_not_come_back_by_a_write_of_its_old_tag() {
    writes_before_or_not_at_all(relocation("move", "file", "elsewhere"), None).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_moved_to_a_path_is_not_replaced_by_a_write_of_the_old_tag() {
    writes_before_or_not_at_all(relocation("move", "source", "file"), Some("other")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_copied_to_a_path_is_not_replaced_by_a_write_of_the_old_tag() {
    writes_before_or_not_at_all(relocation("copy", "source", "file"), Some("other")).await;
}
