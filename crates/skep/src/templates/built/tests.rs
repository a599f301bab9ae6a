mod loading;

use std::{
    collections::BTreeMap,
    fs,
    os::fd::OwnedFd,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use skep_api::templates::GuestSize;
use skep_image::BUILD_STEPS;
use skep_keeper_protocol::{StorePurpose, TemplateState};
use skep_template::{FORMAT, MANIFEST, Manifest, TemplateFile, checksum_of};

use super::{build::WAITS_FOR_RESOURCES, *};

/// Where a path would come from.
const SECRET: &str = "/var/lib/skep/templates: no space left; its console: panic";

/// A builder whose bakes fail, or copy the parent.
#[derive(Default)]
struct FakeBuilder {
    base: PathBuf,
    base_is_baking: AtomicBool,
    base_is_damaged: AtomicBool,
    fails: AtomicBool,
    /// How the machine differs from that of all templates.
    difference: Mutex<Option<String>>,
    bakes: Mutex<Vec<TemplateId>>,
}

impl Builder for Arc<FakeBuilder> {
    fn bake(
        &self,
        id: TemplateId,
        _: Recipe,
        parent: &Path,
        _: &dyn Fn(OwnedFd),
        report: &dyn Fn(&str),
    ) -> anyhow::Result<PathBuf> {
        self.bakes.lock().unwrap().push(id);
        report(SECRET);
        if self.fails.load(Ordering::Relaxed) {
            anyhow::bail!(SECRET);
        }
        skep_template::verify(parent)?;
        let dir = parent.with_file_name(format!("{id}-built"));
        write_template(&dir);
        Ok(dir)
    }

    fn base_dir(&self) -> Result<PathBuf, Failure> {
        let baking = self.base_is_baking.load(Ordering::Relaxed);
        let failure = || Failure::new(ErrorCode::TemplateDamaged, "it is being baked");
        if baking { Err(failure()) } else { Ok(self.base.clone()) }
    }

    fn base_dir_of(&self, key: &str) -> PathBuf {
        self.base.join(key)
    }

    fn difference_of_state(&self, dir: &Path) -> Result<Option<String>, skep_image::Error> {
        skep_template::read_manifest(dir)?;
        Ok(self.difference.lock().unwrap().clone())
    }

    fn shared_files(&self, recipe: &Recipe) -> &'static [TemplateFile] {
        recipe.shared_files(&self.base, &self.base)
    }

    fn is_base_damaged(&self) -> bool {
        self.base_is_damaged.load(Ordering::Relaxed)
    }
}

fn write_template(dir: &Path) {
    write_files(dir, TemplateFile::ALL);
}

fn write_files(dir: &Path, parts: impl IntoIterator<Item = TemplateFile>) {
    fs::create_dir_all(dir).unwrap();
    let mut sha256 = BTreeMap::new();
    for part in parts {
        let path = dir.join(part.file_name());
        fs::write(&path, part.file_name().repeat(1000)).unwrap();
        sha256.insert(part, checksum_of(&path).unwrap());
    }
    let (key, inputs, protocol) = ("k".to_owned(), BTreeMap::new(), Some(skep_channel::PROTOCOL));
    let manifest =
        Manifest { format: FORMAT, key, origin: None, vcpus: 1, memory_mb: 1, protocol, inputs, sha256 };
    fs::write(dir.join(MANIFEST), manifest.to_file().unwrap()).unwrap();
}

