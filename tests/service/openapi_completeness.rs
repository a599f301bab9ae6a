//! The OpenAPI document is complete: descriptions, examples, schemas and error codes.

use std::collections::{BTreeMap, BTreeSet};

use jsonschema::Validator;
use serde_json::{Value, json};
use skep_api::ErrorCode;

use crate::{
    harness::Skep,
    openapi::{Operation, document, operations},
};

fn is_text(value: &Value) -> bool {
    value.as_str().is_some_and(|text| !text.trim().is_empty())
}

/// All examples of a body or an answer.
pub(crate) fn examples(content: &Value) -> Vec<Value> {
    let single = content.get("example").cloned();
    let named = content.get("examples").and_then(Value::as_object);
    single
        .into_iter()
        .chain(named.into_iter().flatten().map(|(_, example)| example["value"].clone()))
        .collect()
}

/// The bodies and answers of an operation, each with its location in the document.
fn contents(operation: &Operation) -> Vec<(String, &Value)> {
    let body = operation.described.get("requestBody").map(|body| ("body".to_owned(), body));
    let responses = operation.described["responses"].as_object().unwrap();
    let all = body.into_iter().chain(responses.iter().map(|(status, answer)| (status.clone(), answer)));
    all.flat_map(|(at, holder)| {
        let name = format!("{} {} {at}", operation.method, operation.path);
        let contents = holder["content"].as_object().into_iter().flatten();
        contents.map(move |(kind, content)| (format!("{name} {kind}"), content))
    })
    .collect()
}

#[tokio::test]
async fn every_operation_says_what_it_is() {
    let skep = Skep::start().await;
    let document = document(&skep).await;
    let tags: BTreeSet<&str> =
        document["tags"].as_array().unwrap().iter().map(|tag| tag["name"].as_str().unwrap()).collect();
    for operation in operations(&document) {
        let Operation { method, path, scopes, described, .. } = &operation;
        for field in ["summary", "description", "operationId"] {
            assert!(is_text(&described[field]), "{method} {path} has no {field}");
        }
        let own = described["tags"].as_array().unwrap();
        assert!(own.len() == 1 && tags.contains(own[0].as_str().unwrap()), "{method} {path}: {own:?}");
        if scopes.is_none() {
            assert_eq!(described["security"], json!([{}]), "{method} {path}");
            assert!(described["description"].as_str().unwrap().starts_with("Public."), "{method} {path}");
        }
        for parameter in described["parameters"].as_array().into_iter().flatten() {
            assert!(is_text(&parameter["description"]), "{method} {path}: {parameter}");
            assert!(parameter["schema"].is_object(), "{method} {path}: {parameter}");
            let in_path = parameter["in"] == "path";
            assert!(!in_path || parameter.get("example").is_some(), "{method} {path}: {parameter}");
        }
        let done: Vec<&String> = described["responses"]
            .as_object()
            .unwrap()
            .keys()
            .filter(|status| status.starts_with('2') || *status == "101")
            .collect();
        // Two where the status tells whether a resource was created, or whether the content is partial.
        let two = [["200", "201"], ["200", "206"]];
        assert!(done.len() == 1 || two.iter().any(|two| done == *two), "{method} {path}: {done:?}");
    }
}

#[tokio::test]
async fn every_body_and_answer_has_examples_that_its_schema_allows() {
    let skep = Skep::start().await;
    let document = document(&skep).await;
    // By the text of their schemas, since most refusals have the same.
    let mut validators = BTreeMap::new();
    for operation in operations(&document) {
        let all = contents(&operation);
        // A WebSocket has messages, and no body.
        let answers = operation.described["responses"].as_object().unwrap().keys();
        let answers = answers.filter(|status| *status != "101").count();
        assert!(all.len() >= answers, "{}: an answer without a body", operation.path);
        for (at, content) in all {
            let examples = examples(content);
            assert!(!examples.is_empty(), "{at} has no example");
            let schema = &content["schema"];
            let validator =
                validators.entry(schema.to_string()).or_insert_with(|| validator(&document, schema));
            for example in examples {
                if let Err(error) = validator.validate(&example) {
                    panic!("{at}: {example}: {error}");
                }
            }
            assert!(
                !validator.is_valid(&json!([[7]])) || at.contains("openapi.json"),
                "{at} allows anything"
            );
        }
    }
}

