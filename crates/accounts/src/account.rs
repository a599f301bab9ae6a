//! Checks of an account's name, roots, networks and limits.

use std::net::IpAddr;

use ipnet::IpNet;
use skep_api::{
    accounts::{ChangeAccount, CreateAccount, GitRelay},
    egress::EgressPolicy,
    keys::Limits,
};

use crate::{DEFAULT_ACCOUNT, Error};

pub const MAX_ACCOUNT_NAME_BYTES: usize = 63;
/// The maximum number of roots, and of networks.
pub const MAX_LIST_ENTRIES: usize = 100;
/// The largest quota of memory or disk space, in MiB. One exbibyte, which every store can represent.
pub const MAX_QUOTA_MB: u64 = 1 << 40;
/// `PATH_MAX` of the kernel, in bytes with the terminating zero.
const PATH_MAX: usize = 4_096;

/// A valid new account, provided that its name and its folder are not in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountGrant {
    /// Matches `[a-z0-9][a-z0-9-]{0,62}`.
    pub name: String,
    /// Absolute paths; `None` if the server is to create a folder.
    pub roots: Option<Vec<String>>,
    /// Networks in canonical form.
    pub allowed_ips: Vec<String>,
    pub limits: Limits,
    pub egress: EgressPolicy,
    pub git_relay: GitRelay,
}

/// Checks whether an account can be created as requested.
///
/// # Errors
/// The first invalid value.
pub fn check_account(request: &CreateAccount) -> Result<AccountGrant, Error> {
    check_name(&request.name)?;
    request.roots.as_deref().map(check_roots).transpose()?;
    let allowed_ips = parse_networks(request.allowed_ips.as_deref().unwrap_or_default())?;
    check_size("max_memory_mb", request.max_memory_mb)?;
    check_size("max_disk_mb", request.max_disk_mb)?;
    Ok(AccountGrant {
        name: request.name.clone(),
        roots: request.roots.clone(),
        allowed_ips,
        limits: Limits {
            max_vms: request.max_vms,
            max_memory_mb: request.max_memory_mb,
            max_paused_vms: request.max_paused_vms,
            max_disk_mb: request.max_disk_mb,
        },
        egress: request.egress.clone().unwrap_or_default(),
        git_relay: request.git_relay.unwrap_or_default(),
    })
}

/// Checks whether an account can be changed as requested, and returns the change with its networks in canonical form.
///
/// # Errors
/// The first invalid value.
pub fn check_account_change(request: &ChangeAccount) -> Result<ChangeAccount, Error> {
    request.roots.as_deref().map(check_roots).transpose()?;
    check_size("max_memory_mb", request.max_memory_mb.flatten())?;
    check_size("max_disk_mb", request.max_disk_mb.flatten())?;
    let allowed_ips = request.allowed_ips.as_deref().map(parse_networks).transpose()?;
    Ok(ChangeAccount { allowed_ips, ..request.clone() })
}

/// Checks whether requests can set the roots of the account with this name.
///
/// # Errors
/// [`Error::DefaultRoots`]: the roots of `default` come from the server's configuration, which every start applies
/// again.
pub fn check_can_set_roots(name: &str) -> Result<(), Error> {
    if name == DEFAULT_ACCOUNT { Err(Error::DefaultRoots) } else { Ok(()) }
}

fn check_name(name: &str) -> Result<(), Error> {
    let is_alphanumeric = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let is_valid = name.len() <= MAX_ACCOUNT_NAME_BYTES
        && name.bytes().next().is_some_and(is_alphanumeric)
        && name.bytes().all(|byte| is_alphanumeric(byte) || byte == b'-');
    if is_valid { Ok(()) } else { Err(Error::AccountName { name: truncated(name) }) }
}

fn check_roots(roots: &[String]) -> Result<(), Error> {
    if roots.is_empty() {
        return Err(Error::NoRoots);
    }
    check_count("roots", roots.len())?;
    for root in roots {
        let why = if !root.starts_with('/') {
            "it is not absolute"
        } else if root.contains('\0') {
            "it holds a NUL byte"
        } else if root.len() >= PATH_MAX {
            "it is too long for a path"
        } else if root.split('/').any(|name| name == "." || name == "..") {
            "it holds `.` or `..`"
        } else {
            continue;
        };
        return Err(Error::Root { root: truncated(root), why });
    }
    Ok(())
}

/// Networks in canonical form: without host bits.
fn parse_networks(given: &[String]) -> Result<Vec<String>, Error> {
    check_count("allowed_ips", given.len())?;
    given.iter().map(|text| parse_network(text).map(|network| network.to_string())).collect()
}

fn parse_network(text: &str) -> Result<IpNet, Error> {
    let parsed = text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
    let network = parsed.ok_or_else(|| Error::NotANetwork { text: truncated(text) })?.trunc();
    // IPv4 callers are compared as IPv4 addresses, so an IPv4-mapped IPv6 network would never match.
    match network {
        IpNet::V6(six) if six.prefix_len() >= 96 && six.network().to_ipv4_mapped().is_some() => {
            Err(Error::MappedNetwork { text: truncated(text) })
        }
        network => Ok(network),
    }
}

