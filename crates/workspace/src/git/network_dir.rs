//! The git directory for git commands that use the network.
//!
//! A program of the account can change the repository's config at any time, and could make git send a token to another
//! host. Such commands therefore use a config of their own, which contains only entries that were checked. References and
//! objects are links to those of the repository.

use std::{fs, io, os::unix::fs::symlink, path::Path};

use rustix::{
    fs::{Mode, mkdirat},
    io::Errno,
};

use super::{
    config::{ConfigEntry, split_key},
    large_files,
    repository::Repository,
    temporary_folder::TemporaryFolder,
};
use crate::Error;

/// Folders of the repository that are linked. Git does not see anything else of the repository, such as config and hooks.
const SHARED_FOLDERS: [&str; 4] = ["objects", "refs", "reftable", "logs"];
/// Files of the repository that are linked. Git follows these links even to create a missing file.
const SHARED_FILES: [&str; 2] = ["packed-refs", "shallow"];
/// The folder of git-lfs in a git directory.
const LARGE_FILES: &str = "lfs";

#[derive(Debug)]
pub(super) struct NetworkDir(TemporaryFolder);

impl NetworkDir {
    /// Creates one for a remote of a repository at this URL.
    ///
    /// # Errors
    /// A failure of the file system.
    pub(super) async fn create(repository: &Repository, remote: &str, url: &str) -> Result<Self, Error> {
        let folder = TemporaryFolder::create_private(&repository.place).await?;
        let (path, common_dir) = (folder.path().to_owned(), repository.common_dir.clone());
        let mut config = own_config(&repository.config, remote, url);
        let has_setting = |key: &[u8]| repository.config.iter().any(|entry| entry.key == key);
        if repository.top_folder.is_some() && !has_setting(b"core.logallrefupdates") {
            // Git's default for a repository with a work tree.
            config.extend(b"[core]\n\tlogallrefupdates = true\n");
        }
        let writing = tokio::task::spawn_blocking(move || {
            write(&path, &common_dir, &config).map_err(|error| Error::of_path(&path, &error))
        });
        writing.await.map_err(|_| Error::WorkerFailed)??;
        Ok(Self(folder))
    }

    /// The repository with this git directory in place of its own, and without a work tree.
    pub(super) fn repository(&self, repository: &Repository) -> Repository {
        let path = self.0.path().to_owned();
        let place = repository.place.with_private_access();
        Repository { place, top_folder: None, common_dir: path.clone(), git_dir: path, ..repository.clone() }
    }

    /// Prepares it for git-lfs(1), which stores large files in a folder of the repository, and reads `.lfsconfig` of this commit.
    ///
    /// # Errors
    /// A failure of the file system.
    pub(super) async fn prepare_for_large_files(
        &self,
        repository: &Repository,
        commit: &str,
    ) -> Result<(), Error> {
        let (place, path, head) = (repository.place.clone(), self.0.path().to_owned(), format!("{commit}\n"));
        let storage = repository.common_dir.join(LARGE_FILES);
        let preparing = tokio::task::spawn_blocking(move || {
            let slot = place.roots()?.slot(&storage)?;
            match mkdirat(slot.folder(), slot.name(), Mode::from_raw_mode(0o755)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(Error::of_path(&storage, &error.into())),
            }
            let written =
                symlink(&storage, path.join(LARGE_FILES)).and_then(|()| fs::write(path.join("HEAD"), head));
            written.map_err(|error| Error::of_path(&path, &error))
        });
        preparing.await.map_err(|_| Error::WorkerFailed)?
    }
}

fn write(folder: &Path, common_dir: &Path, config: &[u8]) -> io::Result<()> {
    // Git cannot create a folder through a dangling link. If the repository has no reflogs yet, this call writes none.
    let folders = SHARED_FOLDERS.into_iter().filter(|name| common_dir.join(name).is_dir());
    for name in folders.chain(SHARED_FILES) {
        symlink(common_dir.join(name), folder.join(name))?;
    }
    fs::write(folder.join("config"), config)?;
    // Git requires the file. Commands always name the references that they send and fetch.
    fs::write(folder.join("HEAD"), "ref: refs/heads/main\n")
}

/// The config file (git-config(1)) for a remote at this URL.
fn own_config(config: &[ConfigEntry], remote: &str, url: &str) -> Vec<u8> {
    let entry = |key: String, value: &str| ConfigEntry { key: key.into(), value: Some(value.into()) };
    let own = [entry("core.bare".to_owned(), "true"), entry(format!("remote.{remote}.url"), url)];
    let kept = config.iter().filter(|entry| is_kept(entry, remote));
    own.iter().chain(kept).flat_map(config_lines).collect()
}

