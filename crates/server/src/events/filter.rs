//! The filter of an event stream, and the scopes that it needs.

use skep_api::{AccountId, ErrorCode, Failure, Scope, TicketId};
use skep_store::{EventFamily, EventKind, EventScope};

use crate::error::Refusal;

/// The events that a caller subscribes to. Only events of its own account match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EventFilter {
    account: AccountId,
    kinds: Vec<EventKind>,
    ticket: Option<TicketId>,
}

impl EventFilter {
    /// Parses `types`, a comma-separated list of event types and families. `None` means all that the scopes allow.
    ///
    /// # Errors
    /// `invalid_value` if there is no such type, `scope_missing` if the key may not see it, `unknown_ticket` if the id
    /// is malformed.
    pub(crate) fn parse(
        account: AccountId,
        scopes: &[Scope],
        types: Option<&str>,
        ticket: Option<&str>,
    ) -> Result<Self, Refusal> {
        let mut kinds = match types {
            Some(types) => types.split(',').map(parse_kinds).collect::<Result<Vec<_>, _>>()?.concat(),
            None => EventKind::ALL.to_vec(),
        };
        if ticket.is_some() {
            // Events of other types do not concern a ticket.
            kinds.retain(|kind| kind.family() == EventFamily::Ticket);
            if kinds.is_empty() {
                let family = EventFamily::Ticket.pattern();
                let message =
                    format!("`types` has no type of `{family}`, which `ticket` needs; leave one of them out");
                return Err(Refusal::new(ErrorCode::InvalidValue, message));
            }
        }
        let is_allowed = |kind: &EventKind| scopes.contains(&kind.family().scope());
        if types.is_none() && ticket.is_none() {
            kinds.retain(is_allowed);
        }
        if let Some(scope) = kinds.iter().find(|kind| !is_allowed(kind)).map(|kind| kind.family().scope()) {
            let message =
                format!("this key lacks the scope `{scope}`, which such events need; use a key that has it");
            return Err(Refusal::new(ErrorCode::ScopeMissing, message));
        }
        let ticket = ticket
            .map(|text| text.parse().map_err(|_| skep_store::Error::UnknownTicket { id: text.to_owned() }));
        Ok(Self { account, kinds, ticket: ticket.transpose()? })
    }

    /// The ticket that the stream is restricted to.
    pub(crate) fn ticket(&self) -> Option<TicketId> {
        self.ticket
    }

    pub(super) fn kinds(&self) -> &[EventKind] {
        &self.kinds
    }

    /// The restriction of the query of the store.
    pub(super) fn source(&self) -> EventScope {
        match self.ticket {
            Some(ticket) => EventScope::Ticket(self.account, ticket),
            None => EventScope::Account(self.account),
        }
    }

    /// Whether an event of this account, ticket and type is among those that the caller subscribed to.
    pub(super) fn matches(&self, account: AccountId, ticket: Option<TicketId>, kind: EventKind) -> bool {
        account == self.account
            && self.ticket.is_none_or(|one| ticket == Some(one))
            && self.kinds.contains(&kind)
    }
}

/// The event types that one element of the list names: a type, or all types of a family such as `vm.*`.
pub(crate) fn parse_kinds(name: &str) -> Result<Vec<EventKind>, Failure> {
    let kinds: Vec<EventKind> = EventKind::ALL.iter().copied().filter(|kind| kind.matches(name)).collect();
    if kinds.is_empty() {
        let families = EventFamily::ALL.iter().map(|family| family.pattern());
        let known: Vec<&str> = families.chain(EventKind::ALL.iter().map(|kind| kind.as_str())).collect();
        let message =
            format!("`types` names `{name}`, which is not an event type; known: {}", known.join(", "));
        return Err(Failure::new(ErrorCode::InvalidValue, message));
    }
    Ok(kinds)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(scopes: &[Scope], types: Option<&str>, ticket: bool) -> Result<usize, (ErrorCode, String)> {
        let ticket = ticket.then(|| TicketId::generate().to_string());
        let wanted = EventFilter::parse(AccountId::generate(), scopes, types, ticket.as_deref());
        wanted.map(|wanted| wanted.kinds.len()).map_err(|refusal| {
            let Failure { code, message } = refusal.failure().clone();
            (code, message)
        })
    }

    #[test]
    fn a_list_is_narrowed_and_a_name_is_refused() {
        let all = [Scope::TicketsRead, Scope::SwarmRead, Scope::Admin];
        assert_eq!(wanted(&all, None, false), Ok(EventKind::ALL.len()));
        assert_eq!(wanted(&[Scope::SwarmRead], None, false), Ok(12));
        assert_eq!(wanted(&all, Some("vm.booted,key.*"), false), Ok(4));
        assert_eq!(wanted(&all, None, true), Ok(11));
        assert_eq!(wanted(&all, Some("ticket.failed,vm.*"), true), Ok(1));
        for (types, scope) in [("vm.*", "swarm:read"), ("ticket.*,key.created", "admin")] {
            let (code, message) = wanted(&[Scope::TicketsRead], Some(types), false).unwrap_err();
            assert!(code == ErrorCode::ScopeMissing && message.contains(scope), "{types}: {message}");
        }
        assert_eq!(wanted(&[Scope::SwarmRead], None, true).unwrap_err().0, ErrorCode::ScopeMissing);
        for types in ["", "vm", "vm.", "*", "vm.*,", "ticket.done", " vm.*"] {
            assert_eq!(wanted(&all, Some(types), false).unwrap_err().0, ErrorCode::InvalidValue, "{types:?}");
        }
        assert_eq!(wanted(&all, Some("vm.*"), true).unwrap_err().0, ErrorCode::InvalidValue);
    }
}
