//! Conversion between the bytes of a file and the text of a request or answer: any encoding of the WHATWG, base64 or
//! hex.

use std::{
    borrow::Cow,
    io::{self, Read},
};

use data_encoding::{BASE64, HEXLOWER_PERMISSIVE};
use encoding_rs::{DecoderResult, Encoding, UTF_8, UTF_16BE, UTF_16LE};

use skep_api::{budget::json_len, files::MAX_CONTENT_BYTES};

use crate::Error;

/// The size of one read, in bytes. A multiple of 3, so that no base64 group is split.
const CHUNK_BYTES: u64 = 192 << 10;

/// How bytes are represented as text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TextEncoding {
    Base64,
    Hex,
    /// An encoding, found by a label of the WHATWG standard (<https://encoding.spec.whatwg.org/#names-and-labels>).
    Text(&'static Encoding),
}

impl TextEncoding {
    pub(super) fn by_label(label: &str) -> Result<Self, Error> {
        match label {
            "base64" => Ok(Self::Base64),
            "hex" => Ok(Self::Hex),
            _ => Encoding::for_label_no_replacement(label.as_bytes()).map(Self::Text).ok_or_else(|| {
                let reason = format!(
                    "is `{label}`, which is not a known encoding; use `utf-8`, `base64`, `hex`, or a label of the WHATWG's list \
                     such as `utf-16le` or `iso-8859-1`"
                );
                Error::InvalidValue { field: "encoding", reason }
            }),
        }
    }

    /// The name of the encoding in an answer.
    pub(super) fn name(self) -> String {
        match self {
            Self::Base64 => "base64".to_owned(),
            Self::Hex => "hex".to_owned(),
            Self::Text(encoding) => encoding.name().to_ascii_lowercase(),
        }
    }

    /// The length of `bytes` bytes when encoded. Exact for base64 and hex; text is measured after decoding.
    pub(super) fn encoded_len(self, bytes: u64) -> u64 {
        match self {
            Self::Base64 => bytes.div_ceil(3).saturating_mul(4),
            Self::Hex => bytes.saturating_mul(2),
            Self::Text(_) => bytes,
        }
    }

    /// Encodes the content of a file chunk by chunk, so that only the encoded text is held in memory as a whole.
    pub(super) fn encode_from(
        self,
        file: &mut impl Read,
        path: &str,
        refused: impl Fn(io::Error) -> Error,
    ) -> Result<String, Error> {
        let mut bytes = Vec::new();
        if self == Self::Text(UTF_8) {
            file.read_to_end(&mut bytes).map_err(refused)?;
            return self.encode(bytes, path);
        }
        let too_long = || Error::ContentTooLong { path: path.to_owned() };
        let mut decoder = match self {
            Self::Text(encoding) => Some(encoding.new_decoder_without_bom_handling()),
            Self::Base64 | Self::Hex => None,
        };
        let mut text = String::new();
        loop {
            bytes.clear();
            file.by_ref().take(CHUNK_BYTES).read_to_end(&mut bytes).map_err(&refused)?;
            let last = bytes.is_empty();
            match &mut decoder {
                Some(decoder) => {
                    let most = decoder.max_utf8_buffer_length_without_replacement(bytes.len());
                    text.reserve(most.ok_or_else(too_long)?);
                    let (result, _) = decoder.decode_to_string_without_replacement(&bytes, &mut text, last);
                    if result != DecoderResult::InputEmpty {
                        return Err(self.not_text(path));
                    }
                }
                None if self == Self::Hex => HEXLOWER_PERMISSIVE.encode_append(&bytes, &mut text),
                None => BASE64.encode_append(&bytes, &mut text),
            }
            if text.len() as u64 > MAX_CONTENT_BYTES {
                return Err(too_long());
            }
            if last {
                break;
            }
        }
        self.check_length(text, path)
    }

    /// Encodes bytes, unless the result as JSON is longer than an answer may be.
    pub(super) fn encode(self, bytes: Vec<u8>, path: &str) -> Result<String, Error> {
        let text = self.encode_unchecked(bytes, path)?;
        self.check_length(text, path)
    }

    fn check_length(self, text: String, path: &str) -> Result<String, Error> {
        if fits_as_json(&text, MAX_CONTENT_BYTES) {
            Ok(text)
        } else {
            Err(Error::ContentTooLong { path: path.to_owned() })
        }
    }

    fn encode_unchecked(self, bytes: Vec<u8>, path: &str) -> Result<String, Error> {
        match self {
            Self::Base64 => Ok(BASE64.encode(&bytes)),
            Self::Hex => Ok(HEXLOWER_PERMISSIVE.encode(&bytes)),
            Self::Text(encoding) if encoding == UTF_8 => {
                String::from_utf8(bytes).map_err(|_| self.not_text(path))
            }
            Self::Text(encoding) => {
                match encoding.decode_without_bom_handling_and_without_replacement(&bytes) {
                    Some(text) => Ok(text.into_owned()),
                    None => Err(self.not_text(path)),
                }
            }
        }
    }

