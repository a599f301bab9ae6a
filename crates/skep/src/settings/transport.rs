//! Settings for connections: TLS, trusted proxies and limits.

use std::{path::PathBuf, time::Duration};

use anyhow::bail;
use clap::{Args, ValueEnum, value_parser};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use skep_server::{Limits, PublicUrl, Rate, TrustedProxies};

use super::lifetime;

/// Each request under way may have 64 KiB of its answer in memory that reserves nothing.
const MAX_REQUESTS_PER_ACCOUNT: usize = 2_048;

#[derive(Debug, Clone, Args, Serialize, Deserialize)]
pub(crate) struct Transport {
    /// File with the TLS certificate and its chain, in PEM. It is read again when it changes.
    #[arg(long, env = "SKEP_TLS_CERT", value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// File with the private key of the certificate, in PEM. If root starts the server, only root needs to be able to read
    /// it.
    #[arg(long, env = "SKEP_TLS_KEY", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Certificate that the server creates for itself, instead of --tls-cert and --tls-key.
    #[arg(long, env = "SKEP_TLS", value_name = "HOW")]
    pub(crate) tls: Option<GeneratedCertificate>,
    /// Network of a reverse proxy whose `X-Forwarded-For` and `X-Forwarded-Proto` headers are trusted; may be given several
    /// times.
    #[arg(long, env = "SKEP_TRUSTED_PROXY", value_name = "CIDR", value_delimiter = ',')]
    pub(crate) trusted_proxy: Vec<IpNet>,
    /// Address under which browsers reach the server, such as https://skep.example. Login links lead there, and sessions may be
    /// created there. With `localhost`, browsers send the session to programs at other ports too [default: the address that
    /// the request for a link was sent to, if it is an address of the server; in place of `localhost`, 127.0.0.1 and ::1 a host
    /// of the key's own, such as skep-k3v7q2ma.localhost].
    #[arg(long, env = "SKEP_PUBLIC_URL", value_name = "URL")]
    pub(crate) public_url: Option<PublicUrl>,
    /// Maximum number of open connections, and of requests under way. An account may have half as many requests under way, and
    /// at most 2048. At most 128 connections may use HTTP/2. All these are fewer if the server may not open four files for each
    /// connection (`ulimit -Hn`).
    #[arg(long, env = "SKEP_MAX_CONNECTIONS", value_name = "NUMBER", default_value = "16384",
        value_parser = value_parser!(u32).range(1..))]
    pub(crate) max_connections: u32,
    /// Maximum number of open connections per client address (IPv6: per /64). It may have twice as many requests under way. At
    /// most 8 connections may use HTTP/2.
    #[arg(long, env = "SKEP_MAX_CONNECTIONS_PER_ADDRESS", value_name = "NUMBER", default_value = "1024",
        value_parser = value_parser!(u32).range(1..))]
    pub(crate) max_connections_per_address: u32,
    /// Maximum number of concurrent requests per HTTP/2 connection. Until a request has a valid key, at most 16 may be for pages
    /// and routes without a key.
    #[arg(long, env = "SKEP_MAX_STREAMS", value_name = "NUMBER", default_value = "512",
        value_parser = value_parser!(u32).range(1..))]
    pub(crate) max_streams: u32,
    /// Maximum size of the first line and headers of a request, in bytes; at most 16384 over HTTP/2.
    #[arg(long, env = "SKEP_MAX_HEADER_BYTES", value_name = "BYTES", default_value = "81920",
        value_parser = value_parser!(u32).range(8192..=1_048_576))]
    pub(crate) max_header_bytes: u32,
    /// Maximum number of headers of an HTTP/1.1 request.
    #[arg(long, env = "SKEP_MAX_HEADERS", value_name = "NUMBER", default_value = "100",
        value_parser = value_parser!(u32).range(8..=1000))]
    pub(crate) max_headers: u32,
    /// Time limit for a TLS handshake, and for the headers of a request.
    #[arg(long, env = "SKEP_HEADER_TIMEOUT", value_name = "TIME", default_value = "30s", value_parser = lifetime)]
    pub(crate) header_timeout: Duration,
    /// Time limit for a connection without a request.
    #[arg(long, env = "SKEP_IDLE_TIMEOUT", value_name = "TIME", default_value = "75s", value_parser = lifetime)]
    pub(crate) idle_timeout: Duration,
    /// Time limit for the whole body of a request.
    #[arg(long, env = "SKEP_BODY_TIMEOUT", value_name = "TIME", default_value = "5m", value_parser = lifetime)]
    pub(crate) body_timeout: Duration,
    /// Time limit for a client that does not read its response.
    #[arg(long, env = "SKEP_WRITE_TIMEOUT", value_name = "TIME", default_value = "1m", value_parser = lifetime)]
    pub(crate) write_timeout: Duration,
    /// Maximum request rate per key, such as 100/s, 600/m or 10000/h [default: no limit].
    #[arg(long, env = "SKEP_RATE_LIMIT", value_name = "RATE")]
    pub(crate) rate_limit: Option<Rate>,
    /// Maximum request rate per client address (IPv6: per /64) [default: no limit].
    #[arg(long, env = "SKEP_ADDRESS_RATE_LIMIT", value_name = "RATE")]
    pub(crate) address_rate_limit: Option<Rate>,
    /// Maximum rate of failed authentications per client address (IPv6: per /64).
    #[arg(long, env = "SKEP_FAILED_AUTH_LIMIT", value_name = "RATE", default_value = "100/m")]
    pub(crate) failed_auth_limit: Rate,
    /// Maximum rate of waitlist entries per client address.
    #[arg(long, env = "SKEP_WAITLIST_LIMIT", value_name = "RATE", default_value = "5/h")]
    pub(crate) waitlist_limit: Rate,
}

