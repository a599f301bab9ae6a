//! Git operations on repositories of the server's workspace or of a VM.

mod requests;

use http::Method;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use skep_api::{
    git::{
        BranchChanged, Branches, CheckedOut, Cloned, Committed, CredentialPage, CredentialRemoved, Diff,
        FetchedRefs, Initialized, KeptCredential, Log, PullStrategy, Pulled, Pushed, RemoteChanged, Remotes,
        Repositories, RepositoryStatus, ResetDone, ResetMode, Shown, Staged, StashAction, Stashes,
        TagChanged, Tags, WorktreeChanged, Worktrees,
    },
    path::{AbsolutePath, percent_encoded},
};

pub use requests::{CloneRequest, CommitRequest, DiffQuery, LogQuery, Upstream};

use crate::{Answered, Client, Result, client::with_query};

/// A repository, or without a path the only repository of a workspace. Clones refer to the same repository.
#[derive(Debug, Clone)]
pub struct Repository {
    client: Client,
    place: Map<String, Value>,
}

impl Client {
    /// `GET /api/git/repositories`: lists the repositories of a VM, or of the server's workspace.
    ///
    /// # Errors
    /// `unknown_vm`, and those of every request.
    pub async fn repositories(&self, vm: Option<&str>) -> Result<Answered<Repositories>> {
        self.get(&with_query("api/git/repositories", &[("vm", vm.map(str::to_owned))])).await
    }

    /// `GET /api/git/credentials`: lists the stored credentials. One page holds as many as an account can have.
    ///
    /// # Errors
    /// Those of every request: see [`crate::Error`].
    pub async fn git_credentials(&self) -> Result<Answered<CredentialPage>> {
        self.get("api/git/credentials?limit=1000").await
    }

    /// `POST /api/git/credentials`: stores a token for a host.
    ///
    /// # Errors
    /// `invalid_value`, and those of every request.
    pub async fn set_git_credential(
        &self,
        host: &str,
        token: &str,
        username: Option<&str>,
    ) -> Result<Answered<KeptCredential>> {
        let mut body = json!({"host": host, "token": token});
        if let Some(username) = username {
            body["username"] = json!(username);
        }
        self.post("api/git/credentials", &body).await
    }

    /// `DELETE /api/git/credentials`: removes the token of a host.
    ///
    /// # Errors
    /// `unknown_credential`, and those of every request.
    pub async fn remove_git_credential(&self, host: &str) -> Result<Answered<CredentialRemoved>> {
        self.delete(&with_query("api/git/credentials", &[("host", Some(host.to_owned()))])).await
    }

    /// A repository of a VM, given by process id, id or name, or of the server's workspace. Without a path, some
    /// operations use the only repository of the workspace.
    pub fn git(&self, vm: Option<&str>, path: Option<&AbsolutePath>) -> Repository {
        let mut place = Map::new();
        if let Some(path) = path {
            let path = path.as_path();
            place.insert(
                "path".to_owned(),
                json!(path.to_str().map_or_else(|| percent_encoded(path.as_os_str()), str::to_owned)),
            );
            if path.to_str().is_none() {
                place.insert("path_encoding".to_owned(), json!("percent"));
            }
        }
        place.extend(vm.map(|vm| ("vm".to_owned(), json!(vm))));
        Repository { client: self.clone(), place }
    }
}

impl Repository {
    /// `GET /api/git/status`: the changes in the work tree.
    ///
    /// # Errors
    /// `unknown_path`, `unknown_repository`, `path_outside_roots`, and those of every request.
    pub async fn status(&self) -> Result<Answered<RepositoryStatus>> {
        self.get("status", &json!({})).await
    }

    /// `GET /api/git/diff`: the difference between two states of the files.
    ///
    /// # Errors
    /// As [`Self::status`]; `unknown_revision`.
    pub async fn diff(&self, query: &DiffQuery) -> Result<Answered<Diff>> {
        self.get("diff", query).await
    }

    /// `GET /api/git/log`: a page of commits, newest first.
    ///
    /// # Errors
    /// As [`Self::diff`].
    pub async fn log(&self, query: &LogQuery) -> Result<Answered<Log>> {
        self.get("log", query).await
    }

    /// `GET /api/git/branch`: lists the branches, with `remote` including remote-tracking branches.
    ///
    /// # Errors
    /// As [`Self::status`].
    pub async fn branches(&self, remote: bool) -> Result<Answered<Branches>> {
        self.get("branch", &json!({"remote": remote})).await
    }

    /// `GET /api/git/worktree`: lists the work trees.
    ///
    /// # Errors
    /// As [`Self::status`].
    pub async fn worktrees(&self) -> Result<Answered<Worktrees>> {
        self.get("worktree", &json!({})).await
    }