fn check_count(field: &'static str, count: usize) -> Result<(), Error> {
    if count > MAX_LIST_ENTRIES { Err(Error::TooMany { field, count }) } else { Ok(()) }
}

fn check_size(field: &'static str, limit: Option<u64>) -> Result<(), Error> {
    match limit {
        Some(mebibytes) if mebibytes > MAX_QUOTA_MB => Err(Error::SizeLimit { field, mebibytes }),
        _ => Ok(()),
    }
}

/// Truncates a text for an error message.
fn truncated(text: &str) -> String {
    const LONGEST: usize = 100;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use skep_api::ErrorCode;

    use super::*;

    fn named(name: &str) -> CreateAccount {
        CreateAccount { name: name.to_owned(), ..CreateAccount::default() }
    }

    fn from(networks: &[&str]) -> CreateAccount {
        let allowed_ips = networks.iter().map(|text| (*text).to_owned()).collect();
        CreateAccount { allowed_ips: Some(allowed_ips), ..named("acme") }
    }

    #[test]
    fn a_name_is_a_label() {
        for good in ["a", "0", "acme", "team-7", "a-", &"a".repeat(63)] {
            assert_eq!(check_account(&named(good)).unwrap().name, good);
        }
        for wrong in ["", "-a", "Acme", "a_b", "a.b", "a/b", "..", "ä", "a b", "a\n", &"a".repeat(64)] {
            let refusal = check_account(&named(wrong)).unwrap_err();
            assert_eq!(refusal.code(), ErrorCode::InvalidValue, "{wrong}");
            assert!(refusal.to_string().contains("`name`"), "{refusal}");
        }
        assert!(check_account(&named(&"x".repeat(10_000))).unwrap_err().to_string().len() < 300);
    }

    #[test]
    fn roots_are_absolute_and_normalized() {
        let with = |roots: &[&str]| {
            let roots = roots.iter().map(|root| (*root).to_owned()).collect();
            check_account(&CreateAccount { roots: Some(roots), ..named("acme") })
        };
        assert_eq!(with(&["/srv/a", "/srv/ü b"]).unwrap().roots.unwrap().len(), 2);
        assert_eq!(check_account(&named("acme")).unwrap().roots, None);
        for wrong in
            ["", "srv", "./srv", "/srv/../etc", "/srv/.", "/a\0b", &format!("/{}", "a".repeat(5_000))]
        {
            let refusal = with(&[wrong]).unwrap_err();
            assert!(refusal.to_string().contains("`roots`"), "{refusal}");
        }
        assert_eq!(with(&[]), Err(Error::NoRoots));
        assert!(with(&["/a"; MAX_LIST_ENTRIES + 1]).is_err());
    }

    #[test]
    fn networks_have_one_spelling() {
        let granted =
            check_account(&from(&["10.1.2.3/8", "192.0.2.7", "2001:DB8::1/32", "::1", "::/0"])).unwrap();
        assert_eq!(granted.allowed_ips, ["10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32", "::1/128", "::/0"]);
        for wrong in ["", "10.0.0.0/33", "10.0.0/8", "example.com", "10.0.0.0/8 ", "::ffff:10.0.0.0/104"] {
            let refusal = check_account(&from(&[wrong])).unwrap_err();
            assert_eq!(refusal.code(), ErrorCode::InvalidValue, "{wrong}");
            assert!(refusal.to_string().contains("`allowed_ips`"), "{refusal}");
        }
    }

    #[test]
    fn a_change_is_held_to_the_same_rules() {
        let change = |text: &str| serde_json::from_str::<ChangeAccount>(text).unwrap();
        let checked =
            check_account_change(&change(r#"{"allowed_ips": ["10.9.9.9/8"], "max_vms": null}"#)).unwrap();
        assert_eq!((checked.allowed_ips, checked.max_vms), (Some(vec!["10.0.0.0/8".to_owned()]), Some(None)));
        for wrong in [
            r#"{"roots": []}"#,
            r#"{"roots": ["x"]}"#,
            r#"{"allowed_ips": ["x"]}"#,
            r#"{"max_memory_mb": 1099511627777}"#,
            r#"{"max_disk_mb": 1099511627777}"#,
        ] {
            assert_eq!(
                check_account_change(&change(wrong)).unwrap_err().code(),
                ErrorCode::InvalidValue,
                "{wrong}"
            );
        }
        assert_eq!(check_can_set_roots("default").unwrap_err().code(), ErrorCode::AccountProtected);
        assert!(check_can_set_roots("acme").is_ok());
    }

    proptest! {
        #[test]
        fn canonical_networks_are_stable(text in "[0-9a-f.:/]{0,24}") {
            if let Ok(network) = parse_network(&text) {
                let spelled = network.to_string();
                prop_assert_eq!(super::parse_network(&spelled).unwrap().to_string(), spelled);
            }
        }
    }
}
