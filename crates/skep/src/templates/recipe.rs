//! What a built template is made of, in a file beside it, so that it can be built again.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use skep_api::{TemplateId, templates::GuestSize};
use skep_image::{Origin, TemplateBuilder};
use skep_keeper_protocol::StorePurpose;
use skep_template::TemplateFile;

const FILE: &str = "recipe.json";

/// What a template is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Recipe {
    /// The template whose disk it begins with, or that the VM was booted from which a snapshot was taken of.
    pub(crate) parent: TemplateId,
    pub(crate) size: GuestSize,
    /// Only a template of the kind `build` can be built again.
    #[serde(default)]
    pub(crate) kind: Kind,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    #[default]
    Build,
    Snapshot,
    /// The snapshot that a VM is resumed from.
    Pause,
    /// A guest that was booted from the disk of a snapshot, for VMs that start without the memory of that snapshot. No caller
    /// sees it.
    Disk,
}

impl Recipe {
    pub(crate) fn build(parent: TemplateId, size: GuestSize) -> Self {
        Self { parent, size, kind: Kind::Build }
    }

    pub(super) fn snapshot(parent: TemplateId, size: GuestSize, purpose: StorePurpose) -> Self {
        let kind = match purpose {
            StorePurpose::Template => Kind::Snapshot,
            StorePurpose::Pause => Kind::Pause,
        };
        Self { parent, size, kind }
    }

    /// The recipe for the disk of a snapshot.
    pub(super) fn disk_of(snapshot: TemplateId, size: GuestSize) -> Self {
        Self { parent: snapshot, size, kind: Kind::Disk }
    }

    pub(crate) fn is_snapshot(&self) -> bool {
        matches!(self.kind, Kind::Snapshot | Kind::Pause)
    }

    /// The files that the template has in common with the one that it was made from. Those of `base` are copies, and the
    /// template's own, if the image directory is on another file system than the folders of built templates.
    pub(crate) fn shared_files(&self, shelf: &Path, image_dir: &Path) -> &'static [TemplateFile] {
        if self.parent == TemplateId::BASE && device(shelf) != device(image_dir) {
            return &[];
        }
        match self.kind {
            Kind::Snapshot | Kind::Pause if self.origin_is_counted(shelf) => &TemplateFile::OF_ORIGIN,
            _ => &TemplateFile::OF_PARENT,
        }
    }

    /// Whether the memory that the VM was restored from counts for a template. That of a guest that was booted from a disk counts
    /// for none, and may outlive the guest in its snapshots.
    fn origin_is_counted(&self, shelf: &Path) -> bool {
        self.parent == TemplateId::BASE
            || Self::read(&shelf.join(self.parent.to_string())).is_ok_and(|origin| origin.kind != Kind::Disk)
    }

    /// Creates the folder of a template, which only its owner can read, and writes the recipe to it.
    pub(super) fn write(&self, folder: &Path) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        protect(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        serde_json::to_writer(&mut file, self)?;
        file.as_file().sync_all()?;
        file.persist(folder.join(FILE))?;
        // Sync the directories with the new names as well, otherwise ext4 may lose them in a power failure: that of the recipe, that
        // of the folder, and that of the shelf, which the first template creates.
        for dir in folder.ancestors().take(3) {
            File::open(dir)?.sync_all()?;
        }
        Ok(())
    }

    fn read(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join(FILE);
        let text = fs::read(&path).with_context(|| format!("{} cannot be read", path.display()))?;
        serde_json::from_slice(&text).with_context(|| format!("{} is malformed", path.display()))
    }

    /// The builder of this template, given its parent's folder. `system`: the folder with its kernel and guest agent,
    /// if they are not its parent's.
    pub(crate) fn template_builder(
        &self,
        template_builder: &TemplateBuilder,
        shelf: &Path,
        id: TemplateId,
        parent: PathBuf,
        system: Option<PathBuf>,
    ) -> TemplateBuilder {
        let origin = Origin::Parent { id, shelf: shelf.to_owned(), parent, system };
        TemplateBuilder { origin, size: self.size, ..template_builder.clone() }
    }
}

/// The file system of a folder. `None` if that is not known.
fn device(folder: &Path) -> Option<u64> {
    folder.metadata().ok().map(|found| found.dev())
}

