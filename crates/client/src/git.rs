//! Git: repositories of the server's workspace, or those of a VM.

use http::Method;
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};
use skep_api::{
    git::{
        BranchChanged, Branches, CheckedOut, Cloned, Committed, Diff, Initialized, Log, Person, PullStrategy,
        Pulled, Pushed, RepositoryStatus, ResetDone, ResetMode, Staged, StashAction, Stashes,
        WorktreeChanged, Worktrees,
    },
    path::{AbsolutePath, encoded},
};

use crate::{Answered, Client, Result, client::with_query};

/// One repository, or the one that the place holds. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Repository {
    client: Client,
    place: Map<String, Value>,
}

/// What is compared; nothing given: the work tree with what is staged.
#[derive(Debug, Clone, Default, Serialize)]
pub struct DiffQuery {
    /// What is staged with the current commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub staged: Option<bool>,
    /// A commit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Only this file or folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Lines around each change; 3 unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<u32>,
}

/// Which commits, newest first.
#[derive(Debug, Clone, Default, Serialize)]
pub struct LogQuery {
    /// Where to begin; the current commit unless given.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Only those that touch this file or folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Commits on the page; 50 unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    /// `next_cursor` of the page before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A commit to be made.
#[derive(Debug, Clone, Default, Serialize)]
pub struct CommitRequest {
    /// What it says.
    pub message: String,
    /// Who wrote it; the key unless given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub author: Option<Person>,
    /// With all changes of files that git knows.
    pub all: bool,
    /// In the place of the current commit.
    pub amend: bool,
    /// Also where it changes nothing.
    pub allow_empty: bool,
}

/// Where a branch goes, or comes from; what is not given is the branch's upstream, or `origin`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Upstream {
    /// A remote's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remote: Option<String>,
    /// The branch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
}

