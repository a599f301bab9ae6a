//! The OpenAPI document and the router agree: every documented operation exists, and every route is documented.

use std::collections::{BTreeMap, BTreeSet};

use reqwest::Method;
use serde_json::{Value, json};
use skep_api::{ErrorCode, Scope};

use crate::{
    harness::{Refused, Skep, answered, refused},
    openapi_completeness::examples,
};

pub(crate) struct Operation {
    pub(crate) method: Method,
    pub(crate) path: String,
    /// `None` where the operation needs no key.
    pub(crate) scopes: Option<Vec<Scope>>,
    /// Alternative scopes, which the operation requires for other resources.
    pub(crate) instead: Vec<Scope>,
    pub(crate) described: Value,
}

impl Operation {
    /// A path that the route matches.
    pub(crate) fn concrete(&self) -> String {
        self.path
            .replace("{pid}", "4242")
            .replace("{id}", "key_x")
            .replace("{delivery}", "dlv_x")
            .replace("{exec_id}", "exec_x")
            .replace("{entry}", "wait_x")
            .replace("{file}", "swagger-ui.css")
    }
}

pub(crate) async fn document(skep: &Skep) -> Value {
    let response = skep.bare(Method::GET, "/api/openapi.json").send().await.unwrap();
    assert_eq!(response.status(), 200);
    response.json().await.unwrap()
}

pub(crate) fn operations(document: &Value) -> Vec<Operation> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, described) in item.as_object().unwrap() {
            let security = described["security"].as_array().unwrap_or_else(|| panic!("{method} {path}"));
            let mut keys = security.iter().filter_map(|one| one.get("bearer")).map(|scopes| {
                let scopes = scopes.as_array().unwrap().iter();
                scopes.map(|scope| scope.as_str().unwrap().parse().unwrap()).collect::<Vec<Scope>>()
            });
            let scopes = keys.next();
            found.push(Operation {
                method: method.to_uppercase().parse().unwrap(),
                path: path.clone(),
                scopes,
                instead: keys.flatten().collect(),
                described: described.clone(),
            });
        }
    }
    found
}

/// A line for the operation, and one for each status with its error codes.
fn summary(operation: &Operation) -> String {
    let Operation { method, path, scopes, instead, described } = operation;
    let names = |scopes: &[Scope]| scopes.iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(" ");
    let mut text = format!("{method} {path} {}\n", described["operationId"].as_str().unwrap());
    text += &match scopes {
        None => "  public\n".to_owned(),
        Some(scopes) if instead.is_empty() => format!("  scopes: {}\n", names(scopes)),
        Some(scopes) => format!("  scopes: {}, or {}\n", names(scopes), names(instead)),
    };
    for parameter in described["parameters"].as_array().into_iter().flatten() {
        let required = if parameter["required"] == true { " (required)" } else { "" };
        let [place, name] = ["in", "name"].map(|field| parameter[field].as_str().unwrap());
        text += &format!("  {place} {name}{required}\n");
    }
    for content in described["requestBody"]["content"].as_object().into_iter().flatten() {
        let (form, schema) = (content.0, content.1["schema"]["$ref"].as_str().unwrap_or("-"));
        text += &format!("  body {form} {}\n", schema.trim_start_matches("#/components/schemas/"));
    }
    for (status, answer) in described["responses"].as_object().unwrap() {
        let codes = answer["headers"]["Skep-Error"]["schema"]["enum"].as_array().into_iter().flatten();
        let codes: Vec<&str> = codes.map(|code| code.as_str().unwrap()).collect();
        text += format!("  {status} {}", codes.join(" ")).trim_end();
        text += "\n";
    }
    text
}

/// What callers rely on. A difference is a change of the API: it belongs in the changelog.
#[tokio::test]
async fn the_operations_are_those_of_the_snapshot() {
    let skep = Skep::start().await;
    let document = document(&skep).await;
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    let operations = operations(&document);
    insta::assert_snapshot!(operations.iter().map(summary).collect::<Vec<_>>().join("\n"));
    let names: BTreeSet<&str> =
        operations.iter().map(|operation| operation.described["operationId"].as_str().unwrap()).collect();
    assert_eq!(names.len(), operations.len(), "each operation has a name of its own");
}