/// Kinds of certificates that the server creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum GeneratedCertificate {
    /// A self-signed certificate. Clients trust it by --ca-file or by its fingerprint.
    SelfSigned,
}

/// Where the certificate comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TlsSource {
    /// No TLS.
    PlainText,
    /// Two files that the operator maintains.
    Files { certificate: PathBuf, key: PathBuf },
    /// Created by the server.
    SelfSigned,
}

impl Transport {
    /// The source of the certificate.
    ///
    /// # Errors
    /// Only one of certificate and key is named, or both a file and a self-signed certificate are requested.
    pub(crate) fn tls_source(&self) -> anyhow::Result<TlsSource> {
        match (self.tls_cert.clone(), self.tls_key.clone(), self.tls) {
            (None, None, None) => Ok(TlsSource::PlainText),
            (Some(certificate), Some(key), None) => Ok(TlsSource::Files { certificate, key }),
            (None, None, Some(GeneratedCertificate::SelfSigned)) => Ok(TlsSource::SelfSigned),
            (Some(_), None, None) => bail!("--tls-cert needs its private key; name its file by --tls-key"),
            (None, Some(_), None) => bail!("--tls-key needs its certificate; name its file by --tls-cert"),
            (_, _, Some(GeneratedCertificate::SelfSigned)) => {
                bail!(
                    "--tls self-signed makes a certificate of its own; give it, or --tls-cert and --tls-key"
                )
            }
        }
    }

    /// Whether keys never cross a network in plain text: the server or a proxy in front of it speaks TLS.
    pub(crate) fn is_encrypted(&self) -> bool {
        self.tls_cert.is_some() || self.tls.is_some() || !self.trusted_proxy.is_empty()
    }

