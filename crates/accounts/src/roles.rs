//! Roles as presets of scopes, and the scopes that an account permits.

use skep_api::{Role, Scope};

/// The account that the first start creates. Only its keys can administer the server.
pub const DEFAULT_ACCOUNT: &str = "default";

/// All scopes that keys of this account can have.
pub(crate) fn allowed_scopes(account_name: &str) -> Vec<Scope> {
    let everything = account_name == DEFAULT_ACCOUNT;
    Scope::ALL.iter().copied().filter(|scope| everything || *scope != Scope::ServerAdmin).collect()
}

/// The scopes of a role in this account, in the order of the documentation.
pub fn scopes_of(role: Role, account_name: &str) -> Vec<Scope> {
    let mut scopes = allowed_scopes(account_name);
    scopes.retain(|scope| has(role, *scope));
    scopes
}

const fn has(role: Role, scope: Scope) -> bool {
    match scope {
        Scope::FilesRead | Scope::FilesWrite | Scope::GitRead | Scope::GitWrite => true,
        Scope::SwarmExec | Scope::TicketsRead | Scope::TicketsWrite => true,
        Scope::SwarmRead => !matches!(role, Role::Vm),
        Scope::SwarmWrite | Scope::MetricsRead => matches!(role, Role::Operator | Role::Admin),
        Scope::Admin | Scope::ServerAdmin => matches!(role, Role::Admin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope_names(role: Role, account: &str) -> String {
        scopes_of(role, account).iter().map(|scope| scope.as_str()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_role_is_the_preset_of_the_contract() {
        let agent =
            "files:read files:write git:read git:write swarm:read swarm:exec tickets:read tickets:write";
        let operator = "files:read files:write git:read git:write swarm:read swarm:write swarm:exec tickets:read \
                        tickets:write metrics:read";
        let vm = "files:read files:write git:read git:write swarm:exec tickets:read tickets:write";
        for (role, account, expected) in [
            (Role::Agent, "default", agent.to_owned()),
            (Role::Agent, "acme", agent.to_owned()),
            (Role::Operator, "default", operator.to_owned()),
            (Role::Operator, "acme", operator.to_owned()),
            (Role::Vm, "default", vm.to_owned()),
            (Role::Vm, "acme", vm.to_owned()),
            (Role::Admin, "acme", format!("{operator} admin")),
            (Role::Admin, "default", format!("{operator} admin server:admin")),
        ] {
            assert_eq!(scope_names(role, account), expected, "{role} of {account}");
        }
    }

    #[test]
    fn only_the_default_account_may_administer_the_server() {
        assert!(allowed_scopes("default").contains(&Scope::ServerAdmin));
        assert!(!allowed_scopes("Default").contains(&Scope::ServerAdmin));
        assert_eq!(allowed_scopes("acme").len(), Scope::ALL.len() - 1);
    }
}