/// From the document to the router: every documented operation exists and requires exactly the documented scopes.
#[tokio::test]
async fn documented_operations_exist_and_require_the_documented_scopes() {
    let skep = Skep::start().await;
    for operation in operations(&document(&skep).await) {
        let Operation { method, path, scopes, .. } = &operation;
        let bare = || skep.bare(method.clone(), &operation.concrete());
        let status = answered(bare()).await.status();
        let Some(scopes) = scopes else {
            // A missing body is refused, but no key is required.
            let expected = if *method == Method::GET { 200 } else { 400 };
            assert_eq!(status, expected, "{method} {path} is public");
            continue;
        };
        assert_eq!(status, 401, "{method} {path}");
        let enough = |scope: &Scope| scopes.contains(scope) || operation.instead.contains(scope);
        let others: Vec<Scope> = Scope::ALL.iter().copied().filter(|scope| !enough(scope)).collect();
        let (without, _) = skep.key(&others).await;
        let (exactly, _) = skep.key(scopes).await;
        if !scopes.is_empty() {
            let response = bare().bearer_auth(without).send().await.unwrap();
            let Refused { status, code, .. } = refused(response).await;
            assert_eq!((status, code.as_str()), (403, "scope_missing"), "{method} {path}");
        }
        // A session is created only at the host of its key.
        let host = skep.session_host(&exactly);
        let response = bare().bearer_auth(exactly).header("host", host).send().await.unwrap();
        assert!(![401, 403, 405].contains(&response.status().as_u16()), "{method} {path}");
        assert_ne!(response.headers().get("skep-error").map(|v| v.as_bytes()), Some(&b"unknown_route"[..]));
    }
}

/// From the router to the document: a path answers no undocumented method.
#[tokio::test]
async fn every_route_is_documented() {
    let skep = Skep::start().await;
    let mut described: BTreeMap<String, Vec<Method>> = BTreeMap::new();
    for operation in operations(&document(&skep).await) {
        described.entry(operation.concrete()).or_default().push(operation.method);
    }
    for (path, methods) in described {
        for method in [Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS]
        {
            let status = skep.request(method.clone(), &path).send().await.unwrap().status();
            assert_eq!(status != 405, methods.contains(&method), "{method} {path}: {status}");
        }
    }
}

#[tokio::test]
async fn every_operation_refuses_unknown_parameters_and_says_so() {
    let skep = Skep::start().await;
    for operation in operations(&document(&skep).await) {
        let Operation { method, path, described, .. } = &operation;
        let request = skep.request(method.clone(), &format!("{}?bogus=1", operation.concrete()));
        let Refused { status, message, .. } = refused(request.send().await.unwrap()).await;
        assert_eq!(status, 400, "{method} {path}");
        assert!(message.contains("`bogus`"), "{method} {path}: {message}");
        for status in ["400", "500"] {
            assert!(described["responses"].get(status).is_some(), "{method} {path} lacks {status}");
        }
        let named: Vec<&str> =
            path.split('/').filter_map(|s| s.strip_prefix('{')?.strip_suffix('}')).collect();
        let parameters = described["parameters"].as_array().cloned().unwrap_or_default();
        let in_path: Vec<&str> =
            parameters.iter().filter(|p| p["in"] == "path").map(|p| p["name"].as_str().unwrap()).collect();
        assert_eq!(in_path, named, "{method} {path}");
    }
}

/// The schema behind a reference, or the schema itself.
pub(crate) fn resolved<'document>(document: &'document Value, schema: &'document Value) -> &'document Value {
    match schema["$ref"].as_str() {
        Some(name) => resolved(document, document.pointer(name.trim_start_matches('#')).unwrap()),
        None => schema,
    }
}

#[tokio::test]
async fn every_body_refuses_unknown_fields_and_the_document_says_so() {
    let skep = Skep::start().await;
    let document = document(&skep).await;
    let mut sent = 0;
    for operation in operations(&document) {
        let Operation { method, path, described, .. } = &operation;
        if ![Method::POST, Method::PATCH].contains(method) {
            continue;
        }
        let mut body = json!({"unheard_of": 1});
        // An operation whose body is not documented takes none.
        if let Some(documented) = described.get("requestBody") {
            let content = &documented["content"]["application/json"];
            let schema = resolved(&document, &content["schema"]);
            assert_eq!(schema["additionalProperties"], false, "{method} {path}");
            // The required fields are present, so only the unknown field can be refused.
            for name in schema["required"].as_array().into_iter().flatten() {
                let name = name.as_str().unwrap();
                body[name] = examples(content)[0][name].clone();
            }
        }
        let request = skep.request(method.clone(), &operation.concrete()).json(&body);
        let Refused { status, code, message } = refused(request.send().await.unwrap()).await;
        assert_eq!((status, code.as_str()), (400, "unknown_field"), "{method} {path}: {message}");
        assert!(message.contains("`unheard_of`"), "{method} {path}: {message}");
        sent += 1;
    }
    assert!(sent > 40, "{sent} bodies were sent");
}

