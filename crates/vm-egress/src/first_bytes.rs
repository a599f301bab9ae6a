//! The first bytes of a connection: the host that a TLS ClientHello or the head of an HTTP/1 request names.
//!
//! The server behind an allowed address may read requests more leniently than any standard. So only what cannot be a
//! request counts as another protocol, and what might be one and cannot be read is malformed.

use std::io::Cursor;

use rustls::server::Acceptor;
use skep_api::egress::normalized;

/// Limit of the bytes that are looked at.
pub(crate) const MAX_BYTES: usize = 16 << 10;
const MAX_HEADERS: usize = 128;
/// The content type of a TLS record with a handshake message.
const TLS_HANDSHAKE: u8 = 0x16;
/// The bytes of a TLS record before its content. The last two are the length of the content.
const TLS_RECORD_HEAD_BYTES: usize = 5;

/// What the first bytes say about the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FirstBytes {
    /// They name these hosts.
    Hosts(Vec<String>),
    /// They are complete and name none, or belong to another protocol. No further bytes change that.
    NoHost,
    /// The beginning of a ClientHello or of a request, or of a line that may become one. A guest could send the
    /// rest after the check.
    Incomplete,
    /// They look like TLS or HTTP, but cannot be read. The other end might read a host in them.
    Malformed,
}

/// Reads the first bytes, as far as they have arrived.
pub(crate) fn read(bytes: &[u8]) -> FirstBytes {
    if bytes.first() == Some(&TLS_HANDSHAKE) { read_client_hello(bytes) } else { read_request(bytes) }
}

fn read_client_hello(bytes: &[u8]) -> FirstBytes {
    let mut acceptor = Acceptor::default();
    let mut rest = bytes;
    // Record by record, so that bytes after the ClientHello change nothing.
    while !rest.is_empty() {
        let length = rest
            .get(3..TLS_RECORD_HEAD_BYTES)
            .map_or(0, |length| length.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)));
        let (record, others) = rest.split_at(rest.len().min(TLS_RECORD_HEAD_BYTES + length));
        rest = others;
        let mut record = Cursor::new(record);
        while record.position() < record.get_ref().len() as u64 {
            if acceptor.read_tls(&mut record).is_err() {
                return FirstBytes::Malformed;
            }
            match acceptor.accept() {
                Ok(Some(accepted)) => {
                    let name = accepted.client_hello().server_name().map(normalized);
                    return name.map_or(FirstBytes::NoHost, |name| FirstBytes::Hosts(vec![name]));
                }
                Ok(None) => {}
                Err(_) => return FirstBytes::Malformed,
            }
        }
    }
    FirstBytes::Incomplete
}

fn read_request(bytes: &[u8]) -> FirstBytes {
    let start = bytes.iter().position(|byte| !is_blank(*byte)).unwrap_or(bytes.len());
    let (_, bytes) = bytes.split_at(start);
    if is_other_protocol(bytes) {
        return FirstBytes::NoHost;
    }
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return FirstBytes::Incomplete };
    let (line, _) = bytes.split_at(end);
    if !is_request_line(line) {
        return FirstBytes::NoHost;
    }
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let mut parser = httparse::ParserConfig::default();
    parser.allow_multiple_spaces_in_request_line_delimiters(true);
    match parser.parse_request(&mut request, bytes) {
        Ok(httparse::Status::Complete(_)) => hosts(&request).map_or(FirstBytes::Malformed, |hosts| {
            if hosts.is_empty() { FirstBytes::NoHost } else { FirstBytes::Hosts(hosts) }
        }),
        Ok(httparse::Status::Partial) => FirstBytes::Incomplete,
        Err(_) => FirstBytes::Malformed,
    }
}

/// Whether a byte separates the words of a line. Some servers accept others than a space, and skip all of them before a
/// request.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c)
}

/// Whether the first word, as far as it has arrived, cannot be the method of a request: it is not text, or begins like
/// XML.
fn is_other_protocol(bytes: &[u8]) -> bool {
    let mut word = bytes.iter().take_while(|byte| !is_blank(**byte));
    bytes.first() == Some(&b'<') || word.any(|byte| !byte.is_ascii_graphic())
}

