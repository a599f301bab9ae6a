//! Secrets and signatures of webhooks, as specified by Standard Webhooks.

use data_encoding::BASE64;
use ring::hmac;

const PREFIX: &str = "whsec_";

/// The key of signatures. Its owner sees it only once.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(Vec<u8>);

impl Secret {
    /// `bytes` must come from a cryptographic random source.
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The raw bytes, to be encrypted.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text that its owner gets: the prefix, and base64.
    pub(crate) fn expose(&self) -> String {
        format!("{PREFIX}{}", BASE64.encode(&self.0))
    }

    fn sign(&self, id: &str, timestamp: i64, body: &[u8]) -> String {
        let mut context = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, &self.0));
        context.update(format!("{id}.{timestamp}.").as_bytes());
        context.update(body);
        format!("v1,{}", BASE64.encode(context.sign().as_ref()))
    }
}

/// The signatures of a message by all valid secrets, separated by spaces.
pub(crate) fn signatures(secrets: &[Secret], id: &str, timestamp: i64, body: &[u8]) -> String {
    secrets.iter().map(|secret| secret.sign(id, timestamp, body)).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example in the documentation of Standard Webhooks.
    #[test]
    fn a_signature_matches_the_example_of_the_standard() {
        let secret = BASE64.decode(b"MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let secret = Secret::from_bytes(secret);
        assert_eq!(secret.expose(), "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
        let (id, body) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", br#"{"test": 2432232314}"#);
        let expected = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(signatures(std::slice::from_ref(&secret), id, 1_614_265_330, body), expected);
        let other = Secret::from_bytes(vec![7; 32]);
        let both = signatures(&[secret, other], id, 1_614_265_330, body);
        assert!(both.starts_with(&format!("{expected} v1,")), "{both}");
    }
}