/// The validator of a schema of the document.
fn validator(document: &Value, schema: &Value) -> Validator {
    let mut whole = schema.clone();
    whole["components"] = document["components"].clone();
    jsonschema::draft202012::options().should_validate_formats(true).build(&whole).unwrap()
}

/// Whether a value matches a schema of the document.
pub(crate) fn valid(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    validator(document, schema).validate(value).map_err(|error| error.to_string())
}

#[tokio::test]
async fn every_refusal_has_its_codes() {
    let skep = Skep::start().await;
    let document = document(&skep).await;
    let mut seen = BTreeSet::new();
    for operation in operations(&document) {
        let Operation { method, path, described, .. } = &operation;
        let mut own = BTreeSet::new();
        for (status, answer) in described["responses"].as_object().unwrap() {
            for header in ["X-Request-Id", "Skep-Version"] {
                assert!(answer["headers"][header].is_object(), "{method} {path} {status}: {header}");
            }
            if !status.starts_with(['4', '5']) {
                continue;
            }
            let codes = answer["headers"]["Skep-Error"]["schema"]["enum"].as_array();
            let codes = codes.unwrap_or_else(|| panic!("{method} {path} {status} has no codes"));
            assert_eq!(
                answer["content"]["application/json"]["schema"]["$ref"],
                "#/components/schemas/ErrorBody"
            );
            for code in codes {
                let code = code.as_str().unwrap();
                let known = ErrorCode::ALL.iter().find(|known| known.as_str() == code).unwrap();
                let example = &answer["content"]["application/json"]["examples"][code];
                assert!(is_text(&example["value"]["message"]), "{method} {path} {status} {code}");
                assert!(answer["description"].as_str().unwrap().contains(known.meaning()), "{code}");
                own.insert(code.to_owned());
            }
        }
        for code in needed(&operation) {
            assert!(own.contains(code), "{method} {path} lacks {code}");
        }
        seen.extend(own);
    }
    // No operation answers a wrong method.
    let all: BTreeSet<String> = ErrorCode::ALL.iter().map(|code| code.as_str().to_owned()).collect();
    let elsewhere: Vec<&String> = all.difference(&seen).collect();
    assert_eq!(elsewhere, ["method_not_allowed"]);
}

/// The codes that an operation must document.
fn needed(operation: &Operation) -> Vec<&'static str> {
    let Operation { path, scopes, described, .. } = operation;
    let mut needed = vec!["malformed_request", "unknown_field", "https_required", "rate_limited", "internal"];
    if scopes.is_some() {
        needed.extend(["missing_token", "invalid_token", "token_expired", "address_not_allowed"]);
    }
    if scopes.as_ref().is_some_and(|scopes| !scopes.is_empty()) {
        needed.push("scope_missing");
    }
    if described.get("requestBody").is_some() {
        needed.extend(["malformed_body", "invalid_value", "body_too_large", "not_json"]);
    }
    for (segment, code) in [
        ("{pid}", "unknown_vm"),
        ("/keys/{id}", "unknown_key"),
        ("/tickets/{id}", "unknown_ticket"),
        ("/accounts/{id}", "unknown_account"),
        ("/webhooks/{id}", "unknown_webhook"),
        ("{delivery}", "unknown_delivery"),
    ] {
        needed.extend(path.contains(segment).then_some(code));
    }
    needed
}

#[tokio::test]
async fn every_field_is_described() {
    let skep = Skep::start().await;
    let document = document(&skep).await;
    let mut count = 0;
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        assert!(is_text(&schema["description"]), "{name} has no description");
        count += fields(name, schema);
    }
    for operation in operations(&document) {
        for (at, content) in contents(&operation) {
            count += fields(&at, &content["schema"]);
        }
    }
    assert!(count > 100, "{count} fields were looked at");
}

fn fields(at: &str, schema: &Value) -> usize {
    let mut count = 0;
    // A variant of a union only narrows fields that are described elsewhere.
    let narrows = schema.get("required").is_some() && schema.get("title").is_some();
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        assert!(narrows || is_text(&field["description"]), "{at}.{name} has no description: {field}");
        count += 1 + fields(&format!("{at}.{name}"), field);
    }
    for kind in ["allOf", "oneOf", "anyOf"] {
        count += schema[kind].as_array().into_iter().flatten().map(|part| fields(at, part)).sum::<usize>();
    }
    count + schema.get("items").map_or(0, |items| fields(&format!("{at}[]"), items))
}