/// Whether each value that a schema allows is an object.
fn allows_objects_only(document: &Value, schema: &Value) -> bool {
    let schema = resolved(document, schema);
    let parts = |kind: &str| schema[kind].as_array().map_or(&[][..], Vec::as_slice);
    let is_object = |part: &Value| allows_objects_only(document, part);
    let is_union = |kind: &str| !parts(kind).is_empty() && parts(kind).iter().all(is_object);
    schema["type"] == "object"
        || parts("allOf").iter().any(is_object)
        || is_union("oneOf")
        || is_union("anyOf")
}

#[tokio::test]
async fn every_answer_in_json_is_an_object() {
    let skep = Skep::start().await;
    let document = document(&skep).await;
    let mut seen = 0;
    // The document of the API is an object too, but has no schema.
    for operation in operations(&document).iter().filter(|operation| operation.path != "/api/openapi.json") {
        let Operation { method, path, described, .. } = operation;
        let answers = described["responses"].as_object().unwrap().iter();
        for (status, answer) in answers.filter(|(status, _)| status.starts_with('2')) {
            let contents = answer["content"].as_object();
            let contents = contents.unwrap_or_else(|| panic!("{method} {path} {status} has no body"));
            if let Some(content) = contents.get("application/json") {
                let schema = &content["schema"];
                assert!(allows_objects_only(&document, schema), "{method} {path} {status}: {schema}");
                seen += 1;
            }
        }
    }
    assert!(seen > 80, "{seen} answers were looked at");
}

#[tokio::test]
async fn every_code_is_listed_and_every_reference_leads_somewhere() {
    let skep = Skep::start().await;
    let document = document(&skep).await;
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let codes: Vec<&str> =
        schemas["ErrorCode"]["enum"].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
    assert_eq!(codes, ErrorCode::ALL.iter().map(|code| code.as_str()).collect::<Vec<_>>());
    let mut references = Vec::new();
    collect(&document, &mut references);
    for reference in references {
        let name = reference.strip_prefix("#/components/schemas/").unwrap();
        assert!(schemas.contains_key(name), "{reference} leads nowhere");
    }
}

fn collect(value: &Value, references: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| match value.as_str() {
            Some(text) if name == "$ref" => references.push(text.to_owned()),
            _ => collect(value, references),
        }),
        Value::Array(values) => values.iter().for_each(|value| collect(value, references)),
        _ => {}
    }
}

#[tokio::test]
async fn a_policy_may_be_null_where_the_document_says_so() {
    let skep = Skep::start().await;
    let document = document(&skep).await;
    let mut seen = BTreeMap::new();
    for operation in operations(&document) {
        let body = &operation.described["requestBody"]["content"]["application/json"]["schema"];
        let body = resolved(&document, body);
        let Some(kinds) = body["properties"]["egress"]["oneOf"].as_array() else { continue };
        let may_be_null = kinds.iter().any(|kind| kind["type"] == "null");
        let request = skep.request(operation.method.clone(), &operation.concrete());
        let body = json!({"name": "acme", "egress": null});
        let status = request.json(&body).send().await.unwrap().status();
        assert_eq!(status != 400, may_be_null, "{} {}: {status}", operation.method, operation.path);
        seen.insert(format!("{} {}", operation.method, operation.path), may_be_null);
    }
    assert_eq!(seen.values().filter(|may_be_null| **may_be_null).count(), 4, "{seen:?}");
    assert_eq!(seen.len(), 5, "{seen:?}");
}

/// Client generators fail on a list whose items have no type.
#[tokio::test]
async fn every_list_has_items_and_a_vm_is_named_by_number_or_text() {
    fn lists_without_items(value: &Value, at: &str, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                // A field of an example may have this name too, and is skipped.
                if fields.get("type").is_some_and(|kind| kind == "array" || kind == &json!(["array", "null"]))
                    && !fields.contains_key("items")
                {
                    found.push(at.to_owned());
                }
                for (name, value) in fields {
                    lists_without_items(value, &format!("{at}/{name}"), found);
                }
            }
            Value::Array(values) => {
                values.iter().for_each(|value| lists_without_items(value, at, found));
            }
            _ => {}
        }
    }
    let skep = Skep::start().await;
    let document = document(&skep).await;
    let mut found = Vec::new();
    lists_without_items(&document, "", &mut found);
    assert_eq!(found, Vec::<String>::new());
    let mut named = 0;
    for operation in operations(&document) {
        let parameters = operation.described["parameters"].as_array().cloned().unwrap_or_default();
        for pid in
            parameters.iter().filter(|parameter| parameter["name"] == "pid" && parameter["in"] == "path")
        {
            let kinds: Vec<&Value> =
                pid["schema"]["anyOf"].as_array().unwrap().iter().map(|kind| &kind["type"]).collect();
            assert_eq!(kinds, ["integer", "string"], "{}", operation.path);
            named += 1;
        }
    }
    assert!(named >= 4, "{named}");
}
