//! The first bytes of a connection: the host that a TLS ClientHello or the head of an HTTP/1 request names.

use std::io::Cursor;

use rustls::server::Acceptor;
use skep_api::egress::normalized;

/// Limit of the bytes that are looked at.
pub(crate) const MAX_BYTES: usize = 16 << 10;
const MAX_HEADERS: usize = 128;
/// The content type of a TLS record with a handshake message.
const TLS_HANDSHAKE: u8 = 0x16;

/// What the first bytes say about the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FirstBytes {
    /// They name these hosts.
    Hosts(Vec<String>),
    /// They are complete and name none, or belong to another protocol.
    NoHost,
    /// The beginning of a ClientHello or of a request. A peer could withhold the rest until nobody looks any more.
    Incomplete,
    /// None have arrived.
    Silence,
    /// They look like TLS or HTTP/1, but cannot be read. The other end might read a host in them.
    Malformed,
}

/// Reads the first bytes, as far as they have arrived.
pub(crate) fn read(bytes: &[u8]) -> FirstBytes {
    match bytes.first() {
        None => FirstBytes::Silence,
        Some(&TLS_HANDSHAKE) => read_client_hello(bytes),
        Some(_) => read_request(bytes),
    }
}

fn read_client_hello(bytes: &[u8]) -> FirstBytes {
    let mut acceptor = Acceptor::default();
    let mut rest = Cursor::new(bytes);
    while rest.position() < bytes.len() as u64 {
        if acceptor.read_tls(&mut rest).is_err() {
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
    FirstBytes::Incomplete
}

fn read_request(bytes: &[u8]) -> FirstBytes {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => hosts(&request),
        // In another protocol the first line is soon one that no request has.
        Ok(httparse::Status::Partial) => FirstBytes::Incomplete,
        Err(httparse::Error::TooManyHeaders) => FirstBytes::Malformed,
        Err(_) if has_request_line(bytes) => FirstBytes::Malformed,
        Err(_) => FirstBytes::NoHost,
    }
}

/// Whether the first line is that of an HTTP/1 request. Servers skip empty lines before it.
fn has_request_line(bytes: &[u8]) -> bool {
    let line =
        bytes.split(|byte| matches!(byte, b'\r' | b'\n')).find(|line| !line.is_empty()).unwrap_or_default();
    line.windows(7).any(|part| part == b"HTTP/1.")
}

/// All hosts that a request names: servers differ in which one they take.
fn hosts(request: &httparse::Request<'_, '_>) -> FirstBytes {
    let mut hosts = Vec::new();
    let target = request.path.unwrap_or_default();
    let authority =
        target.split_once("://").map(|(_, rest)| rest.split(['/', '?', '#']).next().unwrap_or_default());
    if let Some(authority) = authority {
        hosts.push(host_of(authority));
    }
    for header in request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case("host")) {
        match std::str::from_utf8(header.value) {
            Ok(value) => hosts.push(host_of(value.trim())),
            Err(_) => return FirstBytes::Malformed,
        }
    }
    if hosts.is_empty() { FirstBytes::NoHost } else { FirstBytes::Hosts(hosts) }
}

/// The host of `host:port`, also with user information before it.
fn host_of(authority: &str) -> String {
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let host = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    normalized(host)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};

    use super::*;

    fn client_hello(name: &str) -> Vec<u8> {
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
            ("GET http://x@b.example:1?y HTTP/1.1\r\n\r\n", hosts(&["b.example"])),
            ("GET / HTTP/1.0\r\n\r\n", FirstBytes::NoHost),
            ("GET / HTTP/1.1\r\nHost : b.example\r\n\r\n", FirstBytes::Malformed),
            ("\r\n\r\nGET / HTTP/1.1\r\nHost : b.example\r\n\r\n", FirstBytes::Malformed),
            ("\r\nGET / HTTP/1.1\r\nHost: b.example\r\n\r\n", hosts(&["b.example"])),
            ("GET / HTTP/1.1\r\nHost: a.exa", FirstBytes::Incomplete),
            ("GE", FirstBytes::Incomplete),
            ("get / HTTP/1.1\r\nHo", FirstBytes::Incomplete),
            ("\r\n", FirstBytes::Incomplete),
            ("\r\nGET / HT", FirstBytes::Incomplete),
            ("", FirstBytes::Silence),
            ("SSH-2.0-OpenSSH_9.2\r\n", FirstBytes::NoHost),
            ("*1\r\n$4\r\nPING\r\n", FirstBytes::NoHost),
        ] {
            assert_eq!(read(request.as_bytes()), expected, "{request}");
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

        #[test]
        fn a_damaged_client_hello_is_never_another_protocol(at in 1_usize..200, byte: u8) {
            let mut hello = client_hello("api.example.com");
            let at = at.min(hello.len() - 1);
            hello[at] = byte;
            prop_assert_ne!(read(&hello), FirstBytes::Silence);
        }
    }
}