    /// The proxies whose forwarding headers are trusted.
    pub(crate) fn proxies(&self) -> TrustedProxies {
        TrustedProxies::new(self.trusted_proxy.clone())
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            max_connections: self.max_connections as usize,
            max_connections_per_address: self.max_connections_per_address as usize,
            max_requests: self.max_connections as usize,
            max_requests_per_address: 2 * self.max_connections_per_address as usize,
            max_requests_per_account: (self.max_connections as usize)
                .div_ceil(2)
                .min(MAX_REQUESTS_PER_ACCOUNT),
            max_streams: self.max_streams,
            max_header_bytes: self.max_header_bytes as usize,
            max_headers: self.max_headers as usize,
            header_timeout: self.header_timeout,
            idle_timeout: self.idle_timeout,
            body_timeout: self.body_timeout,
            write_timeout: self.write_timeout,
            rate_limit: self.rate_limit,
            address_rate_limit: self.address_rate_limit,
            failed_auth_limit: self.failed_auth_limit,
            waitlist_limit: self.waitlist_limit,
            ..Limits::default()
        }
    }

    /// Makes all paths absolute.
    pub(super) fn absolute(mut self) -> std::io::Result<Self> {
        self.tls_cert = self.tls_cert.map(std::path::absolute).transpose()?;
        self.tls_key = self.tls_key.map(std::path::absolute).transpose()?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use clap::{Parser, error::ErrorKind};

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        transport: Transport,
    }

    fn read(flags: &[&str]) -> Result<Transport, ErrorKind> {
        let line = Line::try_parse_from(["skep"].iter().chain(flags));
        line.map(|line| line.transport).map_err(|error| error.kind())
    }

    #[test]
    fn unset_limits_are_the_servers_defaults() {
        let (ours, theirs) = (read(&[]).unwrap().limits(), Limits::default());
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
        assert!(!read(&[]).unwrap().is_encrypted());
    }

    #[test]
    fn a_certificate_needs_its_key_and_excludes_self_signed() {
        let source = |flags: &[&str]| read(flags).unwrap().tls_source();
        assert_eq!(source(&[]).unwrap(), TlsSource::PlainText);
        assert_eq!(source(&["--tls", "self-signed"]).unwrap(), TlsSource::SelfSigned);
        let files = TlsSource::Files { certificate: "c".into(), key: "k".into() };
        assert_eq!(source(&["--tls-cert", "c", "--tls-key", "k"]).unwrap(), files);
        for (flags, named) in [
            (&["--tls-cert", "c"][..], "--tls-key"),
            (&["--tls-key", "k"], "--tls-cert"),
            (&["--tls-cert", "c", "--tls-key", "k", "--tls", "self-signed"], "--tls self-signed"),
            (&["--tls-key", "k", "--tls", "self-signed"], "--tls self-signed"),
        ] {
            let error = source(flags).unwrap_err().to_string();
            assert!(error.contains(named), "{flags:?}: {error}");
        }
    }

    #[test]
    fn networks_rates_and_durations_are_parsed() {
        let flags = [
            "--trusted-proxy",
            "10.0.0.0/8,fd00::/8",
            "--trusted-proxy",
            "192.0.2.1/32",
            "--rate-limit",
            "5/m",
        ];
        let transport = read(&flags).unwrap();
        assert_eq!(transport.trusted_proxy.len(), 3);
        assert!(transport.is_encrypted());
        assert_eq!(transport.limits().rate_limit, Some("5/m".parse().unwrap()));
        for wrong in [
            ["--trusted-proxy", "10.0.0.1"],
            ["--trusted-proxy", "proxy.example"],
            ["--rate-limit", "5"],
            ["--failed-auth-limit", "0/s"],
            ["--waitlist-limit", "5"],
            ["--max-connections", "0"],
            ["--max-header-bytes", "100"],
            ["--idle-timeout", "0s"],
            ["--tls", "yes"],
        ] {
            assert!(
                matches!(read(&wrong), Err(ErrorKind::ValueValidation | ErrorKind::InvalidValue)),
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn transport_settings_survive_serialization() {
        let flags = [
            "--tls",
            "self-signed",
            "--trusted-proxy",
            "10.0.0.0/8",
            "--rate-limit",
            "5/m",
            "--idle-timeout",
            "9s",
        ];
        let transport = read(&flags).unwrap();
        let text = serde_json::to_string(&transport).unwrap();
        let again: Transport = serde_json::from_str(&text).unwrap();
        assert_eq!(format!("{transport:?}"), format!("{again:?}"));
    }
}
