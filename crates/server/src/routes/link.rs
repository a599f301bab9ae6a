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
    extract::{Call, Caller, FilesWrite, NoParameters, Query},
    json::Json,
    openapi::refusals::FilesWriteRefused,
    places::{Chosen, Places},
};

/// Which link is made, and where.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkBody {
    /// The link: absolute, below a root, in a folder that is there.
    #[schema(example = "/srv/workspace/latest")]
    path: String,
    /// What the link says: a path, absolute or relative to the link's folder. It need not be there.
    #[schema(example = "builds/42")]
    target: String,
    /// How both are written.
    path_encoding: Option<PathEncoding>,
    /// Whether a file or a link that stands there is replaced; false unless given.
    overwrite: Option<bool>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<VmField>,
}

/// Make a symbolic link
///
/// The link may lead anywhere: as with every link, an operation that follows it reaches what lies below the roots and nothing
/// else (403 `path_outside_roots`). In a VM it needs the scope `swarm:exec` besides.
#[utoipa::path(
    post, path = "/api/files/link", tag = "files", operation_id = "make_link", security(("bearer" = ["files:write"])),
    request_body(content = LinkBody, example = json!({"path": "/srv/workspace/latest", "target": "builds/42"})),
    responses(
        (status = 200, description = "A file or a link was replaced", body = LinkMade),
        (status = 201, description = "The link was made", body = LinkMade),
        FilesWriteRefused,
    )
)]
pub(super) async fn make_link(
    State(places): State<Places>,
    caller: Caller<FilesWrite>,
    _: Query<NoParameters>,
    call: Call,
    Body(body): Body<LinkBody>,
) -> Result<Response, Refusal> {
    let operation = MakeLink {
        path: path("path", &body.path, body.path_encoding)?,
        target: LinkTarget::parse("target", &body.target, body.path_encoding.unwrap_or_default())?,
        overwrite: body.overwrite.unwrap_or(false),
    };
    let chosen = Chosen::by_field(body.vm.as_ref())?;
    Places::note(&chosen, &call.trail);
    let made = places.run(&caller, chosen, operation).await?;
    let status = if made.replaced { StatusCode::OK } else { StatusCode::CREATED };
    Ok((status, Json(made)).into_response())
}