/// Whether a line without its newline is that of an HTTP request, also one that no parser accepts. Requests of HTTP/0.9
/// have no version.
fn is_request_line(line: &[u8]) -> bool {
    let words: Vec<&[u8]> =
        line.split(|byte| is_blank(*byte)).filter(|word| !word.is_empty()).take(3).collect();
    let has_version = line.windows(5).any(|part| part.eq_ignore_ascii_case(b"HTTP/"));
    has_version
        || matches!(words.as_slice(), [method, target] if method.eq_ignore_ascii_case(b"GET")
            && (target.starts_with(b"/") || target.windows(3).any(|part| part == b"://")))
}

/// All hosts that a request names: servers differ in which one they take. `None` if one of them cannot be read.
fn hosts(request: &httparse::Request<'_, '_>) -> Option<Vec<String>> {
    let mut hosts = Vec::new();
    let target = request.path.unwrap_or_default();
    let is_connect = request.method.is_some_and(|method| method.eq_ignore_ascii_case("CONNECT"));
    if is_connect {
        hosts.push(host_of(target)?);
    } else if !target.starts_with('/') && target != "*" {
        let (_, rest) = target.split_once("://")?;
        hosts.push(host_of(rest.split(['/', '?', '#']).next().unwrap_or_default())?);
    }
    for header in request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host")) {
        hosts.push(host_of(std::str::from_utf8(header.value).ok()?.trim())?);
    }
    Some(hosts)
}

