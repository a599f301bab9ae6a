use std::collections::BTreeMap;

use proptest::prelude::*;
use skep_api::{exec::ExecRequest, keys::CreateKey};

use super::*;

/// The refusal of a text, which must not depend on whether it is parsed at once or field by field.
fn refused<T: DeserializeOwned + fmt::Debug>(text: &str) -> (ErrorCode, String) {
    let failure = parse::<T>(text.as_bytes()).unwrap_err();
    assert_eq!(
        Object::parse(text.as_bytes()).and_then(Object::into_request::<T>).unwrap_err().code,
        failure.code
    );
    (failure.code, failure.message)
}

#[test]
fn a_refusal_names_the_field() {
    for (text, code, name) in [
        (r#"{"command": "id", "commnad": 1}"#, ErrorCode::UnknownField, "`commnad`"),
        ("{}", ErrorCode::MissingParameter, "`command`"),
        (r#"{"command": 7}"#, ErrorCode::InvalidValue, "`command`"),
        (r#"{"command": "id", "env": {"A": 1}}"#, ErrorCode::InvalidValue, "`env.A`"),
        (r#"{"command": "id", "vm": 1.5}"#, ErrorCode::InvalidValue, "`vm`"),
        (r#"{"command": "id", "command": "id"}"#, ErrorCode::MalformedBody, "`command`"),
    ] {
        let (found, message) = refused::<ExecRequest>(text);
        assert_eq!(found, code, "{text}: {message}");
        assert!(message.contains(name) && !message.contains("column"), "{text}: {message}");
    }
    let (code, message) = refused::<CreateKey>(r#"{"name": "x", "role": "boss"}"#);
    assert_eq!(code, ErrorCode::InvalidValue);
    assert!(message.contains("`role`") && message.contains("boss"), "{message}");
    for wrong in ["5", "true", "[]"] {
        let (code, message) = refused::<CreateKey>(&format!(r#"{{"name": "x", "role": {wrong}}}"#));
        assert_eq!(code, ErrorCode::InvalidValue, "{message}");
        assert!(message.starts_with("`role`: ") && message.ends_with("expected a string"), "{message}");
    }
}

#[test]
fn what_is_no_object_is_malformed() {
    for text in ["[]", "null", "1", "\"x\"", "{", "{]", "", "{\"a\": \"\u{0}\"}", "{} {}"] {
        let failure = Object::parse(text.as_bytes()).unwrap_err();
        assert_eq!(failure.code, ErrorCode::MalformedBody, "{text}");
        let typed = parse::<BTreeMap<String, Value>>(text.as_bytes());
        assert_eq!(typed.unwrap_err().code, failure.code, "{text}");
    }
    assert!(Object::parse(b"{\"a\": \"\xff\"}").is_err());
}

#[test]
fn integers_are_accepted_in_every_json_notation() {
    for (text, expected) in [("7", 7), ("7.0", 7), ("7e0", 7), ("70e-1", 7)] {
        let mut object = Object::parse(format!("{{\"n\": {text}}}").as_bytes()).unwrap();
        assert_eq!(object.take_integer("n", 1..=9, "").unwrap(), Some(expected), "{text}");
    }
    assert_eq!(Object::default().take_integer("n", 1..=9, "").unwrap(), None);
    for text in ["0", "10", "-1", "1.5", "1e9", "\"7\"", "true", "null", "[]", "18446744073709551616"] {
        let mut object = Object::parse(format!("{{\"n\": {text}}}").as_bytes()).unwrap();
        let failure = object.take_integer("n", 1..=9, " (so it is)").unwrap_err();
        assert!(failure.message.contains("`n`") && failure.message.contains("1 to 9 (so it is)"), "{text}");
    }
}

#[test]
fn a_long_value_is_cut_in_the_message() {
    let mut object = Object::parse(format!("{{\"n\": \"{}\"}}", "é".repeat(9_999)).as_bytes()).unwrap();
    assert!(object.take_integer("n", 1..=9, "").unwrap_err().message.len() < 300);
}

proptest! {
    #[test]
    fn no_input_panics_the_parser(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = (Object::parse(&bytes), parse::<CreateKey>(&bytes));
    }
}
