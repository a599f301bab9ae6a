//! Operations that callers reach over HTTP: the method, path, scopes, refusals and documentation of each.

mod check;
mod page;
mod path;
mod workspace;

use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

pub(crate) use self::page::list_request;
pub use self::{check::*, path::*, workspace::*};
use crate::{ErrorCode, Failure, Scope};

/// An operation with a route of its own. Its value is the query or the JSON body that callers send.
pub trait Endpoint: Serialize + DeserializeOwned + Send + Sync + 'static {
    /// How callers reach the operation.
    const ROUTE: Route;
    /// The variable segments of the path; `()` if it has none.
    type Path: PathFields;
    /// The successful answer.
    type Answer: Serialize + DeserializeOwned + Send + 'static;

    /// Checks what the types of the fields do not express.
    ///
    /// # Errors
    /// `invalid_value`, naming the field.
    fn check(&self) -> Result<(), Failure> {
        Ok(())
    }

    /// The fields of a request, as they are sent in its query or its body.
    ///
    /// # Errors
    /// The operation is not serialized as an object.
    fn to_fields(&self) -> serde_json::Result<Map<String, Value>> {
        serde_json::from_value(serde_json::to_value(self)?)
    }

    /// Whether an answer that is [`Success::Either`] has status 201.
    fn has_created(_: &Self::Answer) -> bool {
        false
    }
}

/// The method of a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Method {
    /// Reads; the operation is the query.
    Get,
    /// Acts or creates; the operation is the body, a JSON object.
    Post,
    /// Changes; the operation is the body, a JSON object, in which absent fields mean no change.
    Patch,
    /// Removes; the operation is the query.
    Delete,
}

impl Method {
    /// Whether the operation is the body of the request.
    pub const fn has_body(self) -> bool {
        matches!(self, Self::Post | Self::Patch)
    }
}

/// Who may use an operation.
#[derive(Debug, Clone, Copy)]
pub enum Access {
    /// Everyone, without a key.
    Public,
    /// A key with all these scopes that is not bound to a VM.
    AccountKey(&'static [Scope]),
    /// A key with all these scopes. One that is bound to a VM may reach only its VM and that VM's ticket, so the handler
    /// must check the resource as well.
    AnyKey(&'static [Scope]),
}

impl Access {
    /// The scopes that a key needs.
    pub const fn scopes(self) -> &'static [Scope] {
        match self {
            Self::Public => &[],
            Self::AccountKey(scopes) | Self::AnyKey(scopes) => scopes,
        }
    }
}

/// Whether a request needs a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Body {
    /// It needs one.
    Required,
    /// Without one, every field has its default value.
    Optional,
    /// The operation has no fields. A body may be `{}`.
    Empty,
}

/// The successful answers of a route, with their descriptions.
#[derive(Debug, Clone, Copy)]
pub enum Success {
    /// Status 200.
    Done(&'static str),
    /// Status 201.
    Created(&'static str),
    /// Status 202.
    Accepted(&'static str),
    /// Status 200 or 201, which [`Endpoint::has_created`] decides.
    Either {
        /// The description of status 200.
        done: &'static str,
        /// The description of status 201.
        created: &'static str,
    },
}

/// How callers reach an operation, and how it is documented.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    /// The method.
    pub method: Method,
    /// The path, such as `/api/keys/{id}`, with the fields of [`Endpoint::Path`] in braces.
    pub path: &'static str,
    /// The id in the OpenAPI document and in the audit log.
    pub id: &'static str,
    /// The group in the OpenAPI document.
    pub tag: &'static str,
    /// A title of a few words.
    pub summary: &'static str,
    /// What the operation does, in Markdown.
    pub description: &'static str,
    /// A request as JSON; derived from the fields if empty.
    pub example: &'static str,
    /// An answer as JSON; derived from the fields if empty.
    pub answer_example: &'static str,
    /// Who may use the operation. In a VM, one on a workspace needs `swarm:exec` in addition.
    pub access: Access,
    /// The refusals of the operation in groups, beside those that all routes share.
    pub refusals: &'static [&'static [ErrorCode]],
    /// The successful answers.
    pub success: Success,
    /// Whether the request of a method with a body needs one.
    pub body: Body,
    /// The maximum length of a body, in bytes.
    pub body_limit: usize,
    /// The fields that are paths of files. Without any, the request has no `path_encoding`.
    pub paths: &'static [&'static str],
    /// Whether the server adds the hosts that git may reach, and its credentials, to the context.
    pub uses_network: bool,
    /// Whether `If-Match` and `If-None-Match` are preconditions.
    pub conditional: bool,
}

impl Route {
    /// The maximum length of a body unless the route has its own, in bytes.
    pub const BODY_LIMIT: usize = 1 << 20;

    /// A route with this method, path, id and access. The other fields that every route sets are empty.
    pub(crate) const fn new(method: Method, path: &'static str, id: &'static str, access: Access) -> Self {
        Self {
            method,
            path,
            id,
            tag: "",
            summary: "",
            description: "",
            example: "",
            answer_example: "",
            access,
            refusals: &[],
            success: Success::Done(""),
            body: Body::Required,
            body_limit: Self::BODY_LIMIT,
            paths: &[],
            uses_network: false,
            conditional: false,
        }
    }
}
