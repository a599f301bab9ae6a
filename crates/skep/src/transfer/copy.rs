//! Copies between two endpoints.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::Context;
use bytes::Bytes;
use futures_util::{TryStreamExt, future, stream};
use indicatif::ProgressBar;
use serde::Serialize;
use skep_api::{
    files::{MakeFolder, MakeLink},
    path::LinkTarget,
};
use skep_client::Client;

use super::{
    PathArgument, local,
    plan::{Item, Kind, Plan},
    remote,
};
use crate::{escape, place::PlaceWithHome};

/// Files that are copied concurrently, to hide the latency of each.
const MAX_CONCURRENT_FILES: usize = 4;

/// The result of a copy.
#[derive(Debug, Default, Serialize)]
pub(crate) struct CopySummary {
    pub files: u64,
    pub size_bytes: u64,
    pub links: u64,
    /// Devices, sockets and FIFOs, which are not copied.
    pub left_out: Vec<PathBuf>,
}

/// One end of a copy, with an absolute path on the server or in a VM.
struct Endpoint {
    place: Option<PlaceWithHome>,
    path: PathBuf,
    /// Whether the user named exactly this path; only then is a link at the path followed.
    is_given: bool,
}

/// Copies files and folders to `target`, or into it if it is a folder.
pub(crate) async fn copy(
    client: &Client,
    sources: &[PathArgument],
    target: &PathArgument,
    bar: &ProgressBar,
) -> anyhow::Result<CopySummary> {
    let target = Endpoint::open(client, target).await?;
    let into = target.is_folder().await?;
    anyhow::ensure!(
        sources.len() == 1 || into == Some(true),
        "{} is not a folder; several sources need one",
        target.path.display()
    );
    let mut copied = CopySummary::default();
    for source in sources {
        let source = Endpoint::open(client, source).await?;
        let (to, is_given) = match (into, source.path.file_name()) {
            (Some(true), Some(name)) => (target.path.join(name), false),
            _ => (target.path.clone(), true),
        };
        copy_one(&source, &Endpoint { place: target.place.clone(), path: to, is_given }, bar, &mut copied)
            .await?;
    }
    Ok(copied)
}

async fn copy_one(
    from: &Endpoint,
    to: &Endpoint,
    bar: &ProgressBar,
    copied: &mut CopySummary,
) -> anyhow::Result<()> {
    anyhow::ensure!(
        from.place.is_some() || to.place.is_some(),
        "both {} and {} are on this machine; name one of them as server:PATH or VM:PATH",
        from.path.display(),
        to.path.display()
    );
    let Plan { items, left_out } = from.plan(bar).await?;
    copied.left_out.extend(left_out);
    make_folders(to, &items).await?;
    let files = items.iter().filter(|item| matches!(item.kind, Kind::File { .. })).map(anyhow::Ok);
    let sizes = stream::iter(files)
        .map_ok(|file| copy_file(from, to, file, bar))
        .try_buffer_unordered(MAX_CONCURRENT_FILES);
    let (files, size_bytes) =
        sizes.try_fold((0, 0), |(count, sum), size| future::ok((count + 1, sum + size))).await?;
    copied.files += files;
    copied.size_bytes += size_bytes;
    // Links last, so that no file of this copy is written through one.
    for item in &items {
        if let Kind::Link { target } = &item.kind {
            to.make_link(&item.below, target).await?;
            copied.links += 1;
        }
    }
    Ok(())
}

/// Creates all folders. Links in the target are not followed: the author of the source could otherwise write anywhere,
/// by a link in one copy and a folder or file of the same name in the next.
async fn make_folders(to: &Endpoint, items: &[Item]) -> anyhow::Result<()> {
    let refused = |path: &Path| {
        let path = joined(&to.path, path);
        anyhow::anyhow!("{} is a link in the target, and none in the source; remove it first", path.display())
    };
    let mut links = HashSet::new();
    for folder in items.iter().filter(|item| item.kind == Kind::Folder) {
        let is_top = folder.below.as_os_str().is_empty();
        if links.contains(&folder.below) || (is_top && to.is_unexpected_link().await?) {
            return Err(refused(&folder.below));
        }
        if !to.make_folder(folder).await? {
            links.extend(to.links_in(&folder.below).await?);
        }
    }
    let through =
        items.iter().find(|item| matches!(item.kind, Kind::File { .. }) && links.contains(&item.below));
    through.map_or(Ok(()), |file| Err(refused(&file.below)))
}

