//! Shows commits, changes tags and merges.

use axum::extract::State;
use serde::Deserialize;
use skep_api::{
    exec::VmField,
    git::{GitChangeTag, GitMerge, GitShow, GitTags, Pulled, Shown, TagChanged, Tags},
    path::PathEncoding,
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{GitState, check_argument, key_as_person, optional_path, path, place_of_write, read::check_file};
use crate::{
    body::Body,
    extract::{Caller, GitRead, GitWrite, NoParameters, Query, RequestInfo},
    json::Json,
    openapi::refusals::{GitRefused, GitWriteRefused},
    places::Target,
    routes::{Answer, Routes},
};

pub(super) fn routes(state: &GitState) -> Routes {
    vec![
        routes!(show).with_state(state.clone()),
        routes!(tags).with_state(state.clone()),
        routes!(change_tag).with_state(state.clone()),
        routes!(merge).with_state(state.clone()),
    ]
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ShowQuery {
    /// The repository. Default: the only one of the place.
    #[param(example = "/srv/workspace/project")]
    path: Option<String>,
    /// The encoding of `path`.
    path_encoding: Option<PathEncoding>,
    /// The commit, branch or tag. Default: the current commit.
    r#ref: Option<String>,
    /// A file, relative to the top of the repository, whose content in that commit is returned.
    file: Option<String>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<String>,
}

/// Show a commit
///
/// Returns the commit with its changes to the first parent. With `file`, returns the content of that file instead of
/// the changes, in base64 if it is not UTF-8. Both are cut at 16 MiB, which `truncated` indicates. In a VM it also
/// needs the scope `swarm:exec`.
#[utoipa::path(
    get, path = "/api/git/show", tag = "git", operation_id = "git_show", params(ShowQuery),
    security(("bearer" = ["git:read"])),
    responses((status = 200, description = "The commit", body = Shown), GitRefused)
)]
async fn show(
    State(state): State<GitState>,
    caller: Caller<GitRead>,
    Query(query): Query<ShowQuery>,
) -> Answer<Shown> {
    let operation = GitShow {
        path: optional_path(query.path.as_deref(), query.path_encoding)?,
        revision: query.r#ref,
        file: check_file(query.file)?,
    };
    let chosen = Target::from_query(query.vm.as_deref())?;
    Ok(Json(state.places.run(&caller, chosen, operation).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TagsQuery {
    /// The repository. Default: the only one of the place.
    #[param(example = "/srv/workspace/project")]
    path: Option<String>,
    /// The encoding of `path`.
    path_encoding: Option<PathEncoding>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<String>,
}

/// List tags
///
/// Sorted by name. In a VM it also needs the scope `swarm:exec`.
#[utoipa::path(
    get, path = "/api/git/tag", tag = "git", operation_id = "git_tags", params(TagsQuery),
    security(("bearer" = ["git:read"])),
    responses((status = 200, description = "The tags", body = Tags), GitRefused)
)]
async fn tags(
    State(state): State<GitState>,
    caller: Caller<GitRead>,
    Query(query): Query<TagsQuery>,
) -> Answer<Tags> {
    let operation = GitTags { path: optional_path(query.path.as_deref(), query.path_encoding)? };
    let chosen = Target::from_query(query.vm.as_deref())?;
    Ok(Json(state.places.run(&caller, chosen, operation).await?))
}

/// A tag to create or delete.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct TagBody {
    /// The repository, an absolute path below a root.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// The encoding of paths.
    path_encoding: Option<PathEncoding>,
    /// The name of the tag.
    #[schema(example = "v1.0")]
    name: String,
    /// The commit to tag. Default: the current one.
    r#ref: Option<String>,
    /// The message of an annotated tag. Without it, the tag is lightweight.
    message: Option<String>,
    /// Whether to delete the tag.
    delete: Option<bool>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<VmField>,
}

/// Create or delete a tag
///
/// The tagger of an annotated tag is the calling key. An existing name is refused with 409. In a VM it also needs the
/// scope `swarm:exec`.
#[utoipa::path(
    post, path = "/api/git/tag", tag = "git", operation_id = "git_change_tag", security(("bearer" = ["git:write"])),
    request_body(content = TagBody, example = json!({"path": "/srv/workspace/project", "name": "v1.0"})),
    responses((status = 200, description = "It was created or deleted", body = TagChanged), GitWriteRefused)
)]
async fn change_tag(
    State(state): State<GitState>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(body): Body<TagBody>,
) -> Answer<TagChanged> {
    let chosen = place_of_write(body.vm.as_ref(), &call)?;
    let operation = GitChangeTag {
        path: path("path", &body.path, body.path_encoding)?,
        name: check_argument("name", body.name)?,
        revision: body.r#ref,
        message: body.message,
        delete: body.delete.unwrap_or(false),
        tagger: key_as_person(&caller),
    };
    Ok(Json(state.places.run(&caller, chosen, operation).await?))
}

/// A merge.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct MergeBody {
    /// The work tree or a folder in it, an absolute path below a root.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// The encoding of paths.
    path_encoding: Option<PathEncoding>,
    /// The branch, tag or commit to merge into the current branch.
    #[schema(example = "topic")]
    r#ref: String,
    /// Whether to refuse the merge if the current branch has commits of its own.
    ff_only: Option<bool>,
    /// The message of a merge commit. Default: that of git.
    message: Option<String>,
    /// A VM, by process id, id or name. Default: the workspace of the server.
    vm: Option<VmField>,
}

/// Merge
///
/// Merges into the current branch, as a fast-forward if that has no commits of its own. A conflict is refused with 409
/// and the conflicting files; branch and work tree then stay as they were. In a VM it also needs the scope
/// `swarm:exec`.
#[utoipa::path(
    post, path = "/api/git/merge", tag = "git", operation_id = "git_merge", security(("bearer" = ["git:write"])),
    request_body(content = MergeBody, example = json!({"path": "/srv/workspace/project", "ref": "topic"})),
    responses((status = 200, description = "The new commits", body = Pulled), GitWriteRefused)
)]
async fn merge(
    State(state): State<GitState>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: RequestInfo,
    Body(body): Body<MergeBody>,
) -> Answer<Pulled> {
    let chosen = place_of_write(body.vm.as_ref(), &call)?;
    let operation = GitMerge {
        path: path("path", &body.path, body.path_encoding)?,
        revision: check_argument("ref", body.r#ref)?,
        ff_only: body.ff_only.unwrap_or(false),
        message: body.message,
        committer: key_as_person(&caller),
        reach: state.reach_of_filters(&chosen, &caller).await?,
    };
    Ok(Json(state.places.run(&caller, chosen, operation).await?))
}
