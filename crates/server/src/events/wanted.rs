//! Which events a caller follows, and may.

use skep_api::{AccountId, ErrorCode, Failure, Scope, TicketId};
use skep_store::{EventKind, EventsOf};

use super::tail::Told;
use crate::error::Refusal;

/// What a caller follows: events of its account alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Wanted {
    account: AccountId,
    kinds: Vec<EventKind>,
    ticket: Option<TicketId>,
}

impl Wanted {
    /// Reads `types`, a list of sorts and families. Without it, it is all that the scopes allow.
    ///
    /// # Errors
    /// `invalid_value` where there is no such sort, `scope_missing` where the key may not see it, `unknown_ticket` where no
    /// ticket can have such an id.
    pub(crate) fn of(
        account: AccountId,
        scopes: &[Scope],
        types: Option<&str>,
        ticket: Option<&str>,
    ) -> Result<Self, Refusal> {
        let mut kinds = match types {
            Some(types) => types.split(',').map(named).collect::<Result<Vec<_>, _>>()?.concat(),
            None => EventKind::ALL.to_vec(),
        };
        if ticket.is_some() {
            // No other event is about one.
            kinds.retain(|kind| scope_of(*kind) == Scope::TicketsRead);
            if kinds.is_empty() {
                let message = "`types` names nothing of `ticket.*`, and `ticket` follows a ticket; leave one of them out";
                return Err(Refusal::new(ErrorCode::InvalidValue, message));
            }
        }
        let may = |kind: &EventKind| scopes.contains(&scope_of(*kind));
        if types.is_none() && ticket.is_none() {
            kinds.retain(may);
        }
        if let Some(scope) = kinds.iter().find(|kind| !may(kind)).map(|kind| scope_of(*kind)) {
            let message =
                format!("this key lacks the scope `{scope}`, which such events need; use a key that has it");
            return Err(Refusal::new(ErrorCode::ScopeMissing, message));
        }
        let ticket = ticket
            .map(|text| text.parse().map_err(|_| skep_store::Error::UnknownTicket { id: text.to_owned() }));
        Ok(Self { account, kinds, ticket: ticket.transpose()? })
    }

    /// The one ticket that is followed.
    pub(crate) fn ticket(&self) -> Option<TicketId> {
        self.ticket
    }

    /// The sorts.
    pub(super) fn kinds(&self) -> &[EventKind] {
        &self.kinds
    }

    /// Whose events are read.
    pub(super) fn from(&self) -> EventsOf {
        match self.ticket {
            Some(ticket) => EventsOf::Ticket(self.account, ticket),
            None => EventsOf::Account(self.account),
        }
    }

    /// Whether this is one of them.
    pub(super) fn takes(&self, told: &Told) -> bool {
        told.account == self.account
            && self.ticket.is_none_or(|ticket| told.ticket == Some(ticket))
            && self.kinds.contains(&told.kind)
    }
}

/// The sorts that one word of the list names.
pub(crate) fn named(word: &str) -> Result<Vec<EventKind>, Failure> {
    let kinds: Vec<EventKind> = EventKind::ALL.iter().copied().filter(|kind| kind.is_named(word)).collect();
    if kinds.is_empty() {
        let known: Vec<&str> = EventKind::ALL.iter().map(|kind| kind.as_str()).collect();
        let message = format!(
            "`types` names `{word}`, which is no type of event; known: ticket.*, vm.*, key.*, {}",
            known.join(", ")
        );
        return Err(Failure::new(ErrorCode::InvalidValue, message));
    }
    Ok(kinds)
}

/// What a key needs to see events of a sort.
pub(crate) const fn scope_of(kind: EventKind) -> Scope {
    match kind {
        EventKind::KeyCreated | EventKind::KeyRevoked | EventKind::KeyRotated => Scope::Admin,
        EventKind::VmBooted | EventKind::VmRenamed | EventKind::VmEnded => Scope::SwarmRead,
        EventKind::TicketCreated
        | EventKind::TicketUpdated
        | EventKind::TicketReady
        | EventKind::TicketClaimed
        | EventKind::TicketBlocked
        | EventKind::TicketReleased
        | EventKind::TicketLeaseExpired
        | EventKind::TicketCompleted
        | EventKind::TicketFailed
        | EventKind::TicketReopened
        | EventKind::TicketDeleted => Scope::TicketsRead,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(scopes: &[Scope], types: Option<&str>, ticket: bool) -> Result<usize, (ErrorCode, String)> {
        let ticket = ticket.then(|| TicketId::generate().to_string());
        let wanted = Wanted::of(AccountId::generate(), scopes, types, ticket.as_deref());
        wanted.map(|wanted| wanted.kinds.len()).map_err(|refusal| {
            let Failure { code, message } = refusal.failure().clone();
            (code, message)
        })
    }

    #[test]
    fn a_list_is_narrowed_and_a_name_is_refused() {
        let all = [Scope::TicketsRead, Scope::SwarmRead, Scope::Admin];
        assert_eq!(wanted(&all, None, false), Ok(EventKind::ALL.len()));
        assert_eq!(wanted(&[Scope::SwarmRead], None, false), Ok(3));
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