struct Fixture {
    inner: Inner,
    builder: Arc<FakeBuilder>,
    dir: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("base");
        write_template(&base);
        let builder = Arc::new(FakeBuilder { base, ..FakeBuilder::default() });
        let inner = Inner::new(dir.path().to_owned(), Box::new(Arc::clone(&builder)));
        Self { inner, builder, dir }
    }

    fn add(&self, parent: TemplateId, phase: Phase) -> TemplateId {
        let size = GuestSize { memory_mb: 128, vcpus: 1, disk_mb: 2048 };
        let id = TemplateId::generate();
        self.inner.table().templates.insert(id, Entry::new(Recipe::build(parent, size), phase));
        id
    }

    /// A snapshot in this phase, with files.
    fn add_snapshot(&self, kind: Kind, parent: TemplateId, phase: Phase) -> TemplateId {
        let id = TemplateId::generate();
        let parts = TemplateFile::ALL.into_iter().chain(TemplateFile::OF_SNAPSHOTS);
        write_files(&self.inner.folder(id).join("k"), parts);
        let size = GuestSize { memory_mb: 128, vcpus: 1, disk_mb: 2048 };
        self.inner.table().templates.insert(id, Entry::new(Recipe { parent, size, kind }, phase));
        id
    }

    fn state(&self, id: TemplateId) -> TemplateState {
        self.inner.table().templates[&id].status(id).state
    }

    fn bakes(&self) -> usize {
        self.builder.bakes.lock().unwrap().len()
    }

    /// Performs the next build, and returns whose it was.
    fn build_next(&self) -> TemplateId {
        let id = self.inner.queue.next();
        self.inner.build(id);
        self.inner.queue.finish();
        id
    }
}

fn building() -> Phase {
    Phase::Building { step: String::new() }
}

#[test]
fn a_rebuild_that_failed_is_tried_again_and_nothing_of_the_server_is_shown() {
    let fixture = Fixture::new();
    let id = fixture.add(TemplateId::BASE, Phase::Outdated { reason: "another kernel".to_owned() });
    fixture.builder.fails.store(true, Ordering::Relaxed);
    fixture.inner.build(id);
    let TemplateState::Outdated { reason } = fixture.state(id) else { panic!("{:?}", fixture.state(id)) };
    assert!(
        reason.starts_with("another kernel; the last build failed: ") && !reason.contains('/'),
        "{reason}"
    );
    fixture.builder.fails.store(false, Ordering::Relaxed);
    assert_eq!(fixture.build_next(), id);
    assert!(matches!(fixture.state(id), TemplateState::Ready { .. }), "{:?}", fixture.state(id));
    // Control: a template that was never ready.
    let first = fixture.add(TemplateId::BASE, building());
    fixture.builder.fails.store(true, Ordering::Relaxed);
    fixture.inner.build(first);
    let TemplateState::Failed { failure } = fixture.state(first) else { panic!() };
    assert!(!failure.message.contains('/'), "{failure}");
    assert!(!fixture.inner.queue.cancel(first), "it is not tried again");
}

#[test]
fn a_step_that_names_a_path_is_not_shown() {
    let fixture = Fixture::new();
    let id = fixture.add(TemplateId::BASE, building());
    fixture.inner.report(id, SECRET);
    assert!(matches!(fixture.state(id), TemplateState::Building { step } if step.is_empty()));
    fixture.inner.report(id, BUILD_STEPS[1]);
    assert!(matches!(fixture.state(id), TemplateState::Building { step } if step == BUILD_STEPS[1]));
}

#[test]
fn a_build_waits_for_its_parent_and_for_the_machine() {
    let fixture = Fixture::new();
    let id = fixture.add(TemplateId::BASE, building());
    fixture.builder.base_is_baking.store(true, Ordering::Relaxed);
    fixture.inner.build(id);
    assert!(matches!(fixture.state(id), TemplateState::Building { step } if step == WAITS_FOR_PARENT));
    fixture.builder.base_is_baking.store(false, Ordering::Relaxed);

    let is_full = Arc::new(AtomicBool::new(true));
    let full = Arc::clone(&is_full);
    let refusal = || Failure::new(ErrorCode::NoCapacity, "the disk is full");
    let admit: AdmitBuild =
        Box::new(move || if full.load(Ordering::Relaxed) { Err(refusal()) } else { Ok(()) });
    assert!(fixture.inner.admit.set(admit).is_ok());
    assert_eq!(fixture.build_next(), id);
    assert!(matches!(fixture.state(id), TemplateState::Building { step } if step == WAITS_FOR_RESOURCES));
    assert_eq!(fixture.bakes(), 0);
    is_full.store(false, Ordering::Relaxed);
    assert_eq!(fixture.build_next(), id);
    assert!(matches!(fixture.state(id), TemplateState::Ready { .. }), "{:?}", fixture.state(id));
}

