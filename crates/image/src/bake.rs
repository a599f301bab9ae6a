//! A bake, from nothing to a template on disk. Atomic: a template's folder appears whole, or not at all.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use skep_api::swarm::BASE_TEMPLATE;
use skep_engine::{
    Engine,
    template::{self, MANIFEST, Manifest, Part, Template, hash_file},
};

use crate::{
    CACHE, Error, Inputs, OtherTemplate, boot, initrd,
    inputs::{MEMORY_MB, VCPUS},
    interrupt::Watch,
    kernel, layer,
    place::{Place, Site},
    root, shelf,
};

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
    /// The folder of the base template, if it is baked for the inputs as they are now. Whether it is whole is not looked at.
    ///
    /// # Errors
    /// The inputs cannot be read.
    pub fn find(&self) -> Result<Option<PathBuf>, Error> {
        Ok(self.find_for(&self.inputs()?))
    }

    /// The templates of other inputs, the newest first.
    ///
    /// # Errors
    /// The inputs or the image directory cannot be read.
    pub fn others(&self) -> Result<Vec<OtherTemplate>, Error> {
        shelf::others(&self.image_dir, &self.inputs()?.key())
    }

    /// The base template, baked where it is missing, was baked for other inputs, or is damaged. It takes some seconds, about
    /// a minute where it bakes, and blocks.
    ///
    /// # Errors
    /// A program is missing or failed, the disk is full, the guest did not come to rest.
    pub fn load(&self) -> Result<Template, Error> {
        let inputs = self.inputs()?;
        if let Some(dir) = self.find_for(&inputs) {
            match Template::load(&dir) {
                // Another process may be removing it, or baking it again: looked at once more in turn.
                Err(skep_engine::Error::DamagedTemplate { .. } | skep_engine::Error::NoTemplate(_)) => {}
                other => return Ok(other?),
            }
        }
        fs::create_dir_all(self.image_dir.join(CACHE)).map_err(Error::io(self.image_dir.display()))?;
        let _turn = shelf::take_turn(&self.image_dir, || {
            self.tell("another process bakes in this image directory; waiting for it");
        })?;
        if let Some(dir) = self.find_for(&inputs) {
            match Template::load(&dir) {
                Err(error @ skep_engine::Error::DamagedTemplate { .. }) => {
                    self.tell(&format!("{error}; that is done now"));
                    shelf::remove(&dir)?;
                }
                other => return Ok(other?),
            }
        } else {
            self.tell_what_changed(&inputs)?;
        }
        let dir = self.bake_anew(&inputs).map_err(|error| error.within(&self.image_dir))?;
        self.tell(&format!("template `{BASE_TEMPLATE}` is baked: {}", dir.display()));
        Ok(Template::load(&dir)?)
    }

    fn inputs(&self) -> Result<Inputs, Error> {
        Inputs::gather(&self.image_dir, self.engine.report(), self.agent)
    }

    fn find_for(&self, inputs: &Inputs) -> Option<PathBuf> {
        let dir = template::folder(&self.image_dir, BASE_TEMPLATE, &inputs.key());
        dir.join(MANIFEST).is_file().then_some(dir)
    }

    fn tell_what_changed(&self, inputs: &Inputs) -> Result<(), Error> {
        let others = shelf::others(&self.image_dir, &inputs.key())?;
        let newest = others.into_iter().find_map(|other| other.manifest);
        if let Some(difference) = newest.and_then(|manifest| inputs.difference_from(&manifest.inputs)) {
            self.tell(&format!("the base template was baked {difference}: baking again"));
        }
        Ok(())
    }

    /// The caller has the turn.
    fn bake_anew(&self, inputs: &Inputs) -> Result<PathBuf, Error> {
        let dir = template::folder(&self.image_dir, BASE_TEMPLATE, &inputs.key());
        let shelf = self.image_dir.join(BASE_TEMPLATE);
        fs::create_dir_all(&shelf).map_err(Error::io(shelf.display()))?;
        // First what runs: it may still write into what is not whole.
        let place = Place::make(Site::of(&self.image_dir))?;
        shelf::clear_partial(&self.image_dir)?;
        let work = shelf::partial(&shelf)?;
        let watch = Watch::begin(Site::of(&self.image_dir))?;
        let baked = self.bake(inputs, work.path(), &place);
        // What a signal ended failed for no reason of its own.
        watch.verdict().and(baked)?;
        publish(work, &dir).map_err(Error::io(dir.display()))?;
        Ok(dir)
    }

    fn bake(&self, inputs: &Inputs, work: &Path, place: &Place) -> Result<(), Error> {
        let (cache, pen) = (self.image_dir.join(CACHE), &place.pen);
        self.tell("kernel: Debian's linux-image-cloud-amd64");
        let kernel = kernel::ensure(&cache, &inputs.kernel, pen)?;
        self.tell("packages of the root file system (about a minute the first time)");
        let packages = root::ensure_packages(&cache, pen)?;
        self.tell("root file system, initial ramdisk, private layer");
        root::write(&work.join(Part::Root.file_name()), &packages, self.agent, work, pen)?;
        fs::copy(kernel.image(), work.join(Part::Kernel.file_name())).map_err(Error::io("kernel"))?;
        initrd::write(&work.join(Part::Initrd.file_name()), self.agent, &kernel)?;
        layer::write(&work.join(Part::Layer.file_name()), pen)?;
        self.tell("boot of the guest, to be saved at rest");
        boot::to_rest(self.engine.as_ref(), &self.binary, place, work)?;
        self.tell("checksums");
        let manifest = manifest(inputs, work)?;
        let write = || {
            let mut file = File::create(work.join(MANIFEST))?;
            file.write_all(&manifest.to_file()?)?;
            file.sync_all()?;
            // The names of all its files too.
            File::open(work)?.sync_all()
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
        sha256.insert(part, hash_file(&path).map_err(Error::io(path.display()))?);
    }
    Ok(Manifest {
        key: inputs.key(),
        vcpus: VCPUS,
        memory_mb: MEMORY_MB,
        inputs: inputs.named.clone(),
        sha256,
    })
}

fn publish(work: tempfile::TempDir, dir: &Path) -> io::Result<()> {
    // A folder without a manifest is no template: somebody removed a part of it.
    if dir.is_dir() {
        fs::remove_dir_all(dir)?;
    }
    fs::set_permissions(work.path(), fs::Permissions::from_mode(0o755))?;
    fs::rename(work.path(), dir)?;
    // Nothing is there any more to be removed at its drop.
    let _ = work.keep();
    if let Some(shelf) = dir.parent() {
        // The folder too: ext4 may lose the new name in a power cut.
        File::open(shelf)?.sync_all()?;
    }
    Ok(())
}