    /// `POST /api/git/add`: stages these files, or all.
    ///
    /// # Errors
    /// As [`Self::status`].
    pub async fn add(&self, files: Option<&[String]>) -> Result<Answered<Staged>> {
        self.post("add", &json!({"files": files})).await
    }

    /// `POST /api/git/commit`: commits the staged changes.
    ///
    /// # Errors
    /// As [`Self::status`]; `nothing_to_commit`.
    pub async fn commit(&self, request: &CommitRequest) -> Result<Answered<Committed>> {
        self.post("commit", request).await
    }

    /// `POST /api/git/push`: pushes a branch to a remote.
    ///
    /// # Errors
    /// As [`Self::status`]; `push_rejected`, `remote_failed`.
    pub async fn push(
        &self,
        to: &Upstream,
        set_upstream: bool,
        force_with_lease: bool,
    ) -> Result<Answered<Pushed>> {
        let more = json!({"set_upstream": set_upstream, "force_with_lease": force_with_lease});
        self.post("push", &merge_fields(to, more)).await
    }

    /// `POST /api/git/pull`: fetches a branch and combines it with the current branch.
    ///
    /// # Errors
    /// As [`Self::status`]; `remote_failed`, `merge_conflict`.
    pub async fn pull(&self, from: &Upstream, strategy: PullStrategy) -> Result<Answered<Pulled>> {
        self.post("pull", &merge_fields(from, json!({"strategy": strategy}))).await
    }

    /// `POST /api/git/init`: creates a repository, with `bare` without a work tree.
    ///
    /// # Errors
    /// `already_exists`, `path_outside_roots`, and those of every request.
    pub async fn init(&self, bare: bool) -> Result<Answered<Initialized>> {
        self.post("init", &json!({"bare": bare})).await
    }

    /// `GET /api/git/show`: a commit, by default the current one, with its changes or with the content of one file.
    ///
    /// # Errors
    /// As [`Self::diff`]; `unknown_path`.
    pub async fn show(&self, revision: Option<&str>, file: Option<&str>) -> Result<Answered<Shown>> {
        self.get("show", &json!({"ref": revision, "file": file})).await
    }

    /// `POST /api/git/fetch`: fetches all branches of a remote.
    ///
    /// # Errors
    /// As [`Self::status`]; `remote_failed`.
    pub async fn fetch(&self, remote: Option<&str>, prune: bool) -> Result<Answered<FetchedRefs>> {
        self.post("fetch", &json!({"remote": remote, "prune": prune})).await
    }

    /// `POST /api/git/merge`: merges a commit into the current branch.
    ///
    /// # Errors
    /// As [`Self::diff`]; `merge_conflict`.
    pub async fn merge(
        &self,
        revision: &str,
        ff_only: bool,
        message: Option<&str>,
    ) -> Result<Answered<Pulled>> {
        self.post("merge", &json!({"ref": revision, "ff_only": ff_only, "message": message})).await
    }

    /// `GET /api/git/remote`: lists the remotes.
    ///
    /// # Errors
    /// As [`Self::status`].
    pub async fn remotes(&self) -> Result<Answered<Remotes>> {
        self.get("remote", &json!({})).await
    }

    /// `POST /api/git/remote`: adds a remote, or with `replace` changes the URL of an existing one.
    ///
    /// # Errors
    /// As [`Self::status`]; `already_exists`, `unknown_remote`, `remote_forbidden`.
    pub async fn set_remote(&self, name: &str, url: &str, replace: bool) -> Result<Answered<RemoteChanged>> {
        self.post("remote", &json!({"name": name, "url": url, "replace": replace})).await
    }

    /// `POST /api/git/remote` with `remove`: removes a remote.
    ///
    /// # Errors
    /// As [`Self::status`]; `unknown_remote`.
    pub async fn remove_remote(&self, name: &str) -> Result<Answered<RemoteChanged>> {
        self.post("remote", &json!({"name": name, "remove": true})).await
    }

    /// `GET /api/git/tag`: lists the tags.
    ///
    /// # Errors
    /// As [`Self::status`].
    pub async fn tags(&self) -> Result<Answered<Tags>> {
        self.get("tag", &json!({})).await
    }

    /// `POST /api/git/tag`: creates a tag, which is annotated if it has a message.
    ///
    /// # Errors
    /// As [`Self::diff`]; `already_exists`.
    pub async fn create_tag(
        &self,
        name: &str,
        revision: Option<&str>,
        message: Option<&str>,
    ) -> Result<Answered<TagChanged>> {
        self.post("tag", &json!({"name": name, "ref": revision, "message": message})).await
    }