#[test]
fn a_damaged_parent_is_built_again_before_its_child() {
    let fixture = Fixture::new();
    let dir = fixture.dir.path().join("parent");
    write_template(&dir);
    let parent = fixture.add(TemplateId::BASE, Phase::Ready(Ready::of(dir.clone(), &[]).unwrap()));
    let child = fixture.add(parent, building());
    let layer = dir.join(TemplateFile::Layer.file_name());
    let mut bytes = fs::read(&layer).unwrap();
    bytes[4711] ^= 1;
    fs::write(&layer, bytes).unwrap();
    fixture.inner.build(child);
    assert!(matches!(fixture.state(child), TemplateState::Building { step } if step == WAITS_FOR_PARENT));
    let TemplateState::Damaged { reason } = fixture.state(parent) else {
        panic!("{:?}", fixture.state(parent))
    };
    assert!(reason.starts_with("layer.ext4: ") && !reason.contains('/'), "{reason}");
    assert_eq!([fixture.build_next(), fixture.build_next()], [parent, child]);
    for id in [parent, child] {
        assert!(matches!(fixture.state(id), TemplateState::Ready { .. }), "{:?}", fixture.state(id));
    }
}

#[test]
fn a_damaged_base_is_no_failure_of_its_child() {
    let fixture = Fixture::new();
    let child = fixture.add(TemplateId::BASE, building());
    for state in [&fixture.builder.fails, &fixture.builder.base_is_damaged] {
        state.store(true, Ordering::Relaxed);
    }
    fixture.inner.build(child);
    assert!(matches!(fixture.state(child), TemplateState::Building { step } if step == WAITS_FOR_PARENT));
}

#[test]
fn a_guest_from_the_disk_of_an_outdated_snapshot_stays_until_no_vm_needs_it() {
    let fixture = Fixture::new();
    let outdated = || Phase::Outdated { reason: "another processor".to_owned() };
    let snapshot = fixture.add_snapshot(Kind::Pause, TemplateId::BASE, outdated());
    let other = fixture.add(TemplateId::BASE, building());
    fixture.inner.queue.push(other).unwrap();
    let (inner, builder) = (fixture.inner, fixture.builder);
    let templates = BuiltTemplates(Arc::new(inner));
    let refusal = templates.open(snapshot, &|_| Ok(MemoryAdmission::default())).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::TemplateNotReady);
    for part in ["another processor", "a resume without it (`\"memory\": false`)"] {
        assert!(refusal.message.contains(part), "{refusal}");
    }
    let unknown = templates.boot_disk(TemplateId::generate(), TemplateId::generate()).unwrap_err();
    assert_eq!(unknown.code, ErrorCode::UnknownTemplate);
    let no_snapshot = templates.boot_disk(TemplateId::generate(), other).unwrap_err();
    assert_eq!(no_snapshot.code, ErrorCode::UnknownTemplate);

    let booted = TemplateId::generate();
    templates.boot_disk(booted, snapshot).unwrap();
    let next = templates.0.queue.next();
    assert_eq!(next, booted, "before other builds");
    templates.0.build(next);
    templates.0.queue.finish();
    assert_eq!(*builder.bakes.lock().unwrap(), [booted]);
    let status = templates.status(booted).unwrap();
    assert!(matches!(status.state, TemplateState::Ready { .. }), "{status:?}");
    assert!(templates.list().iter().all(|status| status.template != booted), "it is listed");
    // The snapshot can go, and the guest stays as long as a VM needs it, also one that is on disk again.
    templates.remove(snapshot).unwrap();
    let start = Instant::now();
    let look = |seconds: u64, in_use: &[TemplateId]| {
        let at = start + Duration::from_secs(seconds);
        templates.unload_unused_at(&in_use.iter().copied().collect(), at);
        templates.status(booted).is_some()
    };
    assert!(look(0, &[]) && look(50, &[booted]) && look(100, &[booted]) && look(110, &[]) && look(160, &[]));
    let size = status.size;
    let pause = Entry::new(Recipe { parent: booted, size, kind: Kind::Pause }, outdated());
    let paused = TemplateId::generate();
    templates.0.table().templates.insert(paused, pause);
    assert!(look(171, &[]) && look(300, &[]));
    assert_eq!(templates.remove(booted).unwrap_err().code, ErrorCode::TemplateInUse);
    templates.0.table().templates.remove(&paused);
    // A snapshot of its VM has links to all that it needs.
    let stored = Entry::new(Recipe { parent: booted, size, kind: Kind::Snapshot }, outdated());
    templates.0.table().templates.insert(TemplateId::generate(), stored);
    assert!(look(310, &[]) && look(369, &[]) && !look(371, &[]));
    assert!(!templates.0.folder(booted).exists());
}

