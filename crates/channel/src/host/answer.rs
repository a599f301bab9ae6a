//! Parses answers of the guest, which may be hostile.

use memchr::memchr2;
use serde::de::DeserializeOwned;
use tokio::task::spawn_blocking;

use super::{Error, guest::malformed};

/// Longer answers, in bytes, are parsed on a thread for blocking work.
const MAX_INLINE_PARSE_BYTES: usize = 64 << 10;

/// Parses an answer that contains at most `values` JSON values.
pub(super) async fn parse<A: DeserializeOwned + Send + 'static>(
    json: Vec<u8>,
    values: usize,
) -> Result<A, Error> {
    if json.len() <= MAX_INLINE_PARSE_BYTES {
        return parse_now(&json, values);
    }
    spawn_blocking(move || parse_now(&json, values)).await.map_err(malformed)?
}

fn parse_now<A: DeserializeOwned>(json: &[u8], values: usize) -> Result<A, Error> {
    // Checked before parsing: two bytes of JSON may take fifty bytes of memory.
    if has_more_values(json, values) {
        return Err(Error::Malformed(format!("an answer of more than {values} values")));
    }
    serde_json::from_slice(json).map_err(malformed)
}

/// Whether the text has more than `most` JSON values. Each value except the first follows a comma or an opening
/// bracket, so these are counted. In malformed JSON the count is exact up to the byte at which the parser stops.
fn has_more_values(json: &[u8], most: usize) -> bool {
    let (mut count, mut at) = (1, 0);
    while let Some(byte) = json.get(at) {
        at += 1;
        match byte {
            b',' | b'[' | b'{' => count += 1,
            b'"' => at += length_of_string(&json[at..]),
            _ => {}
        }
        if count > most {
            return true;
        }
    }
    false
}

/// The length of the rest of a string after its opening quote, including the closing quote.
fn length_of_string(rest: &[u8]) -> usize {
    let mut at = 0;
    while let Some(found) = rest.get(at..).and_then(|rest| memchr2(b'"', b'\\', rest)) {
        if rest[at + found] == b'"' {
            return at + found + 1;
        }
        // An escaped quote does not end the string.
        at += found + 2;
    }
    rest.len()
}

#[cfg(test)]
mod tests {
    use std::thread::{self, ThreadId};

    use proptest::prelude::*;
    use serde::{Deserialize, Deserializer, de::IgnoredAny};
    use serde_json::Value;

    use super::*;

    /// The number of values, one by one.
    fn counted(json: &[u8]) -> usize {
        (1..).find(|most| !has_more_values(json, *most)).unwrap()
    }

    /// Values, and one for each list and object that is empty.
    fn values(value: &Value) -> usize {
        match value {
            Value::Array(all) => 1 + all.iter().map(values).sum::<usize>().max(1),
            Value::Object(all) => 1 + all.values().map(values).sum::<usize>().max(1),
            _ => 1,
        }
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i32>().prop_map(Value::from),
            "[\\[\\]{},\"\\\\a\n]{0,8}".prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 64, 8, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..8).prop_map(Value::from),
                prop::collection::btree_map("[,\"{\\\\]{0,4}", inner, 0..8)
                    .prop_map(|all| Value::Object(all.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn values_are_counted_outside_of_strings(json in json()) {
            prop_assert_eq!(counted(&serde_json::to_vec(&json).unwrap()), values(&json));
            prop_assert_eq!(counted(&serde_json::to_vec_pretty(&json).unwrap()), values(&json));
        }

        #[test]
        fn no_bytes_break_the_count(bytes in prop::collection::vec(prop_oneof![Just(b'"'), Just(b'\\'), Just(b','), any::<u8>()], 0..100)) {
            has_more_values(&bytes, 7);
        }
    }

    /// The thread on which it was parsed.
    struct ParsedOn(ThreadId);

    impl<'de> Deserialize<'de> for ParsedOn {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            IgnoredAny::deserialize(from).map(|_| Self(thread::current().id()))
        }
    }

    #[tokio::test]
    async fn a_long_answer_is_parsed_on_another_thread() {
        let ParsedOn(short) = parse(b"0".to_vec(), 1).await.unwrap();
        let ParsedOn(long) =
            parse([vec![b' '; MAX_INLINE_PARSE_BYTES], b"0".to_vec()].concat(), 1).await.unwrap();
        assert_eq!(short, thread::current().id());
        assert_ne!(long, thread::current().id());
    }

    #[tokio::test]
    async fn an_answer_is_refused_before_its_values_are_made() {
        for (json, most, fits) in [
            ("[1,2,3]".to_owned(), 4, true),
            ("[1,2,3]".to_owned(), 3, false),
            (format!("[{}1]", "1,".repeat(MAX_INLINE_PARSE_BYTES)), MAX_INLINE_PARSE_BYTES, false),
            (format!("[{}1]", "1,".repeat(MAX_INLINE_PARSE_BYTES)), MAX_INLINE_PARSE_BYTES + 2, true),
        ] {
            let parsed = parse::<Vec<u32>>(json.into_bytes(), most).await;
            assert_eq!(parsed.is_ok(), fits, "{most}");
        }
    }
}