/// Copies one file and returns its size in bytes.
async fn copy_file(from: &Endpoint, to: &Endpoint, file: &Item, bar: &ProgressBar) -> anyhow::Result<u64> {
    let (source, target) = (joined(&from.path, &file.below), joined(&to.path, &file.below));
    bar.set_message(escape::escaped(&source.display().to_string(), escape::FIELD).into_owned());
    let (bar, count) = (bar.clone(), Arc::new(AtomicU64::new(0)));
    let counted = count.clone();
    let on_the_way = move |piece: &Bytes| {
        bar.inc(piece.len() as u64);
        counted.fetch_add(piece.len() as u64, Ordering::Relaxed);
    };
    match (&from.place, &to.place) {
        (Some(from), Some(to)) => {
            let pieces = from.remote.read(&remote::absolute(&source)?).await?.into_pieces();
            to.remote
                .write(&remote::absolute(&target)?, Some(file.mode), pieces.inspect_ok(on_the_way))
                .await?;
        }
        (Some(from), None) => {
            let pieces = from.remote.read(&remote::absolute(&source)?).await?.into_pieces();
            local::write(&target, file.mode, pieces.inspect_ok(on_the_way)).await?;
        }
        (None, Some(to)) => {
            let pieces = local::read(&source).await?.inspect_ok(on_the_way);
            to.remote.write(&remote::absolute(&target)?, Some(file.mode), pieces).await?;
        }
        (None, None) => {}
    }
    Ok(count.load(Ordering::Relaxed))
}

impl Endpoint {
    async fn open(client: &Client, spot: &PathArgument) -> anyhow::Result<Self> {
        Ok(match spot {
            PathArgument::Local(path) => Self { place: None, path: path.clone(), is_given: true },
            PathArgument::Remote { vm, path } => {
                let place = PlaceWithHome::open(client, vm.as_deref()).await?;
                let path = place.path(path)?.as_path().to_owned();
                Self { place: Some(place), path, is_given: true }
            }
        })
    }

    async fn is_folder(&self) -> anyhow::Result<Option<bool>> {
        match &self.place {
            None => Ok(local::is_folder(&self.path)),
            Some(place) => remote::is_folder(&place.remote, &self.path).await,
        }
    }

    async fn plan(&self, bar: &ProgressBar) -> anyhow::Result<Plan> {
        let plan = match &self.place {
            None => {
                let path = self.path.clone();
                tokio::task::spawn_blocking(move || local::plan(&path))
                    .await
                    .context("the folder could not be listed")??
            }
            Some(place) => remote::plan(&place.remote, &self.path).await?,
        };
        bar.inc_length(plan.size_bytes());
        Ok(plan)
    }

    /// Creates a folder and returns true, or returns false if it exists.
    async fn make_folder(&self, folder: &Item) -> anyhow::Result<bool> {
        let path = joined(&self.path, &folder.below);
        match &self.place {
            None => local::make_folder(&path, folder.mode),
            Some(place) => {
                let make = MakeFolder { path: remote::absolute(&path)?, mode: Some(folder.mode) };
                Ok(place.remote.run(&make).await?.created)
            }
        }
    }

    /// The links in a folder, relative to this end.
    async fn links_in(&self, below: &Path) -> anyhow::Result<Vec<PathBuf>> {
        let path = joined(&self.path, below);
        let names = match &self.place {
            None => local::links_in(&path)?,
            Some(place) => remote::links_in(&place.remote, &path).await?,
        };
        Ok(names.iter().map(|name| below.join(name)).collect())
    }

    /// Whether the path is a link that the user did not name.
    async fn is_unexpected_link(&self) -> anyhow::Result<bool> {
        let (Some(folder), Some(name), false) = (self.path.parent(), self.path.file_name(), self.is_given)
        else {
            return Ok(false);
        };
        let above = Self { place: self.place.clone(), path: folder.to_owned(), is_given: true };
        Ok(above.links_in(Path::new("")).await?.iter().any(|link| link.as_os_str() == name))
    }

    async fn make_link(&self, below: &Path, target: &LinkTarget) -> anyhow::Result<()> {
        let path = joined(&self.path, below);
        match &self.place {
            None => local::make_link(&path, target),
            Some(place) => {
                let path = remote::absolute(&path)?;
                let make = MakeLink { path, target: target.clone(), overwrite: true };
                place.remote.run(&make).await?;
                Ok(())
            }
        }
    }
}

/// Joins paths, without a trailing slash if `below` is empty.
pub(super) fn joined(path: &Path, below: &Path) -> PathBuf {
    if below.as_os_str().is_empty() { path.to_owned() } else { path.join(below) }
}
