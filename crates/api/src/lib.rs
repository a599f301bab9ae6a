//! Types shared by server, guest agent, client and command line: requests, answers, ids, scopes and error codes.
//!
//! The crate does no I/O. The guest agent links it, so it stays small.

#![warn(missing_docs)]

pub mod accounts;
pub mod admin;
pub mod audit;
pub mod budget;
pub mod egress;
pub mod endpoint;
pub mod error;
pub mod events;
pub mod exec;
pub mod exec_stream;
pub mod files;
pub mod git;
pub mod health;
pub mod ids;
pub mod keys;
mod label;
mod octal_mode;
pub mod operation;
mod patch;
pub mod path;
pub mod refusals;
pub mod run_log;
pub mod scope;
pub mod session;
pub mod streams;
pub mod swarm;
pub mod system;
pub mod templates;
pub mod tickets;
mod time;
mod vm_ref;
pub mod waitlist;
pub mod webhooks;
mod whole_number;

pub use endpoint::{Call, CallContext, Endpoint, WorkspaceEndpoint};
pub use error::{ErrorBody, ErrorCode, ErrorKind, Failure};
pub use ids::{AccountId, AuditId, DeliveryId, KeyId, TemplateId, TicketId, VmId, WaitlistId, WebhookId};
pub use label::{InvalidLabel, Label};
pub use operation::{AddsFiles, AnswerLimit, HelperKind, Operation};
pub use patch::Patch;
pub use path::AbsolutePath;
pub use scope::{Environment, Role, Scope};
pub use vm_ref::{IdPrefix, NotAName, VmName, VmRef};
