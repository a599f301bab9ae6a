//! Lists, changes and fetches the remotes of a repository.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write,
};

use skep_api::{
    budget::Budget,
    git::{
        FetchedRef, FetchedRefs, GitChangeRemote, GitFetchRemote, GitRemotes, Remote as Listed, RemoteChange,
        RemoteChanged, Remotes,
    },
};

use super::{
    GitError,
    branch::check_branch_name,
    config::last_value,
    lock::write_lock,
    remote::{Remote, redacted},
    repository::{Repository, is_hash},
    upstream::Upstream,
};
use crate::{Error, Place, Run};

/// Limit of a list of references that is compared, in bytes.
const MAX_LIST_BYTES: usize = 8 << 20;

impl Run for GitRemotes {
    async fn run(self, place: &Place) -> Result<Remotes, Error> {
        let repository = Repository::find(place, self.path.as_ref()).await?;
        let text = |key: String| {
            last_value(&repository.config, key.as_bytes()).map(|url| redacted(&String::from_utf8_lossy(url)))
        };
        let remotes = remote_names(&repository).into_iter().filter_map(|name| {
            let url = text(format!("remote.{name}.url"))?;
            Some(Listed { url, push_url: text(format!("remote.{name}.pushurl")), name })
        });
        let mut remotes: Vec<_> = remotes.collect();
        let truncated = Budget::default().truncate_page(&mut remotes);
        Ok(Remotes { remotes, truncated })
    }
}

/// The names of remotes with a URL.
fn remote_names(repository: &Repository) -> BTreeSet<String> {
    let keys =
        repository.config.iter().filter_map(|own| own.key.strip_prefix(b"remote.")?.strip_suffix(b".url"));
    keys.filter_map(|name| String::from_utf8(name.to_vec()).ok()).collect()
}

impl Run for GitChangeRemote {
    async fn run(self, place: &Place) -> Result<RemoteChanged, Error> {
        let repository = Repository::find(place, Some(&self.path)).await?;
        check_branch_name(&repository, "name", &format!("{}/x", self.name)).await?;
        let _turn = write_lock(&repository.common_dir).await?;
        let is_known = remote_names(&repository).contains(&self.name);
        let change = self.change().map_err(|_| {
            let reason = "does not go with `replace` and `remove`".to_owned();
            Error::InvalidValue { field: "url", reason }
        })?;
        let (git, url) = match change {
            RemoteChange::Add(_) if is_known => {
                let message = format!(
                    "the remote `{}` already exists; pass `replace: true` to change its URL",
                    self.name
                );
                return Err(GitError::AlreadyExists { message }.into());
            }
            RemoteChange::SetUrl(_) | RemoteChange::Remove if !is_known => {
                return Err(GitError::UnknownRemote { remote: self.name }.into());
            }
            RemoteChange::Add(url) => {
                Remote::parse(url)?;
                (repository.git().args(["remote", "add", "--", &self.name, url]), Some(url))
            }
            RemoteChange::SetUrl(url) => {
                Remote::parse(url)?;
                let key = format!("remote.{}.url", self.name);
                (repository.git().args(["config", "--local", "--replace-all", &key, url]), Some(url))
            }
            RemoteChange::Remove => (repository.git().args(["remote", "remove", "--", &self.name]), None),
        };
        repository.run_checked(git).await?;
        Ok(RemoteChanged { url: url.map(redacted), removed: url.is_none(), name: self.name })
    }
}

impl Run for GitFetchRemote {
    async fn run(self, place: &Place) -> Result<FetchedRefs, Error> {
        let repository = Repository::find(place, self.path.as_ref()).await?.with_submodules(place).await?;
        let current = repository.branch().await?;
        let upstream = Upstream::find(
            place,
            &repository,
            self.remote.as_deref(),
            current.as_deref(),
            &place.context().reach,
            false,
        )
        .await?;
        let name = upstream.name.clone();
        check_branch_name(&repository, "remote", &format!("{name}/x")).await?;
        let _turn = write_lock(&repository.common_dir).await?;
        let before = RemoteRefs::read(&repository, &name).await?;
        let git = upstream.connected_git(&repository, "fetch", "upload-pack")?;
        let git = git.args([
            "--quiet",
            "--no-auto-maintenance",
            "--recurse-submodules=no",
            "--no-write-commit-graph",
        ]);
        let git = git.args([if self.prune { "--prune" } else { "--no-prune" }, "--no-prune-tags"]);
        let all = format!("+refs/heads/*:refs/remotes/{name}/*");
        let output = git.args(["--", &name, &all]).run().await?;
        if !output.is_success() {
            return Err(upstream.remote_error(&output).into());
        }
        before.fetched_refs(&repository, name).await
    }
}

/// The remote-tracking branches of a remote, and all tags, with their hashes by name.
pub(super) struct RemoteRefs(BTreeMap<String, String>);

impl RemoteRefs {
    pub(super) async fn read(repository: &Repository, remote: &str) -> Result<Self, Error> {
        let git = repository
            .read_only_git()
            .max_output(MAX_LIST_BYTES)
            .args(["for-each-ref", "--format=%(objectname) %(refname)"]);
        let output =
            repository.run_checked(git.args([&format!("refs/remotes/{remote}/"), "refs/tags/"])).await?;
        if output.truncated {
            let message = "the repository has more branches and tags than can be compared".to_owned();
            return Err(GitError::Other { message }.into());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let pairs = text.lines().filter_map(|line| line.split_once(' ')).filter(|(id, _)| is_hash(id));
        let head = format!("refs/remotes/{remote}/HEAD");
        let pairs = pairs.filter(|(_, name)| *name != head);
        Ok(Self(pairs.map(|(id, name)| (name.to_owned(), id.to_owned())).collect()))
    }

    /// The hash of a reference.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Compares these references with the current ones.
    pub(super) async fn fetched_refs(
        self,
        repository: &Repository,
        remote: String,
    ) -> Result<FetchedRefs, Error> {
        let now = Self::read(repository, &remote).await?;
        let names: BTreeSet<&str> = self.names().chain(now.names()).collect();
        let changed =
            names.into_iter().filter(|name| self.get(name) != now.get(name)).map(|name| FetchedRef {
                name: name.trim_start_matches("refs/remotes/").trim_start_matches("refs/tags/").to_owned(),
                from: self.get(name).map(str::to_owned),
                to: now.get(name).map(str::to_owned),
            });
        let mut changed: Vec<_> = changed.collect();
        let truncated = Budget::default().truncate_page(&mut changed);
        Ok(FetchedRefs { remote, changed, truncated })
    }

    /// The input of `git update-ref --stdin` that sets the remote's branches, and adds new tags, as they were
    /// exported.
    pub(super) fn update_commands(
        &self,
        exported: &skep_api::git::Exported,
        remote: &str,
        prune: bool,
    ) -> String {
        let (mut text, mut there) = (String::new(), BTreeSet::new());
        for one in &exported.refs {
            let name = match one.name.strip_prefix("refs/heads/") {
                Some("HEAD") => continue,
                Some(branch) => format!("refs/remotes/{remote}/{branch}"),
                // Existing tags are not moved.
                None if self.get(&one.name).is_some() => continue,
                None => one.name.clone(),
            };
            let _ = writeln!(text, "update {name} {}", one.id);
            there.insert(name);
        }
        let branches = format!("refs/remotes/{remote}/");
        let gone = self.names().filter(|name| name.starts_with(&branches) && !there.contains(*name));
        for name in gone.filter(|_| prune) {
            let _ = writeln!(text, "delete {name}");
        }
        text
    }
}
