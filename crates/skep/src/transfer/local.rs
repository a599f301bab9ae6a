//! The local end of a copy.

use std::{
    fs::{self, Permissions},
    io,
    os::unix::fs::{PermissionsExt, symlink},
    path::{Path, PathBuf},
    pin::pin,
};

use anyhow::Context;
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use skep_api::path::{LinkTarget, PathEncoding, percent_encoded};
use tempfile::NamedTempFile;
use tokio::{fs::File, io::AsyncWriteExt};
use tokio_util::io::ReaderStream;

use super::plan::Plan;

/// Size of one read, in bytes.
const CHUNK_BYTES: usize = 256 << 10;

/// Lists a path recursively, without devices.
pub(super) fn plan(source: &Path) -> anyhow::Result<Plan> {
    let mut plan = Plan::default();
    let mut found = vec![PathBuf::new()];
    while let Some(below) = found.pop() {
        let path = super::copy::joined(source, &below);
        // A link that the user named is followed; links below it are not.
        let about =
            if below.as_os_str().is_empty() { fs::metadata(&path) } else { fs::symlink_metadata(&path) };
        let about = about.with_context(|| format!("{} cannot be read", path.display()))?;
        let mode = about.permissions().mode();
        if about.is_file() {
            plan.add_file(&below, mode, about.len());
        } else if about.is_dir() {
            plan.add_folder(&below, mode);
            let entries = fs::read_dir(&path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
            let entries = entries.with_context(|| format!("{} cannot be listed", path.display()))?;
            found.extend(entries.iter().map(|entry| below.join(entry.file_name())));
        } else if about.is_symlink() {
            let target =
                fs::read_link(&path).with_context(|| format!("{} cannot be read", path.display()))?;
            let text = percent_encoded(target.as_os_str());
            plan.add_link(&below, LinkTarget::parse("target", &text, PathEncoding::Percent)?);
        } else {
            plan.left_out.push(path);
        }
    }
    Ok(plan)
}

/// Whether the path is a folder; `None` if it does not exist.
pub(super) fn is_folder(path: &Path) -> Option<bool> {
    fs::metadata(path).ok().map(|about| about.is_dir())
}

/// The names of the symbolic links in a folder.
pub(super) fn links_in(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let entries = entries.with_context(|| format!("{} cannot be listed", path.display()))?;
    let links = entries.iter().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink()));
    Ok(links.map(|entry| entry.file_name().into()).collect())
}

/// Creates a link and replaces an existing file or link.
pub(super) fn make_link(path: &Path, target: &LinkTarget) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let made = tempfile::Builder::new()
        .make_in(folder, |name| symlink(target.as_os_str(), name))
        .and_then(|link| link.into_temp_path().persist(path).map_err(|error| error.error));
    made.with_context(|| format!("{} cannot be created", path.display()))
}

/// Creates a folder and returns true, or returns false if it exists.
pub(super) fn make_folder(path: &Path, mode: u32) -> anyhow::Result<bool> {
    if is_folder(path) == Some(true) {
        return Ok(false);
    }
    let made =
        fs::create_dir_all(path).and_then(|()| fs::set_permissions(path, Permissions::from_mode(mode)));
    made.with_context(|| format!("{} cannot be created", path.display()))?;
    Ok(true)
}

pub(super) async fn read(
    path: &Path,
) -> anyhow::Result<impl Stream<Item = io::Result<Bytes>> + Send + 'static> {
    let file = File::open(path).await.with_context(|| format!("{} cannot be read", path.display()))?;
    Ok(ReaderStream::with_capacity(file, CHUNK_BYTES))
}

/// Writes a file atomically, so that it has either all of the new content or the old one.
pub(super) async fn write<E: Into<anyhow::Error>>(
    path: &Path,
    mode: u32,
    pieces: impl Stream<Item = Result<Bytes, E>>,
) -> anyhow::Result<()> {
    let cannot = || format!("{} cannot be written", path.display());
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let temporary = NamedTempFile::new_in(folder).with_context(cannot)?;
    let mut file = File::from_std(temporary.as_file().try_clone().with_context(cannot)?);
    let mut pieces = pin!(pieces);
    while let Some(piece) = pieces.next().await {
        file.write_all(&piece.map_err(Into::into)?).await.with_context(cannot)?;
    }
    file.flush().await.with_context(cannot)?;
    file.set_permissions(Permissions::from_mode(mode)).await.with_context(cannot)?;
    temporary.persist(path).map_err(|error| error.error).with_context(cannot)?;
    Ok(())
}
