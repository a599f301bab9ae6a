//! A bake, from nothing to a template on disk. Atomic: a template's folder appears whole, or not at all.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    sync::Arc,
};

use rustix::fs::{FlockOperation, flock};
use skep_api::swarm::BASE_TEMPLATE;
use skep_engine::{
    Engine,
    template::{self, MANIFEST, Manifest, Part, hash_file},
};

use crate::{
    CACHE, Error, Inputs, boot, initrd,
    inputs::{MEMORY_MB, VCPUS},
    kernel, layer, root,
};

/// How folders of bakes under way begin; what a killed one left is removed by the next.
const PARTIAL: &str = ".partial-";

/// Where the steps of a bake are told.
pub type Progress = Arc<dyn Fn(&str) + Send + Sync>;

/// What bakes the base template.
pub struct Bakery {
    /// Where templates lie.
    pub image_dir: PathBuf,
    /// The guest agent.
    pub agent: &'static [u8],
    /// The engine that the template is for.
    pub engine: Box<dyn Engine>,
    /// The program whose `stage` argument runs the jail's stage: our own.
    pub binary: PathBuf,
    /// Where the steps are told.
    pub progress: Progress,
}

impl Bakery {
    /// The folder of the base template, if it is baked for the inputs as they are now.
    ///
    /// # Errors
    /// The inputs cannot be read.
    pub fn find(&self) -> Result<Option<PathBuf>, Error> {
        let inputs = Inputs::gather(&self.image_dir, self.engine.report(), self.agent)?;
        let dir = template::folder(&self.image_dir, BASE_TEMPLATE, &inputs.key());
        Ok(dir.join(MANIFEST).is_file().then_some(dir))
    }

    /// The folder of the base template, baked where it is missing. It takes about a minute the first time, and blocks.
    ///
    /// # Errors
    /// A program is missing or failed, the disk is full, the guest did not come to rest.
    pub fn ensure(&self) -> Result<PathBuf, Error> {
        fs::create_dir_all(self.image_dir.join(CACHE)).map_err(Error::io(self.image_dir.display()))?;
        let _turn = self.wait_for_turn()?;
        if let Some(dir) = self.find()? {
            return Ok(dir);
        }
        let inputs = Inputs::gather(&self.image_dir, self.engine.report(), self.agent)?;
        let dir = template::folder(&self.image_dir, BASE_TEMPLATE, &inputs.key());
        let shelf = self.image_dir.join(BASE_TEMPLATE);
        fs::create_dir_all(&shelf).map_err(Error::io(shelf.display()))?;
        clear_partial(&shelf).map_err(Error::io(shelf.display()))?;
        let work = tempfile::Builder::new()
            .prefix(PARTIAL)
            .tempdir_in(&shelf)
            .map_err(Error::io(shelf.display()))?;
        self.bake(&inputs, work.path())?;
        publish(work, &dir).map_err(Error::io(dir.display()))?;
        self.tell(&format!("template `{BASE_TEMPLATE}` is baked: {}", dir.display()));
        Ok(dir)
    }

    /// One bake at a time in an image directory; others wait for its outcome.
    fn wait_for_turn(&self) -> Result<File, Error> {
        let path = self.image_dir.join(".lock");
        let lock = File::create(&path).map_err(Error::io(path.display()))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            self.tell("another process bakes in this image directory; waiting for it");
            flock(&lock, FlockOperation::LockExclusive)
                .map_err(io::Error::from)
                .map_err(Error::io(path.display()))?;
        }
        Ok(lock)
    }

    fn bake(&self, inputs: &Inputs, work: &Path) -> Result<(), Error> {
        let cache = self.image_dir.join(CACHE);
        self.tell("kernel: Debian's linux-image-cloud-amd64");
        let kernel = kernel::ensure(&cache, &inputs.kernel)?;
        self.tell("packages of the root file system (about a minute the first time)");
        let packages = root::ensure_packages(&cache)?;
        self.tell("root file system, initial ramdisk, private layer");
        root::write(&work.join(Part::Root.file_name()), &packages, self.agent, work)?;
        fs::copy(kernel.image(), work.join(Part::Kernel.file_name())).map_err(Error::io("kernel"))?;
        initrd::write(&work.join(Part::Initrd.file_name()), self.agent, &kernel)?;
        layer::write(&work.join(Part::Layer.file_name()))?;
        self.tell("boot of the guest, to be saved at rest");
        boot::to_rest(self.engine.as_ref(), &self.binary, &self.image_dir, work)?;
        self.tell("checksums");
        let manifest = manifest(inputs, work)?;
        let text =
            serde_json::to_vec_pretty(&manifest).map_err(io::Error::from).map_err(Error::io(MANIFEST))?;
        let write = || {
            let mut file = File::create(work.join(MANIFEST))?;
            file.write_all(&text)?;
            file.sync_all()
        };
        write().map_err(Error::io(MANIFEST))
    }

    fn tell(&self, step: &str) {
        (self.progress)(step);
    }
}

fn manifest(inputs: &Inputs, work: &Path) -> Result<Manifest, Error> {
    let mut sha256 = BTreeMap::new();
    for part in Part::ALL {
        let path = work.join(part.file_name());
        let synced = File::open(&path).and_then(|file| file.sync_all());
        synced.map_err(Error::io(path.display()))?;
        sha256.insert(part, hash_file(&path, &mut io::sink()).map_err(Error::io(path.display()))?);
    }
    Ok(Manifest {
        key: inputs.key(),
        vcpus: VCPUS,
        memory_mb: MEMORY_MB,
        inputs: inputs.named.clone(),
        sha256,
    })
}

fn clear_partial(shelf: &Path) -> io::Result<()> {
    for entry in fs::read_dir(shelf)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with(PARTIAL) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    Ok(())
}

fn publish(work: tempfile::TempDir, dir: &Path) -> io::Result<()> {
    let from = work.keep();
    // A folder without a manifest is no template: somebody removed a part of it.
    if dir.is_dir() {
        fs::remove_dir_all(dir)?;
    }
    fs::rename(&from, dir)?;
    if let Some(shelf) = dir.parent() {
        // The folder too: ext4 may lose the new name in a power cut.
        File::open(shelf)?.sync_all()?;
    }
    Ok(())
}