    /// Decodes a text into bytes.
    pub(super) fn decode(self, text: &str) -> Result<Cow<'_, [u8]>, Error> {
        let digits = |name: &str, error: data_encoding::DecodeError| Error::InvalidValue {
            field: "content",
            reason: format!("is not valid {name}: {error}"),
        };
        match self {
            Self::Base64 => {
                Ok(BASE64.decode(text.as_bytes()).map_err(|error| digits("base64", error))?.into())
            }
            Self::Hex => {
                let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes());
                Ok(bytes.map_err(|error| digits("hex", error))?.into())
            }
            // The encoders of the standard never produce UTF-16 (<https://encoding.spec.whatwg.org/#get-an-encoder>).
            Self::Text(encoding) if encoding == UTF_16LE => {
                Ok(text.encode_utf16().flat_map(u16::to_le_bytes).collect::<Vec<_>>().into())
            }
            Self::Text(encoding) if encoding == UTF_16BE => {
                Ok(text.encode_utf16().flat_map(u16::to_be_bytes).collect::<Vec<_>>().into())
            }
            Self::Text(encoding) => match encoding.encode(text) {
                (bytes, _, false) => Ok(bytes),
                (_, _, true) => Err(Error::NotInEncoding { encoding: self.name() }),
            },
        }
    }

    fn not_text(self, path: &str) -> Error {
        Error::NotText { path: path.to_owned(), encoding: self.name() }
    }
}

/// Whether a text as JSON takes at most this many bytes.
fn fits_as_json(text: &str, limit: u64) -> bool {
    // JSON escaping makes a byte at most six times as long, as in `\u0000`.
    text.len() as u64 <= limit / 6 || json_len(text) as u64 <= limit
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn labels_are_those_of_the_web() {
        for (label, name) in [
            ("utf-8", "utf-8"),
            ("UTF8", "utf-8"),
            ("latin1", "windows-1252"),
            ("utf-16", "utf-16le"),
            ("shift_jis", "shift_jis"),
            ("base64", "base64"),
            ("hex", "hex"),
        ] {
            assert_eq!(TextEncoding::by_label(label).unwrap().name(), name, "{label}");
        }
        for label in ["", "utf8mb4", "replacement", "binary", "base32"] {
            assert!(TextEncoding::by_label(label).is_err(), "{label}");
        }
    }

    #[test]
    fn what_is_no_text_in_an_encoding_is_refused() {
        let utf8 = TextEncoding::Text(UTF_8);
        assert!(utf8.encode(vec![0xff], "/f").unwrap_err().to_string().contains("encoding=base64"));
        assert!(TextEncoding::Text(UTF_16LE).encode(vec![0x41], "/f").is_err());
        assert!(TextEncoding::by_label("latin1").unwrap().decode("\u{2603}").is_err());
        assert!(
            TextEncoding::Base64.decode("not base64!").is_err() && TextEncoding::Hex.decode("0").is_err()
        );
    }

    #[test]
    fn content_that_is_too_long_as_json_is_refused() {
        let fits = |text: &str, count: usize| fits_as_json(&text.repeat(count), 600);
        assert!(fits("\u{1}", 99) && !fits("\u{1}", 101));
        assert!(fits("x", 598) && !fits("x", 599), "quotes count too");
        // The limit of an answer.
        let utf8 = TextEncoding::Text(UTF_8);
        let sixth = MAX_CONTENT_BYTES as usize / 6;
        assert!(utf8.encode(vec![1; sixth - 1], "/f").is_ok());
        let refused = utf8.encode(vec![1; sixth + 1], "/f").unwrap_err();
        assert!(refused.to_string().contains("`limit`"), "{refused}");
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

        #[test]
        fn what_is_read_in_pieces_is_what_is_written_down_whole(
            seed in prop::collection::vec(any::<u8>(), 1..50), pieces in 0.0..2.2,
        ) {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small positive number")]
            let length = (pieces * CHUNK_BYTES as f64) as usize;
            let bytes: Vec<u8> = seed.iter().copied().cycle().take(length).collect();
            for label in ["utf-8", "base64", "hex", "latin1", "utf-16le", "shift_jis", "gb18030"] {
                let form = TextEncoding::by_label(label).unwrap();
                let whole = form.encode(bytes.clone(), "/f").ok();
                let read = form.encode_from(&mut bytes.as_slice(), "/f", |error| panic!("{error}")).ok();
                prop_assert!(read == whole, "{label}");
            }
        }
    }

    proptest! {
        #[test]
        fn bytes_come_back(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for form in [TextEncoding::Base64, TextEncoding::Hex] {
                let text = form.encode(bytes.clone(), "/f").unwrap();
                prop_assert_eq!(&*form.decode(&text).unwrap(), &bytes[..]);
            }
        }

        #[test]
        fn text_comes_back(text in "\\PC{0,60}") {
            for label in ["utf-8", "utf-16le", "utf-16be", "gb18030"] {
                let form = TextEncoding::by_label(label).unwrap();
                let bytes = form.decode(&text).unwrap().into_owned();
                prop_assert_eq!(&form.encode(bytes, "/f").unwrap(), &text, "{}", label);
            }
        }
    }
}
