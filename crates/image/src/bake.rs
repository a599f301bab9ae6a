//! Bakes a template. Its directory appears atomically once it is complete.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
};

use skep_api::{swarm::BASE_TEMPLATE, templates::GuestSize};
use skep_channel::{FIRST_PROTOCOL, UnsupportedProtocol};
use skep_engine::Engine;
use skep_template::{
    FORMAT, MANIFEST, Manifest, Template, TemplateFile, checksum_of, read_manifest,
    shelf::{self, CACHE, OtherTemplate},
};

use crate::{
    Error, Inputs, Origin, boot,
    command::Containment,
    environment::{BakeEnvironment, ResourceNames},
    initrd,
    interrupt::SignalGuard,
    kernel, layer,
    parent::ParentFiles,
    root,
    state_inputs::StateInputs,
};

/// Callback that receives a message for each step of a bake.
pub type Progress = Arc<dyn Fn(&str) + Send + Sync>;

const WAITS_FOR_LOCK: &str = "another process is baking in this image directory; waiting for it";
const TAKES_FILES: &str = "files and disk of the parent";
const BOOTS_GUEST: &str = "boot of the guest, to be saved when idle";
const COMPUTES_CHECKSUMS: &str = "checksums";
/// The steps of a template with a parent. Other messages name paths of this machine.
pub const BUILD_STEPS: [&str; 4] = [WAITS_FOR_LOCK, TAKES_FILES, BOOTS_GUEST, COMPUTES_CHECKSUMS];

/// Bakes a template and finds it if it is baked.
#[derive(Clone)]
pub struct TemplateBuilder {
    pub origin: Origin,
    /// The template directory, with the cache of packages and kernels.
    pub image_dir: PathBuf,
    pub agent: &'static [u8],
    pub engine: Arc<dyn Engine>,
    pub size: GuestSize,
    /// Path of the `skep` binary, whose `stage` argument runs the jail's stage.
    pub binary: PathBuf,
    pub progress: Progress,
}

impl TemplateBuilder {
    /// Returns the directory of the template if it is baked for the current inputs, and verifies its files. Blocks
    /// for a fraction of a second.
    ///
    /// # Errors
    /// The inputs cannot be read, or the template is damaged or outdated.
    pub fn find(&self) -> Result<Option<PathBuf>, Error> {
        let inputs = self.inputs()?;
        let Some(dir) = self.find_for(&inputs) else { return Ok(None) };
        inputs.check_clock(&dir)?;
        skep_template::verify(&dir)?;
        Ok(Some(dir))
    }

    /// Like [`Self::find`], but does not verify the files, which a load does.
    ///
    /// # Errors
    /// The inputs cannot be read, or the template is outdated.
    pub fn locate(&self) -> Result<Option<PathBuf>, Error> {
        let inputs = self.inputs()?;
        let Some(dir) = self.find_for(&inputs) else { return Ok(None) };
        inputs.check_clock(&dir)?;
        check_protocol(&dir)?;
        Ok(Some(dir))
    }

    /// Returns templates that were baked for other inputs, newest first.
    ///
    /// # Errors
    /// The inputs or the image directory cannot be read.
    pub fn other_templates(&self) -> Result<Vec<OtherTemplate>, Error> {
        Ok(shelf::other_templates(self.shelf(), &self.name(), &self.inputs()?.key())?)
    }

