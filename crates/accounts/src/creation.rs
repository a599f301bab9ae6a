//! The keys that a caller may create, rotate, read or revoke.

use jiff::Timestamp;
use skep_api::{
    Environment, Role, Scope,
    exec::VmField,
    keys::{CreateKey, Key, RotateKey},
};

use crate::{
    Error,
    roles::{allowed_scopes, scopes_of},
    secret::redact_keys,
};

pub const MAX_NAME_CHARACTERS: usize = 100;

/// The account and the creator of a new key.
#[derive(Debug, Clone, Copy)]
pub struct GrantContext<'a> {
    /// The name of the key's account.
    pub account: &'a str,
    /// The scopes of the creator.
    pub creator: &'a [Scope],
}

/// A valid new key, provided that its VM exists and its name is not in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyGrant {
    pub name: String,
    pub environment: Environment,
    /// The role that the scopes were taken from.
    pub role: Option<Role>,
    /// Not empty, without duplicates, in the order of the documentation.
    pub scopes: Vec<Scope>,
    /// The VM to bind the key to; present exactly with role `vm`.
    pub vm: Option<VmField>,
    /// In the future.
    pub expires_at: Option<Timestamp>,
}

/// Checks whether a key can be created as requested.
///
/// # Errors
/// The first problem. Invalid values are reported before missing permissions.
pub fn grant(request: &CreateKey, target: GrantContext<'_>, now: Timestamp) -> Result<KeyGrant, Error> {
    check_name(&request.name)?;
    let scopes = requested_scopes(request, target.account)?;
    match (request.role, &request.vm) {
        (Some(Role::Vm), None) => return Err(Error::VmMissing),
        (Some(Role::Vm), Some(_)) | (_, None) => {}
        (_, Some(_)) => return Err(Error::VmWithoutRole),
    }
    check_expiry(request.expires_at, now)?;
    check_creator_scopes(&scopes, target.creator)?;
    Ok(KeyGrant {
        name: request.name.clone(),
        environment: request.environment.unwrap_or(Environment::Prod),
        role: request.role,
        scopes,
        vm: request.vm.clone(),
        expires_at: request.expires_at,
    })
}

/// Checks whether the creator can rotate a key, and returns when the new key expires. The creator receives a key with
/// all scopes of the old one, so the rules are those for creating a key.
///
/// # Errors
/// The creator lacks a scope of the key, or the new key would be expired already.
pub fn check_rotation(
    old: &Key,
    request: &RotateKey,
    creator: &[Scope],
    now: Timestamp,
) -> Result<Option<Timestamp>, Error> {
    check_creator_scopes(&old.scopes, creator)?;
    if let Some(expires_at) = request.expires_at {
        check_expiry(expires_at, now)?;
        return Ok(expires_at);
    }
    match old.expires_at {
        Some(expires_at) if expires_at <= now => Err(Error::SuccessorExpired { expires_at }),
        expires_at => Ok(expires_at),
    }
}

/// Refuses a time that is not in the future.
///
/// # Errors
/// [`Error::ExpiryPassed`].
pub fn check_expiry(expires_at: Option<Timestamp>, now: Timestamp) -> Result<(), Error> {
    match expires_at {
        Some(expires_at) if expires_at <= now => Err(Error::ExpiryPassed { expires_at, now }),
        _ => Ok(()),
    }
}

fn check_name(name: &str) -> Result<(), Error> {
    let characters = name.chars().count();
    if !(1..=MAX_NAME_CHARACTERS).contains(&characters) {
        return Err(Error::NameLength { characters });
    }
    if name.chars().any(char::is_control) {
        return Err(Error::NameControl { name: name.to_owned() });
    }
    if redact_keys(name) != name {
        return Err(Error::NameHoldsKey);
    }
    Ok(())
}