fn is_kept(ConfigEntry { key, value }: &ConfigEntry, remote: &str) -> bool {
    let Some((section, subsection, name)) = split_key(key) else { return false };
    match (section, subsection, name) {
        (b"core", b"", b"repositoryformatversion" | b"logallrefupdates" | b"sharedrepository") => true,
        // Git fetches missing objects from it.
        (b"extensions", b"", b"partialclone") => value.as_deref() == Some(remote.as_bytes()),
        // What the objects and references look like. `worktreeConfig` would make git read a further file.
        (b"extensions", b"", name) => name != b"worktreeconfig",
        (b"transfer" | b"fetch", b"", b"fsckobjects") => true,
        // How large a request is, and how it is sent.
        (b"http", _, b"postbuffer" | b"version") => true,
        (b"remote", own, b"tagopt" | b"promisor" | b"partialclonefilter" | b"lfsurl" | b"lfspushurl") => {
            own == remote.as_bytes()
        }
        (b"lfs", _, name) => large_files::is_harmless(name),
        // Git would refuse to fetch into the branch that is checked out, of which it knows nothing here.
        (b"remote", own, b"fetch") => {
            let target = value.as_deref().and_then(|refspec| refspec.rsplit(|byte| *byte == b':').next());
            own == remote.as_bytes() && target.is_some_and(|name| name.starts_with(b"refs/remotes/"))
        }
        _ => false,
    }
}

/// An entry with its section.
fn config_lines(ConfigEntry { key, value }: &ConfigEntry) -> Vec<u8> {
    let Some((section, subsection, name)) = split_key(key) else { return Vec::new() };
    let mut text = [b"[", section].concat();
    if !subsection.is_empty() {
        text.extend([b" \"", &escaped(subsection)[..], b"\""].concat());
    }
    text.extend([b"]\n\t", name].concat());
    // A name without a value means true.
    if let Some(value) = value {
        text.extend([b" = \"", &escaped(value)[..], b"\""].concat());
    }
    text.push(b'\n');
    text
}

fn escaped(text: &[u8]) -> Vec<u8> {
    let escape = |byte: &u8| match byte {
        b'\\' | b'"' => vec![b'\\', *byte],
        b'\n' => b"\\n".to_vec(),
        byte => vec![*byte],
    };
    text.iter().flat_map(escape).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use proptest::prelude::*;

    use super::*;

    fn entry(key: &[u8], value: &[u8]) -> ConfigEntry {
        ConfigEntry { key: key.to_vec(), value: Some(value.to_vec()) }
    }

    /// The entries as git reads them, without those of the server.
    fn read_by_git(text: &[u8]) -> Vec<ConfigEntry> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), text).unwrap();
        let mut git = Command::new("git");
        let output = git.args(["config", "--list", "-z", "--file"]).arg(file.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}: {text:?}");
        let mut entries = super::super::config::parse_config_list(&output.stdout);
        assert_eq!(entries.remove(0), entry(b"core.bare", b"true"));
        assert!(entries.remove(0).key.ends_with(b".url"));
        entries
    }

    #[test]
    fn it_has_the_entries_of_the_remote_and_of_the_format_alone() {
        let kept = [
            entry(b"core.repositoryformatversion", b"1"),
            entry(b"extensions.objectformat", b"sha256"),
            entry(b"http.https://git.example/.postbuffer", b"1m"),
            entry(b"remote.a.b.fetch", b"+refs/heads/*:refs/remotes/a.b/*"),
            entry(b"remote.a.b.promisor", b"true"),
            entry(b"extensions.partialclone", b"a.b"),
            entry(b"fetch.fsckobjects", b"true"),
            entry(b"lfs.url", b"https://large.example/x"),
            entry(b"lfs.https://large.example/.locksverify", b"false"),
            entry(b"remote.a.b.lfsurl", b"https://large.example/y"),
        ];
        let dropped = [
            entry(b"http.https://git.example/.sslverify", b"false"),
            entry(b"http.https://git.example/.proxy", b"http://attacker.example"),
            entry(b"http.extraheader", b"x: y"),
            entry(b"remote.a.b.url", b"https://attacker.example/x"),
            entry(b"remote.a.b.pushurl", b"https://attacker.example/x"),
            entry(b"remote.a.b.proxy", b"http://attacker.example"),
            entry(b"remote.a.b.uploadpack", b"touch /x"),
            entry(b"remote.a.b.fetch", b"+refs/heads/*:refs/heads/*"),
            entry(b"remote.other.fetch", b"+refs/heads/*:refs/remotes/other/*"),
            entry(b"url.https://attacker.example/.insteadof", b"https://git.example/"),
            entry(b"core.sshcommand", b"touch /x"),
            entry(b"lfs.customtransfer.x.path", b"/x"),
            entry(b"lfs.storage", b"/x"),
            entry(b"remote.other.lfsurl", b"https://attacker.example/x"),
            entry(b"extensions.worktreeconfig", b"true"),
            entry(b"extensions.partialclone", b"http://attacker.example/x"),
            entry(b"include.path", b"/x"),
        ];
        let config =
            own_config(&[&dropped[..6], &kept, &dropped[6..]].concat(), "a.b", "https://git.example/x");
        assert_eq!(read_by_git(&config), kept);
        assert!(
            String::from_utf8(config)
                .unwrap()
                .contains("[remote \"a.b\"]\n\turl = \"https://git.example/x\"\n")
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn git_reads_each_value_as_it_was(remote in "[^\\x00\n]{1,12}", value in "[^\\x00]{0,20}", url in "[!-~]{1,20}") {
            let key = format!("remote.{remote}.partialclonefilter");
            let kept = entry(key.as_bytes(), value.as_bytes());
            let config = own_config(std::slice::from_ref(&kept), &remote, &url);
            prop_assert_eq!(read_by_git(&config), [kept]);
        }
    }
}
