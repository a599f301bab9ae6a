//! Messages for connection failures.

use skep_client::ConnectionFault;

const ANOTHER_URL: &str = "another URL is given with --url or SKEP_URL";

pub(super) fn message(url: &str, fault: ConnectionFault, why: &str) -> String {
    let url = url.trim_end_matches('/');
    match fault {
        ConnectionFault::Refused => {
            format!("no server is running at {url}; start one with `skep serve` ({ANOTHER_URL})")
        }
        ConnectionFault::Timeout => {
            format!(
                "{url} did not answer in time; check that the server runs and can be reached ({ANOTHER_URL})"
            )
        }
        ConnectionFault::UnknownIssuer => format!(
            "the certificate of {url} is signed by an authority that this machine does not trust; name the certificate \
             of that authority with --ca-file or SKEP_CA_FILE (with `--tls self-signed` the server keeps it in \
             DATA_DIR/server/tls/certificate.pem)"
        ),
        ConnectionFault::WrongCertificate => format!("the certificate of {url} cannot be accepted: {why}"),
        ConnectionFault::NotTls => {
            format!(
                "the server at {url} does not use TLS; write http:// instead of https:// in --url or SKEP_URL"
            )
        }
        ConnectionFault::Other => {
            format!("no connection to {url} ({why}); check the address ({ANOTHER_URL})")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_names_the_server_and_what_to_do() {
        for (fault, expected) in [
            (ConnectionFault::Refused, "skep serve"),
            (ConnectionFault::Timeout, "in time"),
            (ConnectionFault::UnknownIssuer, "--ca-file"),
            (ConnectionFault::WrongCertificate, "expired"),
            (ConnectionFault::NotTls, "http://"),
            (ConnectionFault::Other, "no such host"),
        ] {
            let message = message("https://skep.example/", fault, "no such host, or expired");
            assert!(message.contains(expected) && message.contains("https://skep.example"), "{message}");
        }
    }
}