fn requested_scopes(request: &CreateKey, account: &str) -> Result<Vec<Scope>, Error> {
    let wanted = match (request.role, &request.scopes) {
        (None, None) => return Err(Error::NoPermissions),
        (Some(_), Some(_)) => return Err(Error::RoleAndScopes),
        (Some(role), None) => return Ok(scopes_of(role, account)),
        (None, Some(wanted)) => wanted,
    };
    if wanted.is_empty() {
        return Err(Error::NoScopes);
    }
    let allowed = allowed_scopes(account);
    if wanted.iter().any(|scope| !allowed.contains(scope)) {
        return Err(Error::ServerAdminElsewhere { account: account.to_owned() });
    }
    Ok(allowed.into_iter().filter(|scope| wanted.contains(scope)).collect())
}

/// Checks whether a caller may read or revoke a key. Otherwise a key could end those with more rights than its own, such as
/// the only one of the operator.
///
/// # Errors
/// [`Error::StrongerKey`].
pub fn check_administration(key: &Key, caller: &[Scope]) -> Result<(), Error> {
    let missing = missing_scopes(&key.scopes, caller);
    if missing.is_empty() { Ok(()) } else { Err(Error::StrongerKey { id: key.id, missing }) }
}

fn check_creator_scopes(scopes: &[Scope], creator: &[Scope]) -> Result<(), Error> {
    let missing = missing_scopes(scopes, creator);
    if missing.is_empty() { Ok(()) } else { Err(Error::Escalation { missing }) }
}

fn missing_scopes(scopes: &[Scope], caller: &[Scope]) -> Vec<Scope> {
    scopes.iter().copied().filter(|scope| !caller.contains(scope)).collect()
}

#[cfg(test)]
mod tests {
    use jiff::ToSpan;
    use skep_api::ErrorCode;

    use super::*;

    const OWNER: GrantContext<'_> = GrantContext { account: "default", creator: Scope::ALL };

    fn now() -> Timestamp {
        "2026-05-01T12:00:00Z".parse().unwrap()
    }

    fn request() -> CreateKey {
        CreateKey { name: "ci".to_owned(), role: Some(Role::Agent), ..CreateKey::default() }
    }

    #[test]
    fn invalid_requests_are_refused_with_their_code() {
        let vm = Some(VmField::Pid(42));
        let at = Some(now());
        let name = |name: &str| CreateKey { name: name.to_owned(), ..request() };
        let scopes = |list: &[Scope]| CreateKey { role: None, scopes: Some(list.to_vec()), ..request() };
        let bad = ErrorCode::InvalidValue;
        for (what, asked, code) in [
            ("empty name", name(""), bad),
            ("long name", name(&"é".repeat(101)), bad),
            ("name of two lines", name("a\nb"), bad),
            ("a key for a name", name(&format!("of sk-skep-prod-{}", "0".repeat(64))), bad),
            ("neither role nor scopes", CreateKey { role: None, ..request() }, ErrorCode::MissingParameter),
            ("both", CreateKey { scopes: Some(vec![Scope::Admin]), ..request() }, bad),
            ("no scopes", scopes(&[]), bad),
            ("expiry now", CreateKey { expires_at: at, ..request() }, bad),
            ("expiry before", CreateKey { expires_at: at.map(|t| t - 1.hour()), ..request() }, bad),
            ("vm of an agent", CreateKey { vm: vm.clone(), ..request() }, bad),
            ("vm with scopes", CreateKey { vm, ..scopes(&[Scope::FilesRead]) }, bad),
            ("no vm", CreateKey { role: Some(Role::Vm), ..request() }, ErrorCode::MissingParameter),
        ] {
            let refusal = grant(&asked, OWNER, now()).expect_err(what);
            assert_eq!(refusal.code(), code, "{what}: {refusal}");
        }
    }

    #[test]
    fn what_is_granted_is_complete() {
        let longest = "é".repeat(100);
        let granted = grant(&CreateKey { name: longest.clone(), ..request() }, OWNER, now()).unwrap();
        assert_eq!((granted.name, granted.environment), (longest, Environment::Prod));
        assert_eq!(granted.scopes, scopes_of(Role::Agent, "default"));

        let asked = CreateKey {
            role: Some(Role::Vm),
            environment: Some(Environment::Dev),
            vm: Some(VmField::Text("vm_x".to_owned())),
            expires_at: Some(now() + 1.hour()),
            ..request()
        };
        let granted = grant(&asked, OWNER, now()).unwrap();
        assert_eq!((granted.role, granted.vm), (asked.role, asked.vm));
        assert_eq!((granted.environment, granted.expires_at), (Environment::Dev, asked.expires_at));
    }