    /// `POST /api/git/tag` with `delete`: deletes a tag.
    ///
    /// # Errors
    /// As [`Self::diff`].
    pub async fn delete_tag(&self, name: &str) -> Result<Answered<TagChanged>> {
        self.post("tag", &json!({"name": name, "delete": true})).await
    }

    /// `POST /api/git/clone`: clones `source` to this path.
    ///
    /// # Errors
    /// As [`Self::init`]; `remote_failed`.
    pub async fn clone_from(&self, source: &CloneRequest) -> Result<Answered<Cloned>> {
        self.post("clone", source).await
    }

    /// `POST /api/git/checkout`: checks out a branch or a commit, with `create` a new branch.
    ///
    /// # Errors
    /// As [`Self::diff`]; also if local changes would be lost.
    pub async fn checkout(&self, revision: &str, create: bool) -> Result<Answered<CheckedOut>> {
        self.post("checkout", &json!({"ref": revision, "create": create})).await
    }

    /// `POST /api/git/branch`: creates a branch at `from` or the current commit.
    ///
    /// # Errors
    /// As [`Self::diff`]; `already_exists`.
    pub async fn create_branch(&self, name: &str, from: Option<&str>) -> Result<Answered<BranchChanged>> {
        self.post("branch", &json!({"name": name, "from": from})).await
    }

    /// `POST /api/git/branch` with `delete`: deletes a branch, with `force` even if it is not merged.
    ///
    /// # Errors
    /// As [`Self::diff`]; also if the branch is checked out.
    pub async fn delete_branch(&self, name: &str, force: bool) -> Result<Answered<BranchChanged>> {
        self.post("branch", &json!({"name": name, "delete": true, "force": force})).await
    }

    /// `POST /api/git/worktree`: adds a work tree with `revision` checked out, or with `remove` removes it.
    ///
    /// # Errors
    /// As [`Self::diff`]; `already_exists`.
    pub async fn change_worktree(
        &self,
        worktree: &AbsolutePath,
        revision: Option<&str>,
        remove: bool,
    ) -> Result<Answered<WorktreeChanged>> {
        // Both paths of a request have the same encoding.
        let worktree = match self.place.contains_key("path_encoding") {
            true => percent_encoded(worktree.as_path().as_os_str()),
            false => worktree.as_path().display().to_string(),
        };
        self.post("worktree", &json!({"worktree": worktree, "ref": revision, "remove": remove})).await
    }

    /// `POST /api/git/reset`: moves the current branch to another commit.
    ///
    /// # Errors
    /// As [`Self::diff`].
    pub async fn reset(&self, to: Option<&str>, mode: ResetMode) -> Result<Answered<ResetDone>> {
        self.post("reset", &json!({"to": to, "mode": mode})).await
    }

    /// `POST /api/git/stash`: stashes changes, applies, drops or lists stashes.
    ///
    /// # Errors
    /// As [`Self::status`]; `nothing_to_commit`, `merge_conflict`.
    pub async fn stash(&self, action: StashAction, message: Option<&str>) -> Result<Answered<Stashes>> {
        self.post("stash", &json!({"action": action, "message": message})).await
    }

    async fn get<T: DeserializeOwned>(
        &self,
        verb: &str,
        query: &(impl Serialize + Sync),
    ) -> Result<Answered<T>> {
        let given: Vec<(String, Option<String>)> =
            self.with_repository(query).into_iter().map(query_parameter).collect();
        let given: Vec<_> = given.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        self.client.get(&with_query(&format!("api/git/{verb}"), &given)).await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        verb: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<Answered<T>> {
        let request = self.client.request(Method::POST, &format!("api/git/{verb}"))?;
        self.client.read(request.json(&self.with_repository(body))).await
    }

    /// The parameters of a request with those of the repository. Null values are omitted.
    fn with_repository(&self, asked: &impl Serialize) -> Map<String, Value> {
        let mut all = self.place.clone();
        if let Ok(Value::Object(asked)) = serde_json::to_value(asked) {
            all.extend(asked.into_iter().filter(|(_, value)| !value.is_null()));
        }
        all
    }
}

fn merge_fields(upstream: &Upstream, mut more: Value) -> Value {
    if let (Ok(Value::Object(upstream)), Value::Object(more)) = (serde_json::to_value(upstream), &mut more) {
        more.extend(upstream);
    }
    more
}

/// Converts a value to a query parameter: a string without quotes, other values as JSON.
fn query_parameter((name, value): (String, Value)) -> (String, Option<String>) {
    let text = match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    (name, Some(text))
}
