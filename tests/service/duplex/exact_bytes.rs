//! Input and output are passed on unchanged, as bytes, while the command runs.

use std::fs;

use bytes::Bytes;
use reqwest::Method;
use serde_json::{Value, json};

use super::{noise, read, read_all, start};
use crate::harness::{Skep, refused};

#[tokio::test]
async fn random_bytes_pass_both_ways_unchanged() {
    let skep = Skep::start().await;
    let (mut input, output) = start(&skep, "tee copy; echo done >&2; exit 5").await;
    let bytes = noise(6 << 20);
    let sent = bytes.clone();
    let sending = tokio::spawn(async move {
        assert!(input.write(sent).await.unwrap());
        input.end().await.unwrap();
    });
    let (stdout, stderr, exit) = read_all(output).await;
    sending.await.unwrap();
    assert!(stdout == bytes, "{} of {} bytes", stdout.len(), bytes.len());
    assert_eq!((stderr.as_slice(), exit.exit_code, exit.truncated), (&b"done\n"[..], Some(5), false));
    assert!(fs::read(skep.at("copy")).unwrap() == bytes);
}

#[tokio::test]
async fn a_command_answers_before_its_input_ends() {
    let skep = Skep::start().await;
    let (mut input, mut output) = start(&skep, "cat; echo over").await;
    for line in [&b"one\n"[..], b"half a character: \xE2\x82", b"\xAC\n", b"\0\xFF"] {
        assert!(input.write(Bytes::from_static(line)).await.unwrap());
        assert_eq!(read(&mut output, line.len()).await, line);
    }
    input.end().await.unwrap();
    let (stdout, _, exit) = read_all(output).await;
    assert_eq!((stdout.as_slice(), exit.exit_code), (&b"over\n"[..], Some(0)));
}

#[tokio::test]
async fn a_command_that_takes_only_a_part_of_its_input_ends_as_it_does() {
    let skep = Skep::start().await;
    let (mut input, output) = start(&skep, "head -c 5").await;
    let sending = tokio::spawn(async move { input.write(noise(4 << 20)).await });
    let (stdout, _, exit) = read_all(output).await;
    assert_eq!((stdout.as_slice(), exit.exit_code), (&noise(5)[..], Some(0)));
    assert!(!sending.await.unwrap().unwrap_or(false));
}

#[tokio::test]
async fn events_carry_the_exact_bytes_as_base64() {
    let skep = Skep::start().await;
    let bytes = noise(300_001);
    fs::write(skep.at("noise"), &bytes).unwrap();
    let body = json!({"command": "cat noise", "stream": true, "encoding": "base64"});
    let response = skep.request(Method::POST, "/api/exec").json(&body).send().await.unwrap();
    let text = response.text().await.unwrap();
    let (mut came, mut offset) = (Vec::new(), 0);
    for event in text.split("\n\n").filter(|event| event.starts_with("event: stdout")) {
        let data: Value = serde_json::from_str(event.split_once("data: ").unwrap().1).unwrap();
        came.extend(data_encoding::BASE64.decode(data["data"].as_str().unwrap().as_bytes()).unwrap());
        offset = data["offset"].as_u64().unwrap();
    }
    assert!(came == bytes && offset == bytes.len() as u64, "{} of {}", came.len(), bytes.len());
    let whole = json!({"command": "true", "encoding": "base64"});
    let refusal = refused(skep.request(Method::POST, "/api/exec").json(&whole).send().await.unwrap()).await;
    assert_eq!(refusal.code, "invalid_value");
}