impl Client {
    /// A repository of this VM, given by process id, id or name, or of the server's workspace. Without a path some calls find the
    /// only one there is.
    pub fn git(&self, vm: Option<&str>, path: Option<&AbsolutePath>) -> Repository {
        let mut place = Map::new();
        if let Some(path) = path {
            let path = path.as_path();
            place.insert(
                "path".to_owned(),
                json!(path.to_str().map_or_else(|| encoded(path.as_os_str()), str::to_owned)),
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
    /// `GET /api/git/status`.
    ///
    /// # Errors
    /// `unknown_path`, `not_a_repository`, `path_outside_roots`, and those of every call.
    pub async fn status(&self) -> Result<Answered<RepositoryStatus>> {
        self.get("status", &json!({})).await
    }

    /// `GET /api/git/diff`.
    ///
    /// # Errors
    /// As [`Self::status`]; `unknown_revision`.
    pub async fn diff(&self, query: &DiffQuery) -> Result<Answered<Diff>> {
        self.get("diff", query).await
    }

    /// `GET /api/git/log`.
    ///
    /// # Errors
    /// As [`Self::diff`].
    pub async fn log(&self, query: &LogQuery) -> Result<Answered<Log>> {
        self.get("log", query).await
    }

    /// `GET /api/git/branch`, those of remotes too where `remote`.
    ///
    /// # Errors
    /// As [`Self::status`].
    pub async fn branches(&self, remote: bool) -> Result<Answered<Branches>> {
        self.get("branch", &json!({"remote": remote})).await
    }

    /// `GET /api/git/worktree`.
    ///
    /// # Errors
    /// As [`Self::status`].
    pub async fn worktrees(&self) -> Result<Answered<Worktrees>> {
        self.get("worktree", &json!({})).await
    }

    /// `POST /api/git/add`: these files, or all.
    ///
    /// # Errors
    /// As [`Self::status`].
    pub async fn add(&self, files: Option<&[String]>) -> Result<Answered<Staged>> {
        self.post("add", &json!({"files": files})).await
    }

    /// `POST /api/git/commit`.
    ///
    /// # Errors
    /// As [`Self::status`]; `nothing_to_commit`.
    pub async fn commit(&self, request: &CommitRequest) -> Result<Answered<Committed>> {
        self.post("commit", request).await
    }

    /// `POST /api/git/push`.
    ///
    /// # Errors
    /// As [`Self::status`]; `push_rejected`, `remote_refused`.
    pub async fn push(
        &self,
        to: &Upstream,
        set_upstream: bool,
        force_with_lease: bool,
    ) -> Result<Answered<Pushed>> {
        let more = json!({"set_upstream": set_upstream, "force_with_lease": force_with_lease});
        self.post("push", &joined(to, more)).await
    }

    /// `POST /api/git/pull`.
    ///
    /// # Errors
    /// As [`Self::status`]; what the remote refuses, a conflict.
    pub async fn pull(&self, from: &Upstream, strategy: PullStrategy) -> Result<Answered<Pulled>> {
        self.post("pull", &joined(from, json!({"strategy": strategy}))).await
    }

    /// `POST /api/git/init`.
    ///
    /// # Errors
    /// `already_exists`, `path_outside_roots`, and those of every call.
    pub async fn init(&self) -> Result<Answered<Initialized>> {
        self.post("init", &json!({})).await
    }

    /// `POST /api/git/clone`: another repository becomes this one.
    ///
    /// # Errors
    /// As [`Self::init`]; what the remote refuses.
    pub async fn clone_from(
        &self,
        url: &str,
        branch: Option<&str>,
        depth: Option<u32>,
    ) -> Result<Answered<Cloned>> {
        self.post("clone", &json!({"url": url, "branch": branch, "depth": depth})).await
    }

    /// `POST /api/git/checkout`.
    ///
    /// # Errors
    /// As [`Self::diff`]; changes that would be lost.
    pub async fn checkout(&self, revision: &str, create: bool) -> Result<Answered<CheckedOut>> {
        self.post("checkout", &json!({"ref": revision, "create": create})).await
    }

    /// `POST /api/git/branch`: makes one.
    ///
    /// # Errors
    /// As [`Self::diff`]; `already_exists`.
    pub async fn make_branch(&self, name: &str, from: Option<&str>) -> Result<Answered<BranchChanged>> {
        self.post("branch", &json!({"name": name, "from": from})).await
    }

    /// `POST /api/git/branch` with `delete`.
    ///
    /// # Errors
    /// As [`Self::diff`]; one that is checked out.
    pub async fn delete_branch(&self, name: &str, force: bool) -> Result<Answered<BranchChanged>> {
        self.post("branch", &json!({"name": name, "delete": true, "force": force})).await
    }

    /// `POST /api/git/worktree`: adds one with what `revision` names, or removes it.
    ///
    /// # Errors
    /// As [`Self::diff`]; `already_exists`.
    pub async fn change_worktree(
        &self,
        worktree: &AbsolutePath,
        revision: Option<&str>,
        remove: bool,
    ) -> Result<Answered<WorktreeChanged>> {
        // Both paths are written the way that the repository's is.
        let worktree = match self.place.contains_key("path_encoding") {
            true => encoded(worktree.as_path().as_os_str()),
            false => worktree.as_path().display().to_string(),
        };
        self.post("worktree", &json!({"worktree": worktree, "ref": revision, "remove": remove})).await
    }

    /// `POST /api/git/reset`.
    ///
    /// # Errors
    /// As [`Self::diff`].
    pub async fn reset(&self, to: Option<&str>, mode: ResetMode) -> Result<Answered<ResetDone>> {
        self.post("reset", &json!({"to": to, "mode": mode})).await
    }

    /// `POST /api/git/stash`.
    ///
    /// # Errors
    /// As [`Self::status`]; nothing to put away or to bring back, a conflict.
    pub async fn stash(&self, action: StashAction, message: Option<&str>) -> Result<Answered<Stashes>> {
        self.post("stash", &json!({"action": action, "message": message})).await
    }

    async fn get<T: DeserializeOwned>(
        &self,
        verb: &str,
        query: &(impl Serialize + Sync),
    ) -> Result<Answered<T>> {
        let given: Vec<(String, Option<String>)> = self.with_place(query).into_iter().map(written).collect();
        let given: Vec<_> = given.iter().map(|(name, value)| (name.as_str(), value.clone())).collect();
        self.client.get(&with_query(&format!("api/git/{verb}"), &given)).await
    }

    async fn post<T: DeserializeOwned>(
        &self,
        verb: &str,
        body: &(impl Serialize + Sync),
    ) -> Result<Answered<T>> {
        let request = self.client.request(Method::POST, &format!("api/git/{verb}"))?;
        self.client.read(request.json(&self.with_place(body))).await
    }

    /// What is asked, with the place; null is left out.
    fn with_place(&self, asked: &impl Serialize) -> Map<String, Value> {
        let mut all = self.place.clone();
        if let Ok(Value::Object(asked)) = serde_json::to_value(asked) {
            all.extend(asked.into_iter().filter(|(_, value)| !value.is_null()));
        }
        all
    }
}

fn joined(upstream: &Upstream, mut more: Value) -> Value {
    if let (Ok(Value::Object(upstream)), Value::Object(more)) = (serde_json::to_value(upstream), &mut more) {
        more.extend(upstream);
    }
    more
}

/// A value as it stands in a query.
fn written((name, value): (String, Value)) -> (String, Option<String>) {
    let text = match value {
        Value::String(text) => text,
        other => other.to_string(),
    };
    (name, Some(text))
}