#[test]
fn a_guest_that_does_not_boot_from_a_disk_is_not_tried_again() {
    let fixture = Fixture::new();
    let damaged = Phase::Damaged { reason: "delta".to_owned() };
    let snapshot = fixture.add_snapshot(Kind::Snapshot, TemplateId::BASE, damaged);
    fixture.builder.fails.store(true, Ordering::Relaxed);
    let templates = BuiltTemplates(Arc::new(fixture.inner));
    let boot = || {
        let booted = TemplateId::generate();
        templates.boot_disk(booted, snapshot).unwrap();
        templates.0.build(templates.0.queue.next());
        templates.0.queue.finish();
        let TemplateState::Failed { failure } = templates.status(booted).unwrap().state else { panic!() };
        assert!(!failure.message.contains('/'), "{failure}");
        assert!(!templates.0.queue.cancel(booted), "it is tried again");
        templates.remove(booted).unwrap();
        failure.code
    };
    assert_eq!(boot(), ErrorCode::BootFailed);
    let refusal = || Failure::new(ErrorCode::NoCapacity, "the disk is full");
    assert!(templates.0.admit.set(Box::new(move || Err(refusal()))).is_ok());
    assert_eq!(boot(), ErrorCode::NoCapacity);
    fs::remove_dir_all(templates.0.folder(snapshot).join("k")).unwrap();
    assert_eq!(boot(), ErrorCode::UnknownTemplate);
}

#[test]
fn an_earlier_guest_from_a_disk_is_found_if_it_is_complete() {
    let fixture = Fixture::new();
    let complete = fixture.add_snapshot(Kind::Disk, TemplateId::BASE, building());
    assert!(matches!(fixture.inner.find_disk(complete), Some(Phase::Ready(_))));
    let begun = TemplateId::generate();
    fs::create_dir_all(fixture.inner.folder(begun).join(".partial-1")).unwrap();
    assert!(fixture.inner.find_disk(begun).is_none());
}

#[test]
fn files_that_cannot_be_read_at_a_start_are_not_taken_for_incomplete_ones() {
    let fixture = Fixture::new();
    let id = fixture.add_snapshot(Kind::Pause, TemplateId::BASE, building());
    let dir = fixture.inner.folder(id).join("k");
    assert!(matches!(fixture.inner.find_files(id), Some(Ok(found)) if found == dir));
    let (manifest, aside) = (dir.join(MANIFEST), dir.join("aside"));
    fs::rename(&manifest, &aside).unwrap();
    // It leads to itself, so that the kernel refuses to read it.
    std::os::unix::fs::symlink(MANIFEST, &manifest).unwrap();
    assert!(matches!(fixture.inner.find_files(id), Some(Err(Phase::Damaged { .. }))));
    assert!(matches!(fixture.inner.find_disk(id), Some(Phase::Damaged { .. })));
    // Control: the manifest is missing, as after a crash in the middle of a snapshot.
    fs::remove_file(&manifest).unwrap();
    assert!(fixture.inner.find_files(id).is_none());
}

#[test]
fn the_files_of_a_vm_are_found_while_its_template_is_outdated() {
    let fixture = Fixture::new();
    let outdated = || Phase::Outdated { reason: "another kernel".to_owned() };
    let built = fixture.add(TemplateId::BASE, outdated());
    let file = tempfile::tempfile().unwrap();
    let find = |origin: TemplateId, origin_key: &str| {
        let (state, delta, pages, layer) = (&file, &file, &file, &file);
        let purpose = StorePurpose::Pause;
        let origin_ram = None;
        let captured = CapturedFiles { origin, origin_key, origin_ram, purpose, state, delta, pages, layer };
        fixture.inner.origin_dir(&captured)
    };
    for (origin, folder) in
        [(built, fixture.inner.folder(built)), (TemplateId::BASE, fixture.builder.base.clone())]
    {
        write_template(&folder.join("earlier"));
        assert_eq!(find(origin, "earlier").unwrap(), folder.join("earlier"));
        let missing = find(origin, "removed").unwrap_err();
        assert!(missing.code == ErrorCode::TemplateNotReady && missing.message.contains("not on the server"));
    }
    // What is damaged may have its files replaced at any time.
    let damaged = Phase::Damaged { reason: "ram".to_owned() };
    fixture.inner.table().templates.get_mut(&built).unwrap().phase = damaged;
    fixture.builder.base_is_baking.store(true, Ordering::Relaxed);
    for origin in [built, TemplateId::BASE] {
        let refused = find(origin, "earlier").unwrap_err();
        assert!(
            refused.code == ErrorCode::TemplateNotReady && refused.message.contains("damaged"),
            "{refused}"
        );
    }
}

