//! Bakes the base template. The directory of a template appears atomically once it is complete.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
};

use skep_api::swarm::BASE_TEMPLATE;
use skep_channel::{FIRST_PROTOCOL, UnsupportedProtocol};
use skep_engine::Engine;
use skep_template::{
    FORMAT, MANIFEST, Manifest, Template, TemplateFile, checksum_of, read_manifest,
    shelf::{self, CACHE, OtherTemplate},
};

use crate::{
    Error, Inputs, boot,
    environment::{BakeEnvironment, ResourceNames},
    initrd,
    inputs::GuestSize,
    interrupt::SignalGuard,
    kernel, layer, root,
};

/// Callback that receives a message for each step of a bake.
pub type Progress = Arc<dyn Fn(&str) + Send + Sync>;

/// Bakes the base template and finds baked ones.
pub struct Bakery {
    pub image_dir: PathBuf,
    pub agent: &'static [u8],
    pub engine: Box<dyn Engine>,
    pub size: GuestSize,
    /// Whether guests keep a shell ready for the next command, if they are emulated. With KVM none does.
    pub shell_ahead: bool,
    /// Path of the `skep` binary, whose `stage` argument runs the jail's stage.
    pub binary: PathBuf,
    pub progress: Progress,
}

impl Bakery {
    /// Returns the directory of the base template if it is baked for the current inputs, and verifies its files. Blocks
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

    /// Returns templates that were baked for other inputs, newest first.
    ///
    /// # Errors
    /// The inputs or the image directory cannot be read.
    pub fn other_templates(&self) -> Result<Vec<OtherTemplate>, Error> {
        Ok(shelf::other_templates(&self.image_dir, &self.inputs()?.key())?)
    }

    /// Returns the base template, and bakes it if it is missing, damaged or baked for other inputs. Takes a
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
        let _turn = shelf::lock(&self.image_dir, || {
            self.report("another process is baking in this image directory; waiting for it");
        })?;
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
        let dir = self.bake_and_publish(&inputs).map_err(|error| error.with_image_dir(&self.image_dir))?;
        self.report(&format!("template `{BASE_TEMPLATE}` is baked: {}", dir.display()));
        load_template(&dir)
    }

    fn inputs(&self) -> Result<Inputs, Error> {
        Inputs::gather(&self.image_dir, self.engine.as_ref(), self.agent, self.size, self.shell_ahead)
    }

    fn find_for(&self, inputs: &Inputs) -> Option<PathBuf> {
        shelf::find(&self.image_dir, BASE_TEMPLATE, &inputs.key())
    }

    fn report_changed_inputs(&self, inputs: &Inputs) -> Result<(), Error> {
        let others = shelf::other_templates(&self.image_dir, &inputs.key())?;
        let newest = others.into_iter().find_map(|other| other.manifest);
        if let Some(difference) = newest.and_then(|manifest| inputs.difference_from(&manifest.inputs)) {
            self.report(&format!("the base template was baked {difference}: baking again"));
        }
        Ok(())
    }

    /// The caller holds the lock of the image directory.
    fn bake_and_publish(&self, inputs: &Inputs) -> Result<PathBuf, Error> {
        let dir = shelf::template_dir(&self.image_dir, BASE_TEMPLATE, &inputs.key());
        let templates = self.image_dir.join(BASE_TEMPLATE);
        fs::create_dir_all(&templates).map_err(Error::io(templates.display()))?;
        // Ends processes of an earlier bake first, because they may still write to its partial directories.
        let place = BakeEnvironment::create(ResourceNames::of(&self.image_dir))?;
        shelf::clear_partial(&self.image_dir)?;
        let work = shelf::create_partial(&templates)?;
        let watch = SignalGuard::begin(ResourceNames::of(&self.image_dir))?;
        let baked = self.bake(inputs, work.path(), &place);
        // If a signal ended the bake, its own error is only a consequence.
        watch.check().and(baked)?;
        shelf::publish(work, &dir)?;
        Ok(dir)
    }

    fn bake(&self, inputs: &Inputs, work: &Path, place: &BakeEnvironment) -> Result<(), Error> {
        let (cache, pen) = (self.image_dir.join(CACHE), &place.containment);
        self.report("kernel: Debian's linux-image-cloud-amd64");
        let kernel = kernel::ensure(&cache, &inputs.kernel, pen)?;
        self.report("packages of the root file system (about a minute the first time)");
        let packages = root::ensure_packages(&cache, pen)?;
        self.report("root file system, initial ramdisk, private layer");
        root::write(&work.join(TemplateFile::Root.file_name()), &packages, self.agent, work, pen)?;
        fs::copy(kernel.image(), work.join(TemplateFile::Kernel.file_name())).map_err(Error::io("kernel"))?;
        initrd::write(&work.join(TemplateFile::Initrd.file_name()), self.agent, &kernel)?;
        layer::write(&work.join(TemplateFile::Layer.file_name()), inputs.size.disk_mb, pen)?;
        self.report("boot of the guest, to be saved when idle");
        let parameters = if inputs.prepares_shells { skep_prepared_shell::KERNEL_PARAMETER } else { "" };
        let protocol =
            boot::boot_and_save(self.engine.as_ref(), &self.binary, place, work, inputs.size, parameters)?;
        self.report("checksums");
        let manifest = manifest(inputs, protocol, work)?;
        let write = || {
            let mut file = File::create(work.join(MANIFEST))?;
            file.write_all(&manifest.to_file()?)?;
            file.sync_all()?;
            // Also syncs the directory entries of all files.
            File::open(work)?.sync_all()
        };
        write().map_err(Error::io(MANIFEST))
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
    let protocol = read_manifest(dir)?.protocol.unwrap_or(FIRST_PROTOCOL);
    UnsupportedProtocol::check(protocol)
        .map_err(|source| Error::TemplateProtocol { dir: dir.to_owned(), source })?;
    Ok(Template::load(dir)?)
}

fn manifest(inputs: &Inputs, protocol: u32, work: &Path) -> Result<Manifest, Error> {
    let mut sha256 = BTreeMap::new();
    for part in TemplateFile::ALL {
        let path = work.join(part.file_name());
        let synced = File::open(&path).and_then(|file| file.sync_all());
        synced.map_err(Error::io(path.display()))?;
        sha256.insert(part, checksum_of(&path).map_err(Error::io(path.display()))?);
    }
    Ok(Manifest {
        format: FORMAT,
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
        let manifest = Manifest { format: FORMAT, key, vcpus: 1, memory_mb: 1, protocol, inputs, sha256 };
        fs::write(dir.join(MANIFEST), manifest.to_file().unwrap()).unwrap();
    }

    #[test]
    fn a_template_for_another_clock_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let load = |tsc_khz| {
            let (named, kernel) = (BTreeMap::new(), String::new());
            let size = GuestSize { memory_mb: 128, vcpus: 1, disk_mb: 2048 };
            let inputs = Inputs { named, tsc_khz: Some(tsc_khz), kernel, size, prepares_shells: false };
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
