//! `/api/files/link`: symbolic links.

use axum::{
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use skep_api::{
    exec::VmField,
    files::{LinkMade, MakeLink},
    path::{LinkTarget, PathEncoding},
};
use utoipa::ToSchema;

use super::files::path;
use crate::{
    body::Body,
    error::Refusal,
    extract::{Caller, FilesWrite, NoParameters, Query, RequestInfo},
    json::Json,
    openapi::refusals::FilesWriteRefused,
    places::{Places, Target},
};

/// A link to create.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkBody {
    /// The link, an absolute path below a root. Its folder must exist.
    #[schema(example = "/srv/workspace/latest")]
    path: String,
    /// The target, a path that is absolute or relative to the link's folder. It need not exist.
    #[schema(example = "builds/42")]
    target: String,
    /// The encoding of both paths.
    path_encoding: Option<PathEncoding>,
    /// Whether to replace an existing file or link; default false.
    overwrite: Option<bool>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<VmField>,
}

/// Create a symbolic link
///
/// The target may be any path: operations that follow a link to a path outside the roots are refused with 403
/// `path_outside_roots`. In a VM it also needs the scope `swarm:exec`.
#[utoipa::path(
    post, path = "/api/files/link", tag = "files", operation_id = "make_link", security(("bearer" = ["files:write"])),
    request_body(content = LinkBody, example = json!({"path": "/srv/workspace/latest", "target": "builds/42"})),
    responses(
        (status = 200, description = "A file or a link was replaced", body = LinkMade),
        (status = 201, description = "The link was created", body = LinkMade),
        FilesWriteRefused,
    )
)]
pub(super) async fn make_link(
    State(places): State<Places>,
    caller: Caller<FilesWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(body): Body<LinkBody>,
) -> Result<Response, Refusal> {
    let operation = MakeLink {
        path: path("path", &body.path, body.path_encoding)?,
        target: LinkTarget::parse("target", &body.target, body.path_encoding.unwrap_or_default())?,
        overwrite: body.overwrite.unwrap_or(false),
    };
    let chosen = Target::from_field(body.vm.as_ref())?;
    Places::record_resource(&chosen, &call.audit);
    let made = places.run(&caller, chosen, operation).await?;
    let status = if made.replaced { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(made)).into_response())
}
