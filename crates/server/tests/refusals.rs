//! Checks the refusals that operations declare against the sources.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, path::Path};

use skep_api::ErrorCode;

/// The files that declare the refusals of operations, below `crates/`.
const DECLARING: [&str; 5] = [
    "api/src/files/mod.rs",
    "api/src/files/read.rs",
    "api/src/git/mod.rs",
    "api/src/refusals.rs",
    "server/src/openapi/refusals.rs",
];
/// Other files that name codes without constructing them: the list of all codes, and of those that a guest may not send.
const NAMING: [&str; 2] = ["api/src/error.rs", "channel/src/host/guest.rs"];

/// The Rust sources below a folder, without tests and without the client, which only reads codes.
fn sources(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && !matches!(name, "tests" | "suite" | "target" | "client") {
            sources(&path, found);
        } else if name.ends_with(".rs") && name != "tests.rs" {
            let text = fs::read_to_string(&path).unwrap();
            let (code, _inline_tests) = text.split_once("#[cfg(test)]\nmod tests {").unwrap_or((&text, ""));
            found.push((path.to_str().unwrap().to_owned(), code.to_owned()));
        }
    }
}

/// The parts of a text behind a name that is a whole word.
fn behind_word<'a>(text: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    text.match_indices(name).filter_map(move |(at, _)| {
        let (before, after) = (text[..at].chars().next_back(), &text[at + name.len()..]);
        let is_word = !before.is_some_and(is_part) && !after.chars().next().is_some_and(is_part);
        is_word.then_some(after)
    })
}

fn has_word(text: &str, name: &str) -> bool {
    behind_word(text, name).next().is_some()
}

/// Whether a text names a code otherwise than in the pattern of a `match`.
fn constructs(text: &str, code: &str) -> bool {
    behind_word(text, code).any(|after| {
        let after = after.trim_start();
        let is_alternative = after.starts_with('|') && !after.starts_with("||");
        !after.starts_with("=>") && !is_alternative
    })
}

/// The codes that an operation declares and no other source names.
fn never_constructed(sources: &[(String, String)]) -> Vec<String> {
    let is_one_of = |path: &str, files: &[&str]| files.iter().any(|file| path.ends_with(&format!("/{file}")));
    let is_declared = |name: &str| {
        let mut declaring = sources.iter().filter(|(path, _)| is_one_of(path, &DECLARING));
        declaring.any(|(_, text)| has_word(text, name))
    };
    let is_constructed = |name: &str| {
        let code = format!("Code::{name}");
        let is_other = |path: &str| !is_one_of(path, &DECLARING) && !is_one_of(path, &NAMING);
        // A constructor for one code, beside the list of all.
        let constructor = format!("Self::new(ErrorCode::{name},");
        sources.iter().any(|(path, text)| match is_other(path) {
            true => constructs(&text.replace("ErrorCode::", "Code::"), &code),
            false => text.contains(&constructor),
        })
    };
    let names = ErrorCode::ALL.iter().map(|code| format!("{code:?}"));
    names.filter(|name| is_declared(name) && !is_constructed(name)).collect()
}

#[test]
fn every_declared_refusal_is_constructed_somewhere() {
    let mut found = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut found);
    assert!(found.len() > 300, "{} sources", found.len());
    assert_eq!(never_constructed(&found), [""; 0]);
}

#[test]
fn a_refusal_that_is_only_declared_is_found() {
    let source = |path: &str, text: &str| (format!("/crates/{path}"), text.to_owned());
    let list = source("server/src/openapi/refusals.rs", "X = [UnknownVm, VmEnded]");
    let other = source("swarm/src/error.rs", "Self::Ended => ErrorCode::VmEnded, ErrorCode::UnknownVmName");
    let pattern = source(
        "server/src/error.rs",
        "match code {\n    ErrorCode::UnknownVm\n    | ErrorCode::UnknownVm => 404 }",
    );
    assert_eq!(never_constructed(&[list, other, pattern]), ["UnknownVm"]);
}
