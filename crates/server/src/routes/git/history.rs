//! Commits and their files, tags, merges.

use axum::extract::State;
use serde::Deserialize;
use skep_api::{
    exec::VmField,
    git::{GitChangeTag, GitMerge, GitShow, GitTags, Pulled, Shown, TagChanged, Tags},
    path::PathEncoding,
};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::UtoipaMethodRouterExt, routes};

use super::{GitDesk, any_path, key_as_person, path, read::file, word, written};
use crate::{
    body::Body,
    extract::{Call, Caller, GitRead, GitWrite, NoParameters, Query},
    json::Json,
    openapi::refusals::{GitRefused, GitWriteRefused},
    places::Chosen,
    routes::{Answer, Routes},
};

pub(super) fn routes(desk: &GitDesk) -> Routes {
    vec![
        routes!(show).with_state(desk.clone()),
        routes!(tags).with_state(desk.clone()),
        routes!(change_tag).with_state(desk.clone()),
        routes!(merge).with_state(desk.clone()),
    ]
}

/// What is shown.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ShowQuery {
    /// The repository; unless given, the only one of the place.
    #[param(example = "/srv/workspace/project")]
    path: Option<String>,
    /// How `path` is written.
    path_encoding: Option<PathEncoding>,
    /// The commit, branch or tag; the current commit unless given.
    r#ref: Option<String>,
    /// A file, below the repository's top: its content in that commit.
    file: Option<String>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<String>,
}

/// Show a commit
///
/// With what differs from its first parent; with `file`, the content of that file in place of the changes, in base64 where it is
/// not UTF-8. Both end at 16 MiB, and `truncated` says so. In a VM it needs the scope `swarm:exec` besides.
#[utoipa::path(
    get, path = "/api/git/show", tag = "git", operation_id = "git_show", params(ShowQuery),
    security(("bearer" = ["git:read"])),
    responses((status = 200, description = "The commit", body = Shown), GitRefused)
)]
async fn show(
    State(desk): State<GitDesk>,
    caller: Caller<GitRead>,
    Query(query): Query<ShowQuery>,
) -> Answer<Shown> {
    let operation = GitShow {
        path: any_path(query.path.as_deref(), query.path_encoding)?,
        revision: query.r#ref,
        file: file(query.file)?,
    };
    let chosen = Chosen::by_query(query.vm.as_deref())?;
    Ok(Json(desk.places.run(&caller, chosen, operation).await?))
}

/// Which tags.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TagsQuery {
    /// The repository; unless given, the only one of the place.
    #[param(example = "/srv/workspace/project")]
    path: Option<String>,
    /// How `path` is written.
    path_encoding: Option<PathEncoding>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<String>,
}

/// List tags
///
/// By name. In a VM it needs the scope `swarm:exec` besides.
#[utoipa::path(
    get, path = "/api/git/tag", tag = "git", operation_id = "git_tags", params(TagsQuery),
    security(("bearer" = ["git:read"])),
    responses((status = 200, description = "The tags", body = Tags), GitRefused)
)]
async fn tags(
    State(desk): State<GitDesk>,
    caller: Caller<GitRead>,
    Query(query): Query<TagsQuery>,
) -> Answer<Tags> {
    let operation = GitTags { path: any_path(query.path.as_deref(), query.path_encoding)? };
    let chosen = Chosen::by_query(query.vm.as_deref())?;
    Ok(Json(desk.places.run(&caller, chosen, operation).await?))
}

/// A tag to make or delete.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct TagBody {
    /// The repository: absolute, below a root.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// How paths are written.
    path_encoding: Option<PathEncoding>,
    /// Its name.
    #[schema(example = "v1.0")]
    name: String,
    /// The commit that it names; the current one unless given.
    r#ref: Option<String>,
    /// Its message; without one it is no more than a name.
    message: Option<String>,
    /// Whether it is deleted.
    delete: Option<bool>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<VmField>,
}

/// Make or delete a tag
///
/// One with a message is the key's. A name that is taken is 409. In a VM it needs the scope `swarm:exec` besides.
#[utoipa::path(
    post, path = "/api/git/tag", tag = "git", operation_id = "git_change_tag", security(("bearer" = ["git:write"])),
    request_body(content = TagBody, example = json!({"path": "/srv/workspace/project", "name": "v1.0"})),
    responses((status = 200, description = "It was made, or deleted", body = TagChanged), GitWriteRefused)
)]
async fn change_tag(
    State(desk): State<GitDesk>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: Call,
    Body(body): Body<TagBody>,
) -> Answer<TagChanged> {
    let chosen = written(body.vm.as_ref(), &call)?;
    let operation = GitChangeTag {
        path: path("path", &body.path, body.path_encoding)?,
        name: word("name", body.name)?,
        revision: body.r#ref,
        message: body.message,
        delete: body.delete.unwrap_or(false),
        tagger: key_as_person(&caller),
    };
    Ok(Json(desk.places.run(&caller, chosen, operation).await?))
}

/// What is merged.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
struct MergeBody {
    /// The work tree, or a folder in it: absolute, below a root.
    #[schema(example = "/srv/workspace/project")]
    path: String,
    /// How paths are written.
    path_encoding: Option<PathEncoding>,
    /// The branch, tag or commit that is merged into the current branch.
    #[schema(example = "topic")]
    r#ref: String,
    /// Whether it is refused where the current branch has commits of its own.
    ff_only: Option<bool>,
    /// What a merge commit says; git's own words unless given.
    message: Option<String>,
    /// A VM, by process id, id or name; the server's workspace unless given.
    vm: Option<VmField>,
}

/// Merge
///
/// Into the current branch, without a merge commit where that has no commits of its own. Where both sides conflict it is 409, with
/// the files, and branch and work tree are as they were before. In a VM it needs the scope `swarm:exec` besides.
#[utoipa::path(
    post, path = "/api/git/merge", tag = "git", operation_id = "git_merge", security(("bearer" = ["git:write"])),
    request_body(content = MergeBody, example = json!({"path": "/srv/workspace/project", "ref": "topic"})),
    responses((status = 200, description = "What is new", body = Pulled), GitWriteRefused)
)]
async fn merge(
    State(desk): State<GitDesk>,
    caller: Caller<GitWrite>,
    _: Query<NoParameters>,
    call: Call,
    Body(body): Body<MergeBody>,
) -> Answer<Pulled> {
    let chosen = written(body.vm.as_ref(), &call)?;
    let operation = GitMerge {
        path: path("path", &body.path, body.path_encoding)?,
        revision: word("ref", body.r#ref)?,
        ff_only: body.ff_only.unwrap_or(false),
        message: body.message,
        committer: key_as_person(&caller),
        reach: desk.reach_of_filters(&chosen, &caller).await?,
    };
    Ok(Json(desk.places.run(&caller, chosen, operation).await?))
}
