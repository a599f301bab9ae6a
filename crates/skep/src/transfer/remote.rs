//! The remote end of a copy: the server's workspace or a VM.

use std::{
    ffi::OsStr,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use skep_api::{
    ErrorCode,
    files::{FileType, FolderEntry, ListFolder},
    path::{AbsolutePath, LinkTarget, PathEncoding, percent_encoded},
};
use skep_client::RemotePlace;

use super::{
    copy::joined,
    plan::{Plan, is_name},
};

/// Lists a path recursively, without devices.
pub(super) async fn plan(place: &RemotePlace, source: &Path) -> anyhow::Result<Plan> {
    let mut plan = Plan::default();
    let mut folders = vec![PathBuf::new()];
    match metadata(place, source).await? {
        Some(Metadata { is_folder: true, mode, .. }) => plan.add_folder(Path::new(""), mode),
        Some(Metadata { mode, size_bytes, .. }) => {
            plan.add_file(Path::new(""), mode, size_bytes);
            return Ok(plan);
        }
        None => anyhow::bail!("{} does not exist there", source.display()),
    }
    while let Some(folder) = folders.pop() {
        let path = joined(source, &folder);
        for entry in list(place, &path).await? {
            let below = folder.join(name_of(&entry)?);
            match entry.r#type {
                FileType::File => plan.add_file(&below, mode_of(&entry), entry.size_bytes),
                FileType::Directory => {
                    plan.add_folder(&below, mode_of(&entry));
                    folders.push(below);
                }
                FileType::Symlink => plan.add_link(&below, target_of(&entry)?),
                FileType::Other => plan.left_out.push(source.join(below)),
            }
        }
    }
    Ok(plan)
}

/// Whether the path is a folder; `None` if it does not exist.
pub(crate) async fn is_folder(place: &RemotePlace, path: &Path) -> anyhow::Result<Option<bool>> {
    match place.run(&ListFolder::first_page(absolute(path)?)).await {
        Ok(_) => Ok(Some(true)),
        Err(error) if error.has_code(ErrorCode::NotADirectory) => Ok(Some(false)),
        Err(error) if error.has_code(ErrorCode::UnknownPath) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The names of the symbolic links in a folder.
pub(super) async fn links_in(place: &RemotePlace, path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = list(place, path).await?;
    entries.iter().filter(|entry| entry.r#type == FileType::Symlink).map(name_of).collect()
}

/// Converts a path for the API.
pub(crate) fn absolute(path: &Path) -> anyhow::Result<AbsolutePath> {
    Ok(AbsolutePath::parse("PATH", &percent_encoded(path.as_os_str()), PathEncoding::Percent)?)
}

struct Metadata {
    is_folder: bool,
    mode: u32,
    size_bytes: u64,
}

/// The metadata of a path, read from its parent. A folder gets the default mode, as its parent may be out of reach.
async fn metadata(place: &RemotePlace, path: &Path) -> anyhow::Result<Option<Metadata>> {
    if is_folder(place, path).await? == Some(true) {
        return Ok(Some(Metadata { is_folder: true, mode: 0o755, size_bytes: 0 }));
    }
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else { return Ok(None) };
    for entry in list(place, folder).await? {
        if name_of(&entry)?.as_os_str() == name {
            let (mode, size_bytes) = match entry.r#type {
                FileType::File => (mode_of(&entry), entry.size_bytes),
                // A link that the user named is followed; its size is known only after reading.
                _ => (0o644, 0),
            };
            return Ok(Some(Metadata { is_folder: false, mode, size_bytes }));
        }
    }
    Ok(None)
}

async fn list(place: &RemotePlace, folder: &Path) -> anyhow::Result<Vec<FolderEntry>> {
    let (mut list, mut entries) = (ListFolder::first_page(absolute(folder)?), Vec::new());
    loop {
        let page = place.run(&list).await?.value;
        entries.extend(page.entries);
        if page.next_cursor.is_none() {
            return Ok(entries);
        }
        list.cursor = page.next_cursor;
    }
}

/// The name of an entry. It is checked, because a VM may send anything.
fn name_of(entry: &FolderEntry) -> anyhow::Result<PathBuf> {
    let encoding = entry.name_encoding.unwrap_or_default();
    let path = AbsolutePath::parse("name", &format!("/{}", entry.name), encoding)?;
    let name = PathBuf::from(OsStr::from_bytes(&path.as_path().as_os_str().as_bytes()[1..]));
    anyhow::ensure!(
        is_name(&name),
        "a folder contains the invalid name `{}`; nothing was copied",
        entry.name
    );
    Ok(name)
}

/// The target of a link. It is checked, because a VM may send anything.
fn target_of(entry: &FolderEntry) -> anyhow::Result<LinkTarget> {
    let target = entry.target.as_deref().unwrap_or_default();
    let parsed = LinkTarget::parse("target", target, entry.target_encoding.unwrap_or_default());
    parsed.map_err(|why| anyhow::anyhow!("the link {} cannot be read: {}", entry.path, why.message))
}

fn mode_of(entry: &FolderEntry) -> u32 {
    u32::from_str_radix(&entry.mode, 8).unwrap_or(0o600)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn a_name_from_a_vm_cannot_escape_the_folder() {
        let entry = |name: &str, name_encoding| FolderEntry {
            name: name.to_owned(),
            path: String::new(),
            name_encoding,
            r#type: FileType::File,
            size_bytes: 0,
            mode: "0644".to_owned(),
            uid: 0,
            gid: 0,
            modified_at: Timestamp::UNIX_EPOCH,
            target: None,
            target_encoding: None,
        };
        let percent = Some(PathEncoding::Percent);
        assert_eq!(name_of(&entry("a%2Fb", None)).unwrap(), Path::new("a%2Fb"));
        assert_eq!(name_of(&entry("%FF", percent)).unwrap(), Path::new(OsStr::from_bytes(b"\xff")));
        for (name, encoding) in [
            ("..", None),
            ("../x", None),
            ("/etc/passwd", None),
            ("", None),
            ("a%2F..%2Fb", percent),
            ("%2e%2e", percent),
        ] {
            assert!(name_of(&entry(name, encoding)).is_err(), "{name}");
        }
    }
}
