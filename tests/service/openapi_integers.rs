//! The integers in requests: the document states which of them the server accepts.

use reqwest::RequestBuilder;
use serde_json::{Value, json};

use crate::{
    harness::{Refused, Skep, refused},
    openapi::{Operation, document, operations, resolved},
    openapi_completeness::examples,
};

/// Collects the schemas of integers below a schema, each with its path in the body.
fn collect<'a>(document: &'a Value, schema: &'a Value, at: &str, found: &mut Vec<(String, &'a Value)>) {
    let schema = resolved(document, schema);
    let kind = &schema["type"];
    if kind == "integer" || kind.as_array().is_some_and(|kinds| kinds.contains(&json!("integer"))) {
        found.push((at.to_owned(), schema));
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        collect(document, field, &format!("{at}/{name}"), found);
    }
    for part in ["anyOf", "oneOf", "allOf"] {
        schema[part].as_array().into_iter().flatten().for_each(|part| collect(document, part, at, found));
    }
    for part in ["items", "additionalProperties", "if", "then", "else"] {
        if schema[part].is_object() {
            collect(document, &schema[part], at, found);
        }
    }
}

fn parameters(operation: &Operation) -> impl Iterator<Item = &Value> {
    operation.described["parameters"].as_array().into_iter().flatten()
}

/// Clients that are generated from the document hold a number in a type of its format.
#[tokio::test]
async fn every_integer_of_a_request_has_a_maximum_that_its_format_holds() {
    let skep = Skep::start().await;
    let document = document(&skep).await;
    let mut found = Vec::new();
    for operation in operations(&document) {
        let at = format!("{} {}", operation.method, operation.path);
        for parameter in parameters(&operation) {
            let name = format!("{at} ?{}", parameter["name"].as_str().unwrap());
            let schema = document.pointer(&pointer_to(&operation, parameter)).unwrap();
            collect(&document, schema, &name, &mut found);
        }
        let body = format!("{}/requestBody/content/application~1json/schema", pointer(&operation));
        if let Some(schema) = document.pointer(&body) {
            collect(&document, schema, &at, &mut found);
        }
    }
    for (at, schema) in &found {
        let maximum = schema["maximum"].as_u64().unwrap_or_else(|| panic!("{at} has no maximum: {schema}"));
        let largest = if schema["format"] == "int32" { i32::MAX as u64 } else { i64::MAX as u64 };
        assert!(maximum <= largest, "{at}: {schema}");
    }
    assert!(found.len() > 80, "{}", found.len());
}

fn pointer(operation: &Operation) -> String {
    let path = operation.path.replace('~', "~0").replace('/', "~1");
    format!("/paths/{path}/{}", operation.method.as_str().to_lowercase())
}

fn pointer_to(operation: &Operation, parameter: &Value) -> String {
    let index = parameters(operation).position(|one| one == parameter).unwrap();
    format!("{}/parameters/{index}/schema", pointer(operation))
}

/// The fields of a body, with their schemas.
fn fields<'a>(
    document: &'a Value,
    operation: &'a Operation,
) -> impl Iterator<Item = (&'a String, &'a Value)> {
    let body = &operation.described["requestBody"]["content"]["application/json"]["schema"];
    let properties = resolved(document, body)["properties"].as_object();
    properties.into_iter().flatten().map(|(name, schema)| (name, resolved(document, schema)))
}

/// A request with all that the operation requires, and the value of one parameter of the query.
fn with_query(skep: &Skep, operation: &Operation, name: &str, value: u64) -> RequestBuilder {
    let required = parameters(operation)
        .filter(|one| one["in"] == "query" && one["required"] == true && one["name"] != name)
        .map(|one| {
            let value = &one["example"];
            let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            format!("{}={text}&", one["name"].as_str().unwrap())
        });
    let query: String = required.collect();
    skep.request(operation.method.clone(), &format!("{}?{query}{name}={value}", operation.concrete()))
}