    /// Returns the template, and bakes it if it is missing, damaged or baked for other inputs. Takes a
    /// fraction of a second, or about a minute with a bake, and blocks.
    ///
    /// # Errors
    /// A program is missing or failed, the disk is full, or the guest did not boot or settle.
    pub fn load(&self) -> Result<Template, Error> {
        let inputs = self.inputs()?;
        if let Some(dir) = self.find_for(&inputs) {
            match load_current(&inputs, &dir) {
                // Another process may be removing or baking it; checked again below, with the lock held.
                Err(
                    Error::Template(
                        skep_template::Error::Damaged { .. }
                        | skep_template::Error::Outdated { .. }
                        | skep_template::Error::Missing(_),
                    )
                    | Error::TemplateProtocol { .. },
                ) => {}
                other => return other,
            }
        }
        fs::create_dir_all(self.image_dir.join(CACHE)).map_err(Error::io(self.image_dir.display()))?;
        fs::create_dir_all(self.shelf()).map_err(Error::io(self.shelf().display()))?;
        let _turn = shelf::lock(self.shelf(), || self.report(WAITS_FOR_LOCK))?;
        if let Some(dir) = self.find_for(&inputs) {
            match load_current(&inputs, &dir) {
                Err(
                    error @ (Error::Template(
                        skep_template::Error::Damaged { .. } | skep_template::Error::Outdated { .. },
                    )
                    | Error::TemplateProtocol { .. }),
                ) => {
                    self.report(&format!("{error}; baking it now"));
                    shelf::remove(&dir)?;
                }
                other => return other,
            }
        } else {
            self.report_changed_inputs(&inputs)?;
        }
        let dir = self.bake_and_publish(&inputs).map_err(|error| error.with_image_dir(self.shelf()))?;
        self.report(&format!("template `{}` is baked: {}", self.name(), dir.display()));
        load_template(&dir)
    }

    /// The directory that has the folder of the template.
    fn shelf(&self) -> &Path {
        match &self.origin {
            Origin::Packages => &self.image_dir,
            Origin::Parent { shelf, .. } => shelf,
        }
    }

    fn name(&self) -> String {
        match &self.origin {
            Origin::Packages => BASE_TEMPLATE.to_owned(),
            Origin::Parent { id, .. } => id.to_string(),
        }
    }

    fn inputs(&self) -> Result<Inputs, Error> {
        let (engine, agent) = (self.engine.as_ref(), self.agent);
        let inputs = Inputs::gather(&self.image_dir, engine, agent, self.size)?;
        match &self.origin {
            Origin::Packages => Ok(inputs),
            Origin::Parent { parent, .. } => Ok(inputs.with_parent(&read_manifest(parent)?.key)),
        }
    }

    fn find_for(&self, inputs: &Inputs) -> Option<PathBuf> {
        shelf::find(self.shelf(), &self.name(), &inputs.key())
    }

    /// Returns how the newest template that was baked for other inputs differs from the current ones, as the end of a
    /// sentence about it. `None` if there is no such template.
    ///
    /// # Errors
    /// The inputs or the directory cannot be read.
    pub fn difference(&self) -> Result<Option<String>, Error> {
        self.difference_from(&self.inputs()?)
    }

    /// Returns why a snapshot in this folder cannot continue on this machine, as the end of a sentence about the boot of its
    /// VM. `None` if it can: its own kernel, disk and guest agent stay in use, so only the engine, the devices, the processor,
    /// the clock and the protocol of the agent count.
    ///
    /// # Errors
    /// The processor or the manifest cannot be read, or the agent speaks an unsupported protocol.
    pub fn difference_of_snapshot(&self, dir: &Path) -> Result<Option<String>, Error> {
        check_protocol(dir)?;
        let current = StateInputs::gather(self.engine.as_ref())?;
        Ok(current.difference_from(&read_manifest(dir)?.inputs))
    }

    fn difference_from(&self, inputs: &Inputs) -> Result<Option<String>, Error> {
        let others = shelf::other_templates(self.shelf(), &self.name(), &inputs.key())?;
        let newest = others.into_iter().find_map(|other| other.manifest);
        Ok(newest.and_then(|manifest| inputs.difference_from(&manifest.inputs)))
    }

    fn report_changed_inputs(&self, inputs: &Inputs) -> Result<(), Error> {
        if let Some(difference) = self.difference_from(inputs)? {
            self.report(&format!("the template `{}` was baked {difference}: baking again", self.name()));
        }
        Ok(())
    }