/// The host of `host:port`. `None` with user information before it, or a backslash: servers differ in how they read them.
fn host_of(authority: &str) -> Option<String> {
    if authority.contains(['@', '\\']) {
        return None;
    }
    let host = match authority.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => authority,
    };
    Some(normalized(host))
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    pub(crate) fn client_hello(name: &str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = name.to_owned().try_into().unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut hello = Vec::new();
        client.write_tls(&mut hello).unwrap();
        hello
    }

    /// Parts of which the tests compose texts that resemble requests.
    const PARTS: [&str; 18] = [
        "GET",
        " ",
        "\t",
        "/",
        "*",
        "http://b.example",
        "CONNECT",
        "b.example:443",
        "HTTP/1.1",
        "HTTP/1.0",
        "PRI * HTTP/2.0",
        "\r\n",
        "\n",
        "\r",
        "Host: a.example",
        "Host:",
        "\0",
        "<",
    ];

    fn hosts(names: &[&str]) -> FirstBytes {
        FirstBytes::Hosts(names.iter().map(|&name| name.to_owned()).collect())
    }

    #[test]
    fn the_name_of_a_client_hello_is_read_however_it_is_split() {
        let hello = client_hello("Api.example.com");
        assert_eq!(read(&hello), hosts(&["api.example.com"]));
        for end in 1..hello.len() {
            assert_eq!(read(&hello[..end]), FirstBytes::Incomplete, "{end}");
        }
        // In two records, as a client may write it.
        let body = &hello[5..];
        let record = |part: &[u8]| [&[0x16, 3, 1], &(part.len() as u16).to_be_bytes()[..], part].concat();
        let (first, second) = body.split_at(40);
        assert_eq!(read(&[record(first), record(second)].concat()), hosts(&["api.example.com"]));
        assert_eq!(read(&client_hello("192.0.2.7")), FirstBytes::NoHost);
        assert_eq!(
            read(&[client_hello("192.0.2.7"), client_hello("b.example")].concat()),
            FirstBytes::NoHost
        );
        assert_eq!(read(&[0x16, 3, 1, 0, 4, 99, 0, 0, 0]), FirstBytes::Malformed);
    }

    #[test]
    fn all_hosts_of_a_request_are_read() {
        for (request, expected) in [
            ("GET / HTTP/1.1\r\nHost: A.example:8080\r\n\r\n", hosts(&["a.example"])),
            (
                "GET / HTTP/1.1\r\nHost: a.example\r\nhost: b.example\r\n\r\n",
                hosts(&["a.example", "b.example"]),
            ),
            (
                "GET http://b.example/x HTTP/1.1\r\nHost: a.example\r\n\r\n",
                hosts(&["b.example", "a.example"]),
            ),
            ("GET http://b.example:1?y HTTP/1.1\r\n\r\n", hosts(&["b.example"])),
            ("CONNECT B.example:443 HTTP/1.1\r\nHost: a.example\r\n\r\n", hosts(&["b.example", "a.example"])),
            ("GET /x?u=http://b.example/ HTTP/1.1\r\nHost: a.example\r\n\r\n", hosts(&["a.example"])),
            ("OPTIONS * HTTP/1.1\r\nHost: a.example\r\n\r\n", hosts(&["a.example"])),
            ("GET  /  HTTP/1.1\r\nHost: b.example\r\n\r\n", hosts(&["b.example"])),
            (" \n GET / HTTP/1.1\nHost: b.example\n\n", hosts(&["b.example"])),
            ("\r\nGET / HTTP/1.1\r\nHost: b.example\r\n\r\n", hosts(&["b.example"])),
            ("GET / HTTP/1.0\r\n\r\n", FirstBytes::NoHost),
            ("SSH-2.0-OpenSSH_9.2\r\n", FirstBytes::NoHost),
            ("*1\r\n$4\r\nPING\r\n", FirstBytes::NoHost),
            ("EHLO a.example\r\n", FirstBytes::NoHost),
            ("get key\r\n", FirstBytes::NoHost),
            ("AMQP\0", FirstBytes::NoHost),
            ("<?xml", FirstBytes::NoHost),
            ("\u{fd}", FirstBytes::NoHost),
        ] {
            assert_eq!(read(request.as_bytes()), expected, "{request}");
        }
    }

    #[test]
    fn what_may_become_a_request_is_incomplete() {
        for request in [
            "",
            "\r\n",
            "GE",
            "GET ",
            "GET  ",
            "GET\t/",
            "G@T ",
            "\r\nGET / HT",
            "GET / HTTP/1.1\r\nHost: a.exa",
            "get / HTTP/1.1\r\nHo",
            "PRI * HTTP/2.0",
            "SSH-2.0-",
        ] {
            assert_eq!(read(request.as_bytes()), FirstBytes::Incomplete, "{request}");
        }
    }

    #[test]
    fn a_request_that_cannot_be_read_is_malformed() {
        for request in [
            "GET / HTTP/1.1\r\nHost : b.example\r\n\r\n",
            "\r\n\r\nGET / HTTP/1.1\r\nHost : b.example\r\n\r\n",
            "GET\t/ HTTP/1.1\r\nHost: b.example\r\n\r\n",
            "GET / http/1.1\r\nHost: b.example\r\n\r\n",
            "G@T / HTTP/1.1\r\nHost: b.example\r\n\r\n",
            "GET /\u{1} HTTP/1.1\r\nHost: b.example\r\n\r\n",
            "GET / x HTTP/1.1\r\nHost: b.example\r\n\r\n",
            "GET / HTTP/2.0\r\nHost: b.example\r\n\r\n",
            "GET / HTTP/1.1\rHost: b.example\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "GET http://b.example/\r\n",
            "GET /\r\n",
            "GET b.example HTTP/1.1\r\nHost: a.example\r\n\r\n",
            "GET http://a.example@b.example/ HTTP/1.1\r\n\r\n",
            "GET http://b.example\\@a.example/ HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: b.example@a.example\r\n\r\n",
        ] {
            assert_eq!(read(request.as_bytes()), FirstBytes::Malformed, "{request}");
        }
        let many = "a: b\r\n".repeat(MAX_HEADERS + 1);
        let request = format!("GET / HTTP/1.1\r\n{many}Host: b.example\r\n\r\n");
        assert_eq!(read(request.as_bytes()), FirstBytes::Malformed);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..200), tls: bool) {
            let bytes = if tls { [&[TLS_HANDSHAKE, 3, 1][..], &bytes].concat() } else { bytes };
            let _ = read(&bytes);
        }

        /// The process decides by the bytes that have arrived, and does not check those that follow.
        #[test]
        fn further_bytes_change_no_decision(
            parts in prop::collection::vec(0..PARTS.len(), 0..10),
            noise in prop::collection::vec(any::<u8>(), 0..40),
            hello in prop::option::of(any::<bool>()),
        ) {
            let hello = hello.map(|named| client_hello(if named { "api.example.com" } else { "192.0.2.7" }));
            let text = parts.into_iter().flat_map(|part| PARTS[part].as_bytes().to_vec());
            let bytes: Vec<u8> = hello.into_iter().flatten().chain(text).chain(noise).collect();
            let whole = read(&bytes);
            for end in 0..bytes.len() {
                let early = read(&bytes[..end]);
                if matches!(early, FirstBytes::NoHost | FirstBytes::Hosts(_)) {
                    prop_assert_eq!(&early, &whole, "{}", end);
                }
            }
        }
    }
}