    #[test]
    fn scopes_are_kept_once_in_the_order_of_the_documentation() {
        let wanted = vec![Scope::Admin, Scope::FilesRead, Scope::Admin];
        let asked = CreateKey { role: None, scopes: Some(wanted), ..request() };
        assert_eq!(grant(&asked, OWNER, now()).unwrap().scopes, [Scope::FilesRead, Scope::Admin]);
    }

    #[test]
    fn a_key_cannot_grant_scopes_that_it_lacks() {
        let agent = scopes_of(Role::Agent, "default");
        let admin = scopes_of(Role::Admin, "acme");
        let role = |role| CreateKey { role: Some(role), ..request() };
        for (creator, account, asked, missing) in [
            (&agent, "default", role(Role::Agent), vec![]),
            (&agent, "default", role(Role::Operator), vec![Scope::SwarmWrite, Scope::MetricsRead]),
            (&admin, "acme", role(Role::Admin), vec![]),
            (&admin, "default", role(Role::Admin), vec![Scope::ServerAdmin]),
            (&vec![Scope::Admin], "acme", role(Role::Admin), admin[..admin.len() - 1].to_vec()),
        ] {
            let outcome = grant(&asked, GrantContext { account, creator }, now()).map(|_| ());
            let expected = if missing.is_empty() { Ok(()) } else { Err(Error::Escalation { missing }) };
            assert_eq!(outcome, expected, "{:?} of {account} by {creator:?}", asked.role);
        }
        assert_eq!(Error::Escalation { missing: vec![] }.code(), ErrorCode::ScopeMissing);
    }

    #[test]
    fn all_scopes_of_a_key_are_required_to_rotate_read_or_revoke_it() {
        let scopes = scopes_of(Role::Admin, "default");
        let old: Key = serde_json::from_value(serde_json::json!({
            "id": "key_01jv0000000000000000000000", "account": "acc_01jv0000000000000000000000",
            "prefix": "sk-skep-prod-00000000", "name": "admin", "environment": "prod", "role": "admin",
            "scopes": scopes, "vm": null, "created_at": now(), "expires_at": now() + 1.hour(),
        }))
        .unwrap();
        let same = RotateKey::default();
        let few = check_rotation(&old, &same, &[Scope::Admin], now()).unwrap_err();
        assert_eq!(few.code(), ErrorCode::ScopeMissing, "{few}");
        let few = check_administration(&old, &[Scope::Admin]).unwrap_err();
        assert_eq!(few.code(), ErrorCode::ScopeMissing);
        assert!(few.to_string().contains("`server:admin`, which the key `key_01jv"), "{few}");
        assert_eq!(check_administration(&old, &scopes), Ok(()));
        assert_eq!(check_rotation(&old, &same, &scopes, now()), Ok(old.expires_at));
        let never = RotateKey { expires_at: Some(None) };
        assert_eq!(check_rotation(&old, &never, &scopes, now()), Ok(None));
        let past = RotateKey { expires_at: Some(Some(now())) };
        assert!(matches!(check_rotation(&old, &past, &scopes, now()), Err(Error::ExpiryPassed { .. })));
        let expired = Key { expires_at: Some(now()), ..old };
        assert!(matches!(
            check_rotation(&expired, &same, &scopes, now()),
            Err(Error::SuccessorExpired { .. })
        ));
        assert_eq!(check_rotation(&expired, &never, &scopes, now()), Ok(None));
    }

    #[test]
    fn server_admin_is_only_for_the_default_account() {
        let asked = CreateKey { role: None, scopes: Some(vec![Scope::ServerAdmin]), ..request() };
        assert!(grant(&asked, OWNER, now()).is_ok());
        let refusal = grant(&asked, GrantContext { account: "acme", ..OWNER }, now()).unwrap_err();
        assert_eq!(refusal, Error::ServerAdminElsewhere { account: "acme".to_owned() });
    }
}
