//! Checks the URLs of webhooks.

use reqwest::Url;
use skep_api::{ErrorCode, Failure};
use skep_egress::{AddressRefusal, Rules, literal_address};

/// The longest URL, in bytes.
const MAX_URL_BYTES: usize = 2_048;

/// Parses and checks the URL of a webhook. The addresses of a name are checked at each connection instead.
///
/// # Errors
/// `invalid_value`, with the reason.
pub(crate) fn parse_target(text: &str, rules: &Rules) -> Result<Url, Failure> {
    if text.len() > MAX_URL_BYTES {
        return Err(invalid(format!("`url` has {} bytes; at most {MAX_URL_BYTES} are taken", text.len())));
    }
    // `Url::parse` accepts other spellings of the scheme, which the OpenAPI document does not.
    if !text.starts_with("https://") && !text.starts_with("http://") {
        let shown: String = text.chars().take(80).collect();
        return Err(invalid(format!(
            "`url` is {shown:?}; give a URL such as https://hooks.example.com/skep"
        )));
    }
    let url = Url::parse(text).map_err(|error| {
        invalid(format!("`url` cannot be read: {error}; give one such as https://hooks.example.com/skep"))
    })?;
    if url.as_str().len() > MAX_URL_BYTES {
        return Err(invalid(format!(
            "`url` is longer than {MAX_URL_BYTES} bytes once it is encoded; shorten it"
        )));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(invalid(
            "`url` holds a user name or a password; leave them out, the signature authenticates the request",
        ));
    }
    if url.fragment().is_some() {
        return Err(invalid("`url` has a part after `#`, which is never sent; leave it out"));
    }
    let Some(host) = url.host_str() else {
        return Err(invalid("`url` names no host; give one such as https://hooks.example.com/skep"));
    };
    if rules.denies_host(host) {
        return Err(invalid(format!("`url` leads to {host}: {}; name another host", AddressRefusal::Denied)));
    }
    if let Some(address) = literal_address(host)
        && let Err(refusal) = rules.judge(Some(host), address)
    {
        return Err(invalid(format!("`url` leads to {address}: {refusal}; {ALLOW_ADVICE}")));
    }
    if url.scheme() == "http" && !rules.allow.may_name(host) {
        return Err(invalid(format!(
            "`url` is not https; {host} can only be reached by https: give such a URL"
        )));
    }
    Ok(url)
}

/// The advice in the message of a refused address.
pub(crate) const ALLOW_ADVICE: &str = "only the operator of this server can allow it, by `--webhook-allow`";

fn invalid(message: impl Into<String>) -> Failure {
    Failure::new(ErrorCode::InvalidValue, message)
}

#[cfg(test)]
mod tests {
    use skep_egress::Allowlist;

    use super::*;

    fn allowing(entries: &[&str]) -> Rules {
        Rules { allow: Allowlist::parse(entries), ..Rules::default() }
    }

    #[test]
    fn only_public_https_is_taken() {
        let none = Rules::default();
        for good in ["https://hooks.example.com/a?b=c", "https://1.1.1.1:8443/", "https://[2606:4700::1111]/"]
        {
            assert_eq!(parse_target(good, &none).unwrap().as_str(), good);
        }
        let long = format!("https://x.example/{}", "a".repeat(MAX_URL_BYTES));
        for wrong in [
            "",
            "hooks.example.com",
            "/hooks",
            "http://hooks.example.com/",
            "ftp://hooks.example.com/",
            "file:///etc/passwd",
            "https://user@hooks.example.com/",
            "https://:secret@hooks.example.com/",
            "https://hooks.example.com/#part",
            "https://127.0.0.1/",
            "https://127.1/",
            "https://2130706433/",
            "https://0x7f000001/",
            "https://0177.0.0.1/",
            "https://127.0.0.1./",
            "https://①②⑦.0.0.1/",
            "https://[::1]/",
            "https://[::ffff:127.0.0.1]/",
            "https://[::ffff:a9fe:a9fe]/",
            "https://[fe80::1]/",
            "https://[64:ff9b::10.0.0.1]/",
            "https://10.0.0.1/",
            "https://100.64.0.1/",
            "https://169.254.169.254/latest/meta-data",
            "https://224.0.0.1/",
            "https://0.0.0.0/",
            &long,
        ] {
            assert_eq!(parse_target(wrong, &none).unwrap_err().code, ErrorCode::InvalidValue, "{wrong}");
        }
    }

    #[test]
    fn what_the_operator_allows_is_taken_in_plain_text_too() {
        let allowed = allowing(&["127.0.0.1", "receiver.internal"]);
        for good in ["http://127.0.0.1:8080/", "https://127.0.0.1/", "http://receiver.internal/"] {
            assert!(parse_target(good, &allowed).is_ok(), "{good}");
        }
        for wrong in ["http://127.0.0.2/", "http://1.1.1.1/"] {
            assert!(parse_target(wrong, &allowed).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_the_operator_forbids_is_refused() {
        let allowed = allowing(&["10.0.0.0/8"]);
        let rules =
            Rules { deny: Allowlist::parse(&["10.0.0.1", "1.1.1.0/24", "bad.example"]), ..allowed.clone() };
        for url in ["https://10.0.0.1/", "https://1.1.1.1/", "https://BAD.example/", "https://bad.example./"]
        {
            assert!(parse_target(url, &allowed).is_ok(), "the control: {url}");
            let refused = parse_target(url, &rules).unwrap_err();
            assert!(refused.message.contains("the operator forbids it"), "{}", refused.message);
        }
        assert!(parse_target("https://10.0.0.2/", &rules).is_ok());
    }
}