#[test]
fn a_vm_of_an_earlier_bake_is_not_stored_with_the_memory_of_another_one_from_the_same_inputs() {
    let fixture = Fixture::new();
    let dir = fixture.builder.base.join("key");
    write_template(&dir);
    let baked = checksum_of(&dir.join(TemplateFile::Ram.file_name())).unwrap();
    let file = tempfile::tempfile().unwrap();
    let find = |origin_ram: Option<&str>| {
        let (origin, origin_key, purpose) = (TemplateId::BASE, "key", StorePurpose::Pause);
        let (state, delta, pages, layer) = (&file, &file, &file, &file);
        fixture.inner.origin_dir(&CapturedFiles {
            origin,
            origin_key,
            origin_ram,
            purpose,
            state,
            delta,
            pages,
            layer,
        })
    };
    assert_eq!(find(Some(&baked)).unwrap(), dir);
    let refused = find(Some("of an earlier bake")).unwrap_err();
    assert!(
        refused.code == ErrorCode::TemplateNotReady && refused.message.contains("not on the server"),
        "{refused}"
    );
    // An earlier release did not record it.
    assert_eq!(find(None).unwrap(), dir);
}

#[test]
fn memory_of_a_vm_of_an_earlier_engine_is_kept_and_not_loaded() {
    let fixture = Fixture::new();
    write_template(&fixture.builder.base.join("earlier"));
    let (inner, builder) = (fixture.inner, fixture.builder);
    let templates = BuiltTemplates(Arc::new(inner));
    let path = fixture.dir.path().join("captured");
    fs::write(&path, "captured").unwrap();
    let file = fs::File::open(&path).unwrap();
    let store = |purpose| {
        let (state, delta, pages, layer) = (&file, &file, &file, &file);
        let (origin, origin_key) = (TemplateId::BASE, "earlier");
        let origin_ram = None;
        let captured = CapturedFiles { origin, origin_key, origin_ram, purpose, state, delta, pages, layer };
        let id = TemplateId::generate();
        (id, templates.store(id, &captured).unwrap())
    };
    templates.check_copy(TemplateId::BASE, "earlier").unwrap();
    let (_, stored) = store(StorePurpose::Template);
    let own_bytes = stored.own_bytes;
    assert!(matches!(stored.state, TemplateState::Ready { .. }) && own_bytes > 0, "{stored:?}");

    let difference = "for qemu 1, this machine has qemu 2";
    *builder.difference.lock().unwrap() = Some(difference.to_owned());
    let refused = templates.check_copy(TemplateId::BASE, "earlier").unwrap_err();
    assert_eq!(refused.code, ErrorCode::TemplateNotReady);
    assert!(
        refused.message.contains(difference) && refused.message.contains("\"memory\": false"),
        "{refused}"
    );
    templates.check_copy(TemplateId::BASE, "removed").unwrap();
    for purpose in [StorePurpose::Template, StorePurpose::Pause] {
        let (id, stored) = store(purpose);
        let TemplateState::Outdated { reason } = &stored.state else { panic!("{stored:?}") };
        assert!(reason.contains(difference), "{reason}");
        assert_eq!(stored.own_bytes, own_bytes, "its files are counted");
        let opened = templates.open(id, &|_| Ok(MemoryAdmission::default()));
        assert_eq!(opened.unwrap_err().code, ErrorCode::TemplateNotReady);
        assert!(templates.0.snapshot_dir(id).is_ok(), "its files are kept");
    }
}