/// The recipes of all built templates, in the order of their ids: a parent comes before its children. Unusable ones are
/// logged and skipped.
pub(crate) fn built_templates(shelf: &Path) -> io::Result<Vec<(TemplateId, Recipe)>> {
    let entries = match fs::read_dir(shelf) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<TemplateId>().ok()) else {
            continue;
        };
        match Recipe::read(&entry.path()) {
            Ok(recipe) => found.push((id, recipe)),
            Err(error) => tracing::warn!("the template {id} is not used: {error:#}"),
        }
    }
    found.sort_by_key(|(id, _)| *id);
    Ok(found)
}

/// Removes the folders of templates whose recipe a killed keeper had not written yet, or had removed. The recipe is written first
/// and removed last, so such a folder holds no folder with files of a template.
pub(super) fn remove_without_recipe(shelf: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(shelf) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        let is_template = entry.file_name().to_str().is_some_and(|name| name.parse::<TemplateId>().is_ok());
        let folder = entry.path();
        if is_template && !folder.join(FILE).exists() && has_only_files(&folder)? {
            fs::remove_dir_all(&folder)?;
        }
    }
    Ok(())
}

/// Protects the folders of templates that earlier releases made. Errors are logged: VMs that run must not end for them.
pub(super) fn protect_folders(shelf: &Path) {
    for (id, _) in built_templates(shelf).unwrap_or_default() {
        if let Err(error) = protect(&shelf.join(id.to_string())) {
            tracing::error!(%error, "users of this machine can read the files of the template {id}: {error}");
        }
    }
}

/// Restricts the folder of a template to its owner, because it contains the memory and the disks of guests.
fn protect(folder: &Path) -> io::Result<()> {
    if folder.metadata()?.mode() & 0o077 == 0 {
        return Ok(());
    }
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))
}

fn has_only_files(folder: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(folder)? {
        if !entry?.file_type()?.is_file() {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_are_found_again_and_other_folders_are_no_templates() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(built_templates(&dir.path().join("none")).unwrap(), []);
        let size = GuestSize { memory_mb: 256, vcpus: 2, disk_mb: 3072 };
        let recipe = Recipe::build(TemplateId::BASE, size);
        let (first, second) = (TemplateId::generate(), TemplateId::generate_after(None));
        let (first, second) = (first.min(second), first.max(second));
        recipe.write(&dir.path().join(second.to_string())).unwrap();
        recipe.write(&dir.path().join(first.to_string())).unwrap();
        for other in ["base/0123", ".cache", &TemplateId::generate().to_string()] {
            fs::create_dir_all(dir.path().join(other)).unwrap();
        }
        assert_eq!(built_templates(dir.path()).unwrap(), [(first, recipe), (second, recipe)]);
    }

    #[test]
    fn only_root_reaches_the_memory_and_the_disks_of_guests() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join(TemplateId::generate().to_string());
        let mode = || folder.metadata().unwrap().mode() & 0o777;
        let size = GuestSize { memory_mb: 256, vcpus: 2, disk_mb: 3072 };
        Recipe::build(TemplateId::BASE, size).write(&folder).unwrap();
        assert_eq!(mode(), 0o700);
        // As earlier releases made it.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).unwrap();
        protect_folders(dir.path());
        assert_eq!(mode(), 0o700);
    }

    #[test]
    fn a_folder_whose_recipe_was_not_written_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        remove_without_recipe(&dir.path().join("none")).unwrap();
        let folder = || dir.path().join(TemplateId::generate().to_string());
        let (empty, begun, whole, foreign) = (folder(), folder(), folder(), folder());
        fs::create_dir(&empty).unwrap();
        fs::create_dir(&begun).unwrap();
        fs::write(begun.join(".tmp1"), "{").unwrap();
        let size = GuestSize { memory_mb: 256, vcpus: 2, disk_mb: 3072 };
        Recipe::build(TemplateId::BASE, size).write(&whole).unwrap();
        fs::create_dir_all(foreign.join("0123")).unwrap();
        remove_without_recipe(dir.path()).unwrap();
        assert_eq!([empty, begun, whole, foreign].map(|folder| folder.exists()), [false, false, true, true]);
    }
}
