//! What a template takes from its parent's folder. All of it is verified by the parent's manifest, so that a damaged parent
//! does not become the intact child of wrong checksums.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use skep_template::{TemplateFile, link_or_copy, read_manifest, verify_copy};

use crate::{Error, command::Containment, layer};

/// The folder of a parent, and that of the template that kernel and initial ramdisk are taken from.
pub(crate) struct ParentFiles {
    dir: PathBuf,
    system: PathBuf,
}

impl ParentFiles {
    /// `system`: the folder with kernel and initial ramdisk, if they are not those of the parent.
    pub(crate) fn of(dir: &Path, system: Option<&Path>) -> Self {
        Self { dir: dir.to_owned(), system: system.unwrap_or(dir).to_owned() }
    }

    fn dir_of(&self, part: TemplateFile) -> &Path {
        if part == TemplateFile::Root { &self.dir } else { &self.system }
    }

    /// Makes the common files those of the template in `work`, too, and returns their checksums by the manifests of the
    /// folders that they are from. They have the same content on disk, if both folders are on one file system.
    ///
    /// # Errors
    /// One of these files is damaged, or the folder cannot be written.
    pub(crate) fn share(&self, work: &Path) -> Result<BTreeMap<TemplateFile, String>, Error> {
        let mut sha256 = BTreeMap::new();
        for part in TemplateFile::OF_PARENT {
            let (from, to) = (self.dir_of(part), work.join(part.file_name()));
            link_or_copy(&from.join(part.file_name()), &to).map_err(Error::io(to.display()))?;
            verify_copy(from, part, &to)?;
            sha256.extend(read_manifest(from)?.sha256.remove(&part).map(|sum| (part, sum)));
        }
        Ok(sha256)
    }

    /// Writes a copy of the layer, grown to this size in MiB.
    ///
    /// # Errors
    /// The parent is damaged, or a program failed.
    pub(crate) fn write_layer(&self, to: &Path, disk_mb: u64, pen: &Containment) -> Result<(), Error> {
        layer::copy(&self.dir.join(TemplateFile::Layer.file_name()), to, pen)?;
        // The copy, not the parent's file, which may change between the check and the copy.
        verify_copy(&self.dir, TemplateFile::Layer, to)?;
        layer::repair_and_grow(to, disk_mb, pen)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use skep_template::{FORMAT, MANIFEST, Manifest, checksum_of};

    use super::*;

    fn parent() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let mut sha256 = BTreeMap::new();
        for part in TemplateFile::ALL {
            let path = dir.path().join(part.file_name());
            fs::write(&path, part.file_name().repeat(1000)).unwrap();
            sha256.insert(part, checksum_of(&path).unwrap());
        }
        let (key, inputs) = ("k".to_owned(), BTreeMap::new());
        let manifest = Manifest {
            format: FORMAT,
            key,
            origin: None,
            vcpus: 1,
            memory_mb: 1,
            protocol: None,
            inputs,
            sha256,
        };
        fs::write(dir.path().join(MANIFEST), manifest.to_file().unwrap()).unwrap();
        dir
    }

    #[test]
    fn a_flipped_bit_of_the_parent_is_found_before_the_child_has_it() {
        for part in TemplateFile::OF_PARENT {
            let (parent, work) = (parent(), tempfile::tempdir().unwrap());
            let files = ParentFiles::of(parent.path(), None);
            let path = parent.path().join(part.file_name());
            let whole = fs::read(&path).unwrap();
            let mut damaged = whole.clone();
            damaged[4711] ^= 1;
            fs::write(&path, damaged).unwrap();
            let refused = files.share(work.path()).unwrap_err();
            let text = refused.to_string();
            assert!(matches!(refused, Error::Template(skep_template::Error::Damaged { .. })), "{text}");
            let named = [parent.path().to_str().unwrap(), part.file_name()];
            assert!(named.iter().all(|name| text.contains(name)), "{text}");
            // Control: the same file as it was.
            fs::write(&path, whole).unwrap();
            let shared = files.share(tempfile::tempdir().unwrap().path()).unwrap();
            assert_eq!(shared[&part], checksum_of(&path).unwrap());
        }
    }

    #[test]
    fn kernel_and_guest_agent_may_be_those_of_another_template() {
        let (parent, system) = (parent(), parent());
        // Damage of what is not taken does not matter, unlike that of what is taken.
        for part in [TemplateFile::Kernel, TemplateFile::Initrd, TemplateFile::Ram, TemplateFile::State] {
            fs::write(parent.path().join(part.file_name()), "damaged").unwrap();
        }
        let work = tempfile::tempdir().unwrap();
        let shared = ParentFiles::of(parent.path(), Some(system.path())).share(work.path()).unwrap();
        for (part, from) in
            [(TemplateFile::Root, &parent), (TemplateFile::Kernel, &system), (TemplateFile::Initrd, &system)]
        {
            let (taken, original) = (work.path().join(part.file_name()), from.path().join(part.file_name()));
            assert_eq!(fs::read(&taken).unwrap(), fs::read(original).unwrap(), "{part:?}");
            assert_eq!(shared[&part], checksum_of(&taken).unwrap());
        }
        let refused = ParentFiles::of(parent.path(), None).share(tempfile::tempdir().unwrap().path());
        assert!(matches!(refused, Err(Error::Template(skep_template::Error::Damaged { .. }))), "{refused:?}");
    }

    #[test]
    fn a_copied_layer_is_compared_with_the_manifest_of_the_parent() {
        let (parent, work) = (parent(), tempfile::tempdir().unwrap());
        let (layer, copy) = (parent.path().join("layer.ext4"), work.path().join("layer.ext4"));
        let check = || verify_copy(parent.path(), TemplateFile::Layer, &copy);
        fs::copy(&layer, &copy).unwrap();
        check().unwrap();
        let mut damaged = fs::read(&layer).unwrap();
        damaged[0] ^= 1;
        fs::write(&copy, damaged).unwrap();
        let text = check().unwrap_err().to_string();
        assert!(text.contains(parent.path().to_str().unwrap()) && text.contains("layer.ext4"), "{text}");
    }
}
