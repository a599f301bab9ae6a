//! Requests that create and change tickets, and their answers.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::{Object, Priority, Ticket, TicketStatus};
use crate::{Label, Patch, TicketId};

/// Defines the requests that set fields of a ticket: their own fields, followed by the shared ones, which are listed once.
/// A shared field has a form in creations and one in changes. (Serde's `flatten` would accept unknown fields.)
macro_rules! ticket_requests {
    (
        shared {
            $(
                $(#[$in_creation:meta])*
                $field:ident: $created:ty,
                $(#[$in_change:meta])*
                change: $changed:ty;
            )+
        }
        $(#[$of_create:meta])* create $create:ident { $($own_of_create:tt)* }
        $(#[$of_batch:meta])* create $batch:ident { $($own_of_batch:tt)* }
        $(#[$of_change:meta])* change $change:ident { $($own_of_change:tt)* }
    ) => {
        $(#[$of_create])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub struct $create {
            $($own_of_create)*
            $($(#[$in_creation])* pub $field: $created,)+
        }

        $(#[$of_batch])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub struct $batch {
            $($own_of_batch)*
            $($(#[$in_creation])* pub $field: $created,)+
        }

        $(#[$of_change])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub struct $change {
            $($own_of_change)*
            $($(#[$in_change])* pub $field: $changed,)+
        }

        impl $batch {
            /// The ticket without what refers to the batch: its name and its dependencies.
            pub fn into_creation(self) -> $create {
                $create { title: self.title, dependencies: None, $($field: self.$field,)+ }
            }
        }
    };
}

ticket_requests! {
    shared {
        /// The work to do, at most 64 KiB.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(max_length = 65536))]
        description: Option<String>,
        /// The new description, at most 64 KiB; null removes it.
        #[serde(default, skip_serializing_if = "Patch::is_absent")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, max_length = 65536))]
        change: Patch<String>;
        /// The priority; default `medium`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        priority: Option<Priority>,
        /// The new priority.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
        #[cfg_attr(feature = "openapi", schema(value_type = Priority))]
        change: Option<Priority>;
        /// At most 32 labels by which lists and claims select tickets. Duplicates are ignored.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(max_items = 32))]
        labels: Option<Vec<Label>>,
        /// Replaces all labels: at most 32. Possible at any time, also for a completed ticket.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
        #[cfg_attr(feature = "openapi", schema(value_type = Vec<Label>, max_items = 32))]
        change: Option<Vec<Label>>;
        /// Additional data, stored unchanged; at most 64 KiB as JSON.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
        metadata: Option<Object>,
        /// Replaces all metadata: at most 64 KiB as JSON; null removes it.
        #[serde(default, skip_serializing_if = "Patch::is_absent")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
        change: Patch<Object>;
        /// How many attempts may end without completion or release before the ticket fails; default 5.
        #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000, example = 5))]
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole_number::optional")]
        max_attempts: Option<u32>,
        /// How many attempts may end without completion or release before the ticket fails.
        #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 1000, example = 5))]
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole_number::present")]
        change: Option<u32>;
        /// The maximum duration of one attempt, in milliseconds: 5 s to 30 days; default 24 h.
        #[cfg_attr(
            feature = "openapi",
            schema(minimum = 5000, maximum = 2_592_000_000_u64, example = 86_400_000)
        )]
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole_number::optional")]
        max_runtime_ms: Option<u64>,
        /// The maximum duration of one attempt, in milliseconds: 5 s to 30 days.
        #[cfg_attr(
            feature = "openapi",
            schema(minimum = 5000, maximum = 2_592_000_000_u64, example = 86_400_000)
        )]
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole_number::present")]
        change: Option<u64>;
        /// The earliest time at which the ticket can be claimed.
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
        #[serde(default, skip_serializing_if = "Option::is_none")]
        not_before: Option<Timestamp>,
        /// The earliest time at which the ticket can be claimed; null removes the restriction.
        #[serde(default, skip_serializing_if = "Patch::is_absent")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
        change: Patch<Timestamp>;
    }

    /// A ticket to create. Body of `POST /api/tickets`.
    create CreateTicket {
        /// The title, 1 to 500 characters.
        #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 500, example = "Port the parser"))]
        pub title: String,
        /// At most 1,000 tickets that must be completed before this one can be claimed. Duplicates are ignored.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub dependencies: Option<Vec<TicketId>>,
    }

    /// A ticket of `POST /api/tickets/batch`: the fields of `POST /api/tickets`, and a name for dependencies within the
    /// batch.
    create BatchTicket {
        /// A name within this batch, 1 to 100 characters, to which dependencies of the batch refer as `ref:NAME`.
        #[serde(default, rename = "ref", skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 100, example = "plan"))]
        pub reference: Option<String>,
        /// The title, 1 to 500 characters.
        #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 500, example = "Plan the port"))]
        pub title: String,
        /// Tickets that must be completed before this one can be claimed: `ref:NAME` of a ticket at any position in this
        /// batch, or the id of an existing ticket.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(example = json!([])))]
        pub dependencies: Option<Vec<String>>,
    }

    /// Changes to a ticket. Body of `PATCH /api/tickets/{id}`. Absent fields stay unchanged.
    change ChangeTicket {
        /// The new status: `in_progress` claims the ticket, `completed` and `failed` finish it, `pending` releases or
        /// retries it.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
        pub status: Option<TicketStatus>,
        /// The holder that claims or holds the ticket; default: the name of the key. Without `status`, a name claims the
        /// ticket and null releases it.
        #[serde(default, skip_serializing_if = "Patch::is_absent")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, min_length = 1, max_length = 200, example = "agent-7"))]
        pub assignee: Patch<String>,
        /// The result, with `completed` or `failed`: an object of at most 1 MiB as JSON.
        #[serde(default, skip_serializing_if = "Patch::is_absent")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
        pub result: Patch<Object>,
        /// The attempt of the caller. The request is rejected if it is not the current one.
        #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 4_294_967_295_u64, example = 1))]
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole_number::present")]
        pub attempt: Option<u32>,
        /// The duration of the lease without a heartbeat, in milliseconds: 5 s to 24 h; default 1 h.
        #[cfg_attr(feature = "openapi", schema(minimum = 5000, maximum = 86_400_000, example = 120_000))]
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole_number::present")]
        pub lease_ms: Option<u64>,
        /// With `pending`: how long the ticket cannot be claimed, in milliseconds; at most 30 days.
        #[cfg_attr(feature = "openapi", schema(minimum = 0, maximum = 2_592_000_000_u64, example = 60_000))]
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::whole_number::present")]
        pub retry_after_ms: Option<u64>,
        /// The new title, 1 to 500 characters.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
        #[cfg_attr(feature = "openapi", schema(min_length = 1, max_length = 500, example = "Port the parser"))]
        pub title: Option<String>,
        /// Replaces all dependencies: at most 1,000. Only while the ticket is pending.
        #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "crate::patch::present")]
        pub dependencies: Option<Vec<TicketId>>,
    }
}

/// Tickets to create together. Body of `POST /api/tickets/batch`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreateTickets {
    /// 1 to 1,000 tickets. Either all of them are created, or none.
    #[cfg_attr(feature = "openapi", schema(min_items = 1, max_items = 1000))]
    pub tickets: Vec<BatchTicket>,
}

/// The created tickets. Answer of `POST /api/tickets/batch`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CreatedTickets {
    /// The tickets, in the order of the request.
    pub tickets: Vec<Ticket>,
    /// The id of each ticket that had a `ref`, by that name.
    pub refs: BTreeMap<String, TicketId>,
}

/// The answer of `DELETE /api/tickets/{id}`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeletedTicket {
    /// The id of the deleted ticket.
    pub id: TicketId,
    /// Always true.
    #[cfg_attr(feature = "openapi", schema(example = true))]
    pub deleted: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_null_and_a_value_are_three_things() {
        let read = |text: &str| serde_json::from_str::<ChangeTicket>(text);
        assert_eq!(read("{}").unwrap(), ChangeTicket::default());
        assert_eq!(read(r#"{"assignee": null}"#).unwrap().assignee, Patch::Null);
        assert_eq!(read(r#"{"assignee": "a"}"#).unwrap().assignee, Patch::Value("a".to_owned()));
        assert_eq!(read(r#"{"attempt": 2.0}"#).unwrap().attempt, Some(2));
        for wrong in [
            r#"{"status": null}"#,
            r#"{"status": "done"}"#,
            r#"{"dependencies": null}"#,
            r#"{"result": []}"#,
            r#"{"attempt": -1}"#,
            r#"{"id": "x"}"#,
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
        let change = ChangeTicket { assignee: Patch::Null, ..ChangeTicket::default() };
        assert_eq!(serde_json::to_string(&change).unwrap(), r#"{"assignee":null}"#);
    }
}
