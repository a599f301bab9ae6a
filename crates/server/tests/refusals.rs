//! Checks the refusals that operations declare, and the messages of errors, against the sources.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{fs, path::Path};

use skep_api::ErrorCode;

/// Whether a file declares the refusals of operations.
fn declares(path: &str, text: &str) -> bool {
    let is_of_api = path.contains("/api/src/") && !path.ends_with("/api/src/error.rs");
    let has_routes = text.contains(": Route =") || text.contains(": &[ErrorCode]");
    path.ends_with("/server/src/openapi/refusals.rs") || (is_of_api && has_routes)
}

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

/// The texts that may name a route: the file, the route, and what the text is.
const TEXTS_WITH_ROUTES: [(&str, &str, &str); 9] = [
    ("api/src/accounts/requests.rs", "/api/keys", "a description in the OpenAPI document"),
    ("api/src/webhooks/requests.rs", "/api/events", "a description in the OpenAPI document"),
    ("api/src/git/transfer.rs", "/api/git/credentials", "a description in the OpenAPI document"),
    ("server/src/openapi/constraints.rs", "/api/exec", "a description in the OpenAPI document"),
    (
        "server/src/openapi/constraints.rs",
        "/api/swarm/vm/{pid}/exec",
        "a description in the OpenAPI document",
    ),
    ("server/src/openapi/mod.rs", "/api/session", "a description in the OpenAPI document"),
    ("server/src/error.rs", "/api/openapi.json", "the message about an unknown route"),
    ("skep/src/verbs/doctor/git.rs", "/api/git", "a finding of `skep doctor`"),
    ("skep/src/verbs/ticket/batch.rs", "/api/tickets/batch", "the help of a verb"),
];

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
        let mut declaring = sources.iter().filter(|(path, text)| declares(path, text));
        declaring.any(|(_, text)| has_word(text, name))
    };
    let is_constructed = |name: &str| {
        let code = format!("Code::{name}");
        let is_other = |path: &str, text: &str| !declares(path, text) && !is_one_of(path, &NAMING);
        // A constructor for one code, beside the list of all.
        let constructor = format!("Self::new(ErrorCode::{name},");
        sources.iter().any(|(path, text)| match is_other(path, text) {
            true => constructs(&text.replace("ErrorCode::", "Code::"), &code),
            false => text.contains(&constructor),
        })
    };
    let names = ErrorCode::ALL.iter().map(|code| format!("{code:?}"));
    names.filter(|name| is_declared(name) && !is_constructed(name)).collect()
}

/// The routes that string literals of a source contain, such as that of `POST /api/git/add` in a message. A literal that
/// begins with `/api/` is not a text but the path of an operation.
fn routes_in_texts(source: &str) -> Vec<String> {
    let lines = source.lines().map(str::trim_start).filter(|line| !line.starts_with("//"));
    // A literal may continue in the next line.
    let code = lines.collect::<Vec<_>>().join("\n").replace("\\\n", "");
    let in_texts = code.match_indices("/api/").filter(|(at, _)| !code[..*at].ends_with('"'));
    let is_end = |character: char| character.is_whitespace() || "`\\\";,:)?".contains(character);
    in_texts.map(|(at, _)| code[at..].split(is_end).next().unwrap().to_owned()).collect()
}

/// The routes in texts that are not excepted, each with its file.
fn routes_in_messages(sources: &[(String, String)]) -> Vec<String> {
    let is_excepted = |path: &str, route: &str| {
        let mut excepted = TEXTS_WITH_ROUTES.iter();
        excepted.any(|(file, named, _)| path.ends_with(&format!("/{file}")) && *named == route)
    };
    let mut found = Vec::new();
    for (path, text) in sources {
        let routes = routes_in_texts(text).into_iter().filter(|route| !is_excepted(path, route));
        found.extend(routes.map(|route| format!("{path}: {route}")));
    }
    found
}

fn all_sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(".."), &mut found);
    assert!(found.len() > 300, "{} sources", found.len());
    found
}

#[test]
fn every_declared_refusal_is_constructed_somewhere() {
    assert_eq!(never_constructed(&all_sources()), [""; 0]);
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

/// The message of an error is for users of the command too, so it says in words what to do.
#[test]
fn no_message_names_a_route() {
    let sources = all_sources();
    assert_eq!(routes_in_messages(&sources), [""; 0]);
    for (file, route, text) in TEXTS_WITH_ROUTES {
        let mut files = sources.iter().filter(|(path, _)| path.ends_with(&format!("/{file}")));
        let names_it = files.any(|(_, source)| routes_in_texts(source).iter().any(|named| named == route));
        assert!(names_it, "{file} has no {route} in {text}: delete the exception");
    }
}

#[test]
fn a_route_in_a_message_is_found() {
    let source = |path: &str, text: &str| (format!("/crates/{path}"), text.to_owned());
    let error =
        source("store/src/error.rs", "#[error(\"no VM `{vm}`; `GET /api/vms` lists them\")]\nUnknownVm,");
    let continued = source(
        "server/src/routes/keys.rs",
        "let message = \"use POST \\\n    /api/keys, or see \\\n    /api/docs\";",
    );
    let path = source("server/src/routes/vms.rs", "/// `GET /api/vms`\nget, path = \"/api/vms\", // no text");
    let excepted = source("server/src/error.rs", "\"no such path; GET /api/openapi.json lists all paths\"");
    let found = [
        "/crates/store/src/error.rs: /api/vms",
        "/crates/server/src/routes/keys.rs: /api/keys",
        "/crates/server/src/routes/keys.rs: /api/docs",
    ];
    assert_eq!(routes_in_messages(&[error, continued, path, excepted]), found);
}