    /// The caller holds the lock of the directory.
    fn bake_and_publish(&self, inputs: &Inputs) -> Result<PathBuf, Error> {
        let dir = shelf::template_dir(self.shelf(), &self.name(), &inputs.key());
        let templates = self.shelf().join(self.name());
        fs::create_dir_all(&templates).map_err(Error::io(templates.display()))?;
        // Held until everything that the bake makes outside of its folder is removed.
        let signals = SignalGuard::begin()?;
        // Ends processes of an earlier bake first, because they may still write to its partial directories.
        let place = BakeEnvironment::create(ResourceNames::of(self.shelf()))?;
        shelf::clear_partial(self.shelf())?;
        let work = shelf::create_partial(&templates)?;
        let ender = signals.end_processes_of(ResourceNames::of(self.shelf()))?;
        let baked = self.bake(inputs, work.path(), &place);
        drop(ender);
        // If a signal ended the bake, its own error is only a consequence.
        signals.check().and(baked)?;
        shelf::publish(work, &dir)?;
        drop(place);
        // A signal may have arrived since the check above. The published template stays.
        signals.check()?;
        Ok(dir)
    }

    fn bake(&self, inputs: &Inputs, work: &Path, place: &BakeEnvironment) -> Result<(), Error> {
        let pen = &place.containment;
        let layer = work.join(TemplateFile::Layer.file_name());
        let disk_mb = inputs.size.disk_mb;
        let (known, protocol) = match &self.origin {
            Origin::Packages => {
                self.write_system(inputs, work, pen)?;
                let write_layer = || layer::write_empty(&layer, disk_mb, pen);
                (BTreeMap::new(), self.boot(inputs, work, place, &write_layer)?)
            }
            Origin::Parent { parent, system, .. } => {
                self.report(TAKES_FILES);
                let parent = ParentFiles::of(parent, system.as_deref());
                let shared = parent.share(work)?;
                let write_layer = || parent.write_layer(&layer, disk_mb, pen);
                (shared, self.boot(inputs, work, place, &write_layer)?)
            }
        };
        self.report(COMPUTES_CHECKSUMS);
        let manifest = manifest(inputs, protocol, work, known)?;
        let write = || {
            let mut file = File::create(work.join(MANIFEST))?;
            file.write_all(&manifest.to_file()?)?;
            file.sync_all()?;
            // Also syncs the directory entries of all files.
            File::open(work)?.sync_all()
        };
        write().map_err(Error::io(MANIFEST))
    }

    /// Writes kernel, initial ramdisk and root file system from packages.
    fn write_system(&self, inputs: &Inputs, work: &Path, pen: &Containment) -> Result<(), Error> {
        let cache = self.image_dir.join(CACHE);
        self.report("kernel: Debian's linux-image-cloud-amd64");
        let kernel = kernel::ensure(&cache, &inputs.kernel, pen)?;
        self.report("packages of the root file system (about a minute the first time)");
        let packages = root::ensure_packages(&cache, pen)?;
        self.report("root file system, initial ramdisk, private layer");
        root::write(&work.join(TemplateFile::Root.file_name()), &packages, self.agent, work, pen)?;
        fs::copy(kernel.image(), work.join(TemplateFile::Kernel.file_name())).map_err(Error::io("kernel"))?;
        initrd::write(&work.join(TemplateFile::Initrd.file_name()), self.agent, &kernel)
    }

    /// Boots the guest, and returns the protocol of its agent.
    fn boot(
        &self,
        inputs: &Inputs,
        work: &Path,
        place: &BakeEnvironment,
        write_layer: &dyn Fn() -> Result<(), Error>,
    ) -> Result<u32, Error> {
        self.report(BOOTS_GUEST);
        boot::boot_and_save(self.engine.as_ref(), &self.binary, place, work, inputs.size, write_layer)
    }

    fn report(&self, step: &str) {
        (self.progress)(step);
    }
}

