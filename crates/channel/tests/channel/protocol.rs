//! The number of the protocol, between this release and others.

use skep_api::ErrorCode;
use skep_channel::{Error, FIRST_PROTOCOL, Guest, PROTOCOL, UnsupportedProtocol};
use tokio::net::UnixStream;

use crate::{
    fixture::{DEADLINE, Fixture},
    other_release::{ANSWER_OF_FIRST_PROTOCOL, answer_of, play},
};

/// The protocol of an agent that gives this answer.
async fn protocol_of(answer: Vec<u8>) -> Result<u32, Error> {
    let (host, guest) = UnixStream::pair().expect("a pair");
    let playing = tokio::spawn(async move { play(guest, &answer).await });
    let checked = Guest::connect(host, DEADLINE).await.expect("a connection").check_protocol().await;
    playing.abort();
    checked
}

#[tokio::test]
async fn a_guest_names_its_protocol_before_it_has_an_identity() {
    let fixture = Fixture::new();
    assert_eq!(fixture.connect().await.check_protocol().await.expect("a number"), PROTOCOL);
}

/// Proves that the bytes which the guest end sent before it had a protocol number are understood, and taken for the first
/// protocol.
#[tokio::test]
async fn an_agent_from_before_the_number_speaks_the_first_protocol() {
    match (protocol_of(ANSWER_OF_FIRST_PROTOCOL.to_vec()).await, UnsupportedProtocol::check(FIRST_PROTOCOL)) {
        (Ok(protocol), Ok(())) => assert_eq!(protocol, FIRST_PROTOCOL),
        (Err(Error::UnsupportedProtocol(found)), Err(wanted)) => assert_eq!(found, wanted),
        (found, _) => panic!("{found:?}"),
    }
}

#[tokio::test]
async fn a_protocol_of_a_later_release_is_refused_with_both_numbers() {
    assert_eq!(protocol_of(answer_of(PROTOCOL)).await.expect("its number"), PROTOCOL);
    let error = protocol_of(answer_of(PROTOCOL + 1)).await.expect_err("another protocol");
    assert_eq!(error.code(), ErrorCode::Internal);
    let text = error.to_string();
    assert!(text.contains(&format!("protocol {},", PROTOCOL + 1)), "{text}");
    assert!(text.ends_with(&PROTOCOL.to_string()), "{text}");
}