/// A request with all fields that the operation requires, and the value of one field.
fn with_field(
    skep: &Skep,
    operation: &Operation,
    document: &Value,
    name: &str,
    value: Value,
) -> RequestBuilder {
    let content = &operation.described["requestBody"]["content"]["application/json"];
    let mut body = json!({ name: value });
    for required in resolved(document, &content["schema"])["required"].as_array().into_iter().flatten() {
        let required = required.as_str().unwrap();
        if required != name {
            body[required] = examples(content)[0][required].clone();
        }
    }
    skep.request(operation.method.clone(), &operation.concrete()).json(&body)
}

async fn is_refused(request: RequestBuilder, at: &str, name: &str) {
    let Refused { status, message, .. } = refused(request.send().await.unwrap()).await;
    assert_eq!(status, 400, "{at}: {message}");
    assert!(message.contains(&format!("`{name}`")), "{at}: {message}");
}

#[tokio::test]
async fn an_integer_above_its_maximum_is_refused_by_name() {
    let skep = Skep::start().await;
    let document = document(&skep).await;
    let mut tried = 0;
    for operation in operations(&document) {
        let at = format!("{} {}", operation.method, operation.path);
        for parameter in parameters(&operation).filter(|one| one["in"] == "query") {
            let Some(maximum) = parameter["schema"]["maximum"].as_u64() else { continue };
            let name = parameter["name"].as_str().unwrap();
            is_refused(with_query(&skep, &operation, name, maximum + 1), &format!("{at} ?{name}"), name)
                .await;
            tried += 1;
        }
        for (name, schema) in fields(&document, &operation) {
            let Some(maximum) = schema["maximum"].as_u64() else { continue };
            let request = with_field(&skep, &operation, &document, name, json!(maximum + 1));
            is_refused(request, &format!("{at} {name}"), name).await;
            tried += 1;
        }
    }
    assert!(tried > 40, "{tried}");
}

/// In JSON Schema, `7.0` is an integer.
#[tokio::test]
async fn an_integer_may_have_a_fraction_of_zero() {
    let skep = Skep::start().await;
    let document = document(&skep).await;
    let mut tried = 0;
    for operation in operations(&document) {
        for (name, schema) in fields(&document, &operation).filter(|(_, schema)| schema["maximum"].is_u64()) {
            let least = schema["minimum"].as_u64().unwrap_or(1).max(1);
            let at = format!("{} {} {name}", operation.method, operation.path);
            // The control is a number with a fraction, which is refused. The operation may refuse the integer for another
            // reason.
            for (fraction, is_integer) in [("0", true), ("5", false)] {
                let value: Value = serde_json::from_str(&format!("{least}.{fraction}")).unwrap();
                assert!(value.is_f64());
                let answer = with_field(&skep, &operation, &document, name, value).send().await.unwrap();
                let (status, text) = (answer.status(), answer.text().await.unwrap());
                let is_refused = text.contains("floating point") || text.contains("whole number");
                assert_eq!(status == 400 && is_refused, !is_integer, "{at} {least}.{fraction}: {text}");
            }
            tried += 1;
        }
    }
    assert!(tried > 20, "{tried}");
}

#[tokio::test]
async fn the_largest_number_of_32_bits_without_a_sign_is_accepted_and_documented_as_int64() {
    let skep = Skep::start().await;
    let document = document(&skep).await;
    let account = &document["components"]["schemas"]["Account"]["properties"];
    let body = json!({"name": "acme", "max_vms": u32::MAX, "max_paused_vms": 1_u32 << 31});
    let created = skep.post("/api/accounts", &body.to_string()).await;
    assert_eq!(created.status(), 201);
    let created: Value = created.json().await.unwrap();
    for field in ["max_vms", "max_paused_vms"] {
        assert_eq!(created[field], body[field]);
        assert_eq!(account[field]["format"], "int64", "{field}");
    }
}