/// Loads a template with the key of these inputs.
fn load_current(inputs: &Inputs, dir: &Path) -> Result<Template, Error> {
    inputs.check_clock(dir)?;
    load_template(dir)
}

/// Loads a template whose guest agent this release can speak to. Blocks for a fraction of a second.
///
/// # Errors
/// The template is missing or damaged, or its agent speaks an unsupported protocol.
pub fn load_template(dir: &Path) -> Result<Template, Error> {
    check_protocol(dir)?;
    Ok(Template::load(dir)?)
}

fn check_protocol(dir: &Path) -> Result<(), Error> {
    let protocol = read_manifest(dir)?.protocol.unwrap_or(FIRST_PROTOCOL);
    let checked = UnsupportedProtocol::check(protocol);
    checked.map_err(|source| Error::TemplateProtocol { dir: dir.to_owned(), source })
}

/// The manifest of the files in `work`. The checksums of those that have been verified already are given: if such a file
/// changed since, the template is damaged.
fn manifest(
    inputs: &Inputs,
    protocol: u32,
    work: &Path,
    mut sha256: BTreeMap<TemplateFile, String>,
) -> Result<Manifest, Error> {
    for part in TemplateFile::ALL {
        let path = work.join(part.file_name());
        let synced = File::open(&path).and_then(|file| file.sync_all());
        synced.map_err(Error::io(path.display()))?;
        if let Entry::Vacant(unknown) = sha256.entry(part) {
            unknown.insert(checksum_of(&path).map_err(Error::io(path.display()))?);
        }
    }
    Ok(Manifest {
        format: FORMAT,
        origin: None,
        key: inputs.key(),
        vcpus: inputs.size.vcpus,
        memory_mb: inputs.size.memory_mb,
        protocol: Some(protocol),
        inputs: inputs.all(),
        sha256,
    })
}

#[cfg(test)]
mod tests {
    use skep_channel::PROTOCOL;

    use super::*;

    fn write_manifest(dir: &Path, protocol: Option<u32>, inputs: BTreeMap<String, String>) {
        let (key, sha256) = ("k".to_owned(), BTreeMap::new());
        let manifest =
            Manifest { format: FORMAT, key, origin: None, vcpus: 1, memory_mb: 1, protocol, inputs, sha256 };
        fs::write(dir.join(MANIFEST), manifest.to_file().unwrap()).unwrap();
    }

    #[test]
    fn a_template_for_another_clock_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let load = |tsc_khz| {
            let (named, kernel) = (BTreeMap::new(), String::new());
            let size = GuestSize { memory_mb: 128, vcpus: 1, disk_mb: 2048 };
            let inputs = Inputs { named, tsc_khz: Some(tsc_khz), kernel, size };
            load_current(&inputs, dir.path()).unwrap_err()
        };
        let inputs = BTreeMap::from([("tsc_khz".to_owned(), "2600000".to_owned())]);
        write_manifest(dir.path(), Some(PROTOCOL), inputs);
        let refused = load(2_100_000);
        assert!(matches!(refused, Error::Template(skep_template::Error::Outdated { .. })), "{refused}");
        // Control: only its files are missing.
        assert!(matches!(load(2_600_000), Error::Template(skep_template::Error::Damaged { .. })));
    }

    #[test]
    fn a_template_whose_agent_speaks_an_unsupported_protocol_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let load = |protocol| {
            write_manifest(dir.path(), protocol, BTreeMap::new());
            load_template(dir.path()).unwrap_err()
        };
        let refused = load(Some(PROTOCOL + 1));
        let text = refused.to_string();
        assert!(matches!(refused, Error::TemplateProtocol { .. }), "{text}");
        assert!(text.contains(&format!("protocol {}, this skep", PROTOCOL + 1)), "{text}");
        assert!(text.ends_with("bake it again: `skep bake`"), "{text}");
        // Control: only its files are missing.
        assert!(matches!(load(Some(PROTOCOL)), Error::Template(skep_template::Error::Damaged { .. })));
    }
}
