//! Whatever a guest sends to the DNS forwarder, it gets no answer or a small one to its question, with no address but the one
//! that the forwarder chose.
//!
//! The first byte says what the forwarder decides.

#![no_main]

#[path = "../../crates/vm-egress/src/dns/message.rs"]
mod message;

use std::net::Ipv4Addr;

use hickory_resolver::proto::{
    op::{Message, MessageType, ResponseCode},
    rr::{RData, rdata::A},
};
use libfuzzer_sys::fuzz_target;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
/// A header, a question and a record, each with the longest name.
const MAX_ANSWER_BYTES: usize = 12 + 2 * 255 + 4 + 14;

fuzz_target!(|input: &[u8]| {
    let [decision, query @ ..] = input else { return };
    let decided = match decision % 3 {
        0 => Ok(Some(ADDRESS)),
        1 => Ok(None),
        _ => Err(ResponseCode::Refused),
    };
    let mut asked = None;
    let answer = message::answer(query, |name, _| {
        assert!(skep_api::egress::is_name(name), "{name}");
        asked = Some(name.to_owned());
        decided
    });
    let Some(answer) = answer else { return };
    assert!(answer.len() <= MAX_ANSWER_BYTES, "{}", answer.len());
    let answer = Message::from_vec(&answer).expect("an answer that can be read");
    assert_eq!(answer.metadata.message_type, MessageType::Response);
    assert_eq!(Some(answer.metadata.id.to_be_bytes().as_slice()), query.get(..2));
    let addresses: Vec<&RData> = answer.answers.iter().map(|record| &record.data).collect();
    if asked.is_some() && decided == Ok(Some(ADDRESS)) {
        assert_eq!(addresses, [&RData::A(A(ADDRESS))]);
        assert_eq!(answer.answers[0].name, *answer.queries[0].name());
    } else {
        assert!(addresses.is_empty(), "{addresses:?}");
    }
    assert!(answer.authorities.is_empty() && answer.additionals.is_empty());
});
