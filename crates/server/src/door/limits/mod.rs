//! The limits that hold for all callers: connections, headers, timeouts and request rates.

mod buckets;
mod concurrency;
mod descriptors;
mod limiter;
mod rate;
mod without_key;

use std::time::Duration;

pub(crate) use concurrency::{Concurrency, LimitReached, Permit};
pub(crate) use limiter::Limiter;
pub use rate::{InvalidRate, Rate};
pub(crate) use without_key::RequestsWithoutKey;

/// The limits of a server. The defaults suit a server on the open internet.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at the same time. One more is closed at once.
    pub max_connections: usize,
    /// Connections of one address at the same time (IPv6: of one /64). A trusted proxy is not counted.
    pub max_connections_per_address: usize,
    /// HTTP/2 connections at the same time. Each may hold 1 MiB of bodies and the heads of `max_streams` requests before a
    /// request is counted. Of further connections, those that negotiate the protocol by ALPN use HTTP/1.1, and others are closed.
    pub max_http2_connections: usize,
    /// HTTP/2 connections of one address at the same time (IPv6: of one /64), likewise.
    pub max_http2_connections_per_address: usize,
    /// Connections of VMs at the same time. They are counted apart from those of other callers.
    pub max_vm_connections: usize,
    /// Requests under way at the same time, from their heads to the end of their answers. One more is refused.
    pub max_requests: usize,
    /// Requests of one address under way (IPv6: of one /64).
    pub max_requests_per_address: usize,
    /// Requests of one account under way.
    pub max_requests_per_account: usize,
    /// Requests of one HTTP/2 connection at the same time.
    pub max_streams: u32,
    /// Bytes of a request's head: its first line and its headers.
    pub max_header_bytes: usize,
    /// Headers of an HTTP/1.1 request.
    pub max_headers: usize,
    /// How long a TLS handshake, or the head of a request once it has begun, may take to arrive.
    pub header_timeout: Duration,
    /// How long a connection may stay open without a request.
    pub idle_timeout: Duration,
    /// How long the body of a request may take in all.
    pub body_timeout: Duration,
    /// How long a body may bring nothing, or less than 1 KiB for each second.
    pub body_stall: Duration,
    /// How long a caller may leave a response unread.
    pub write_timeout: Duration,
    /// Interval of HTTP/2 pings.
    pub ping_interval: Duration,
    /// How long the peer may take to answer a ping.
    pub ping_timeout: Duration,
    /// Requests of one key. `None`: not limited.
    pub rate_limit: Option<Rate>,
    /// Requests of one address (IPv6: of one /64). `None`: not limited.
    pub address_rate_limit: Option<Rate>,
    /// Failed authentications of one address (IPv6: of one /64).
    pub failed_auth_limit: Rate,
    /// Entries on the waitlist from one address (IPv6: of one /64).
    pub waitlist_limit: Rate,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_connections: 16_384,
            max_connections_per_address: 1_024,
            max_http2_connections: 128,
            max_http2_connections_per_address: 8,
            max_vm_connections: 4_096,
            max_requests: 16_384,
            max_requests_per_address: 2_048,
            max_requests_per_account: 2_048,
            max_streams: 512,
            max_header_bytes: 80 << 10,
            max_headers: 100,
            header_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(75),
            body_timeout: Duration::from_secs(300),
            body_stall: Duration::from_secs(30),
            write_timeout: Duration::from_secs(60),
            ping_interval: Duration::from_secs(20),
            ping_timeout: Duration::from_secs(20),
            rate_limit: None,
            address_rate_limit: None,
            failed_auth_limit: Rate::FAILED_AUTHENTICATIONS,
            waitlist_limit: Rate::WAITLIST,
        }
    }
}

/// How long a body may take to arrive. An extension of each request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyTimeouts {
    /// For the entire body.
    pub total: Duration,
    /// The longest time without data, or with less than 1 KiB/s.
    pub stall: Duration,
}

impl Default for BodyTimeouts {
    fn default() -> Self {
        Self { total: Duration::from_secs(300), stall: Duration::from_secs(30) }
    }
}

/// The key by which an address is counted: an IPv6 address counts as its /64, because one caller usually has all of it.
pub(crate) fn limit_key(address: std::net::IpAddr) -> std::net::IpAddr {
    match address.to_canonical() {
        std::net::IpAddr::V6(address) => {
            let network = u128::from(address) & (u128::MAX << 64);
            std::net::IpAddr::V6(network.into())
        }
        v4 => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_network_are_one_caller() {
        for (one, other, same) in [
            ("2001:db8::1", "2001:db8::ffff:1", true),
            ("2001:db8::1", "2001:db8:0:1::1", false),
            ("::ffff:192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
        ] {
            let counted = |text: &str| limit_key(text.parse().unwrap());
            assert_eq!(counted(one) == counted(other), same, "{one} {other}");
        }
    }
}
