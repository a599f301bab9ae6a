use std::{
    collections::BTreeMap,
    fs::{self, Metadata},
    io::Write,
    os::unix::fs::{FileExt, MetadataExt},
    path::Path,
};

use super::*;
use crate::{
    MANIFEST,
    checksum::{checksum, checksum_of},
    link_or_copy, shelf,
    verified_file::{FileStamp, while_links_change},
};

fn write_template(dir: &Path) {
    let mut sha256 = BTreeMap::new();
    for part in TemplateFile::ALL {
        let content = match part {
            // Each memory has a content of its own: otherwise a loaded memory of another test could be used for this
            // template, if its file got the inode number of that test's removed file.
            TemplateFile::Ram => {
                let mut content = dir.as_os_str().as_encoded_bytes().to_vec();
                content.resize(1 << 20, 0);
                content
            }
            part => part.file_name().as_bytes().to_vec(),
        };
        fs::write(dir.join(part.file_name()), content).unwrap();
        sha256.insert(part, checksum_of(&dir.join(part.file_name())).unwrap());
    }
    let manifest = Manifest {
        format: FORMAT,
        origin: None,
        key: "k".to_owned(),
        vcpus: 1,
        memory_mb: 1,
        protocol: Some(2),
        inputs: BTreeMap::new(),
        sha256,
    };
    fs::write(dir.join(MANIFEST), manifest.to_file().unwrap()).unwrap();
}

#[test]
fn a_whole_template_loads_and_its_memory_is_sealed() {
    let dir = tempfile::tempdir().unwrap();
    write_template(dir.path());
    verify(dir.path()).unwrap();
    let template = Template::load(dir.path()).unwrap();
    let mut ram = File::from(template.ram().unwrap());
    assert_eq!(ram.metadata().unwrap().len(), 1 << 20);
    let refused = ram.write(b"x").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");
    assert!(ram.set_len(1).is_err());
}

/// Writes a template with the files that only snapshots have as well.
fn write_snapshot(dir: &Path) {
    write_template(dir);
    let mut manifest = read_manifest(dir).unwrap();
    for part in TemplateFile::OF_SNAPSHOTS {
        let path = dir.join(part.file_name());
        fs::write(&path, part.file_name()).unwrap();
        manifest.sha256.insert(part, checksum_of(&path).unwrap());
    }
    fs::write(dir.join(MANIFEST), manifest.to_file().unwrap()).unwrap();
}

#[test]
fn damage_of_any_file_is_named_and_never_served() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 3] = [
        ("one flipped bit", |path| flip_a_bit(&writable(path))),
        ("a cut end", |path| writable(path).set_len(path.metadata().unwrap().len() / 2).unwrap()),
        ("a missing file", |path| fs::remove_file(path).unwrap()),
    ];
    let baked = TemplateFile::ALL.to_vec();
    let stored = [&TemplateFile::ALL[..], &TemplateFile::OF_SNAPSHOTS].concat();
    let kinds: [(Damage, Vec<TemplateFile>); 2] = [(write_template, baked), (write_snapshot, stored)];
    for (write, parts) in kinds {
        for (part, (what, damage)) in parts.iter().flat_map(|part| damages.map(|damage| (part, damage))) {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path());
            verify(dir.path()).unwrap();
            damage(&dir.path().join(part.file_name()));
            for error in [Template::load(dir.path()).unwrap_err(), verify(dir.path()).unwrap_err()] {
                let message = error.to_string();
                assert!(message.contains(&format!("{}: ", part.file_name())), "{what}, {part:?}: {message}");
                assert_eq!(error.code(), skep_api::ErrorCode::TemplateDamaged, "{what}, {part:?}: {message}");
            }
        }
    }
}

#[test]
fn a_missing_template_and_a_missing_file_are_distinguished() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Template::load(dir.path()), Err(Error::Missing(_))));
    write_template(dir.path());
    fs::remove_file(dir.path().join(TemplateFile::State.file_name())).unwrap();
    assert!(matches!(Template::load(dir.path()), Err(Error::Damaged { .. })));
}

#[test]
fn a_flipped_bit_anywhere_in_the_manifest_is_never_served() {
    let dir = tempfile::tempdir().unwrap();
    write_template(dir.path());
    let path = dir.path().join(MANIFEST);
    let whole = fs::read(&path).unwrap();
    let blank = |byte: u8| byte.is_ascii_whitespace();
    for at in (0..whole.len()).filter(|at| !blank(whole[*at])) {
        let mut flipped = whole.clone();
        flipped[at] ^= 1;
        fs::write(&path, &flipped).unwrap();
        let error = read_manifest(dir.path()).unwrap_err();
        assert_eq!(error.code(), skep_api::ErrorCode::TemplateDamaged, "byte {at}: {error}");
    }
}

#[test]
fn a_loaded_template_stays_what_was_checked() {
    let dir = tempfile::tempdir().unwrap();
    write_template(dir.path());
    let template = Template::load(dir.path()).unwrap();
    let path = dir.path().join(TemplateFile::Kernel.file_name());
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another kernel").unwrap();
    for _ in 0..2 {
        let opened = File::from(template.open(TemplateFile::Kernel).unwrap());
        assert_eq!(io::read_to_string(opened).unwrap(), TemplateFile::Kernel.file_name());
    }
}

fn writable(path: &Path) -> File {
    fs::OpenOptions::new().read(true).write(true).open(path).unwrap()
}

fn root_of(dir: &Path) -> File {
    writable(&dir.join(TemplateFile::Root.file_name()))
}

fn flip_a_bit(file: &File) {
    let mut byte = [0];
    file.read_exact_at(&mut byte, 3).unwrap();
    file.write_all_at(&[byte[0] ^ 1], 3).unwrap();
}

fn set_modified(file: &File, times: &Metadata) {
    file.set_times(fs::FileTimes::new().set_modified(times.modified().unwrap())).unwrap();
}

#[test]
fn a_change_of_a_loaded_root_file_system_is_named_for_good() {
    type Change = fn(&File, &Metadata);
    let changes: [(&str, Change); 5] = [
        ("written to", |file, _| flip_a_bit(file)),
        ("has 1 bytes", |file, _| file.set_len(1).unwrap()),
        ("has 11 bytes", |file, _| file.write_all_at(b"x", 10).unwrap()),
        ("SHA-256 is", |file, before| {
            flip_a_bit(file);
            set_modified(file, before);
        }),
        ("SHA-256 is", |file, before| {
            flip_a_bit(file);
            set_modified(file, before);
            fs::remove_file(fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap()).unwrap();
        }),
    ];
    for (reason, change) in changes {
        let dir = tempfile::tempdir().unwrap();
        write_template(dir.path());
        let template = Template::load(dir.path()).unwrap();
        template.check().unwrap();
        let file = root_of(dir.path());
        let before = file.metadata().unwrap();
        change(&file, &before);
        let error = template.check().unwrap_err();
        assert_eq!(error.code(), skep_api::ErrorCode::TemplateDamaged);
        let message = error.to_string();
        assert!(message.contains("root.erofs") && message.contains(reason), "{reason}: {message}");
        // A guest may have read the damaged content.
        file.set_len(0).unwrap();
        file.write_all_at(b"root.erofs", 0).unwrap();
        set_modified(&file, &before);
        assert_eq!(template.check().unwrap_err().to_string(), message);
    }
}

#[test]
fn metadata_changes_are_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    write_template(dir.path());
    let template = Template::load(dir.path()).unwrap();
    let path = dir.path().join(TemplateFile::Root.file_name());
    let changes: [&dyn Fn() -> io::Result<()>; 5] = [
        &|| fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o600)),
        &|| fs::hard_link(&path, dir.path().join("another name")),
        &|| fs::rename(&path, dir.path().join("moved")),
        &|| fs::write(&path, "another file"),
        &|| fs::remove_dir_all(dir.path()),
    ];
    for change in changes {
        change().unwrap();
        template.check().unwrap();
    }
    let opened = File::from(template.open(TemplateFile::Root).unwrap());
    assert_eq!(io::read_to_string(opened).unwrap(), "root.erofs");
}

#[test]
fn links_of_snapshots_are_no_reason_to_read_the_root_file_system_again() {
    let dir = tempfile::tempdir().unwrap();
    write_template(dir.path());
    let template = Template::load(dir.path()).unwrap();
    let file = root_of(dir.path());
    let before = file.metadata().unwrap();
    let path = dir.path().join(TemplateFile::Root.file_name());
    let snapshots = tempfile::tempdir().unwrap();
    let folder = snapshots.path().join("key");
    fs::create_dir(&folder).unwrap();
    let link = folder.join(TemplateFile::Root.file_name());
    while_links_change(&path, || {
        fs::hard_link(&path, &link).unwrap();
        // Would be found if the file were read.
        flip_a_bit(&file);
        set_modified(&file, &before);
    });
    template.check().unwrap();
    flip_a_bit(&file);
    set_modified(&file, &before);
    template.check().unwrap();
    let changed = file.metadata().unwrap();
    shelf::remove_name(snapshots.path()).unwrap();
    assert_ne!(FileStamp::of(&file.metadata().unwrap()), FileStamp::of(&changed));
    assert_eq!((file.metadata().unwrap().nlink(), folder.exists()), (1, false));
    template.check().unwrap();

    // Damage from before a link is found after it.
    flip_a_bit(&file);
    set_modified(&file, &before);
    link_or_copy(&path, &dir.path().join("another name")).unwrap();
    assert!(template.check().unwrap_err().to_string().contains("SHA-256 is"));
}

#[test]
fn only_the_root_file_system_depends_on_the_disk() {
    let dir = tempfile::tempdir().unwrap();
    write_template(dir.path());
    let template = Template::load(dir.path()).unwrap();
    for part in TemplateFile::ALL.into_iter().filter(|part| *part != TemplateFile::Root) {
        fs::write(dir.path().join(part.file_name()), "something else").unwrap();
        let opened = File::from(template.open(part).unwrap());
        assert_ne!(io::read_to_string(&opened).unwrap(), "something else", "{part:?}");
        let writable = File::options().write(true).open(format!("/proc/self/fd/{}", opened.as_raw_fd()));
        let refused = writable.and_then(|file| file.write_all_at(b"x", 0)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{part:?}: {refused}");
    }
    template.check().unwrap();
}

#[test]
fn zeros_of_a_loaded_file_take_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    write_template(dir.path());
    let layer = File::create(dir.path().join(TemplateFile::Layer.file_name())).unwrap();
    layer.write_all_at(b"middle", 5 << 30).unwrap();
    layer.set_len(10 << 30).unwrap();
    let mut manifest = read_manifest(dir.path()).unwrap();
    let sha256 = checksum_of(&dir.path().join(TemplateFile::Layer.file_name())).unwrap();
    manifest.sha256.insert(TemplateFile::Layer, sha256.clone());
    fs::write(dir.path().join(MANIFEST), manifest.to_file().unwrap()).unwrap();
    let opened = File::from(Template::load(dir.path()).unwrap().open(TemplateFile::Layer).unwrap());
    let found = opened.metadata().unwrap();
    assert_eq!((found.len(), found.blocks() * 512), (10 << 30, 4096));
    assert_eq!(checksum(&opened, |_, _| Ok(())).ok(), Some(sha256));
}

#[test]
fn a_load_takes_the_data_of_all_files_and_no_memory_that_another_template_holds() {
    let dir = tempfile::tempdir().unwrap();
    write_template(dir.path());
    let bytes = || bytes_to_load(dir.path()).unwrap();
    // The memory has 1 MiB, all others but the delta are small.
    assert!((1 << 20..2 << 20).contains(&bytes()), "{}", bytes());
    let template = Template::load(dir.path()).unwrap();
    assert!(bytes() < 1 << 20, "{}", bytes());
    drop(template);

    let delta = File::create(dir.path().join(TemplateFile::Delta.file_name())).unwrap();
    delta.write_all_at(&vec![1_u8; 3 << 20], 1 << 30).unwrap();
    delta.set_len(2 << 30).unwrap();
    fs::write(dir.path().join(TemplateFile::Pages.file_name()), "pages").unwrap();
    let mut manifest = read_manifest(dir.path()).unwrap();
    for part in TemplateFile::OF_SNAPSHOTS {
        manifest.sha256.insert(part, checksum_of(&dir.path().join(part.file_name())).unwrap());
    }
    fs::write(dir.path().join(MANIFEST), manifest.to_file().unwrap()).unwrap();
    assert!((4 << 20..5 << 20).contains(&bytes()), "{}", bytes());
    fs::remove_file(dir.path().join(TemplateFile::Delta.file_name())).unwrap();
    assert!(matches!(bytes_to_load(dir.path()), Err(Error::Damaged { .. })));
}

#[test]
fn a_manifest_from_before_the_protocol_number_is_outdated_and_not_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let text = r#"{"key": "k", "vcpus": 1, "memory_mb": 1, "inputs": {"vcpus": "1"}, "sha256": {},
        "seal": "5b15c2b29ec21bbe91cca6c6e0b0768f4b54eddc0265677ff1fc3e892631aad8"}"#;
    fs::write(dir.path().join(MANIFEST), text).unwrap();
    let manifest = read_manifest(dir.path()).unwrap();
    assert_eq!((manifest.format, manifest.protocol), (1, None));
    let error = Template::load(dir.path()).unwrap_err();
    assert!(matches!(error, Error::Outdated { .. }), "{error}");
    assert!(error.to_string().contains("format 1, this skep reads 2"), "{error}");
    // A change of it is damage all the same.
    fs::write(dir.path().join(MANIFEST), text.replace("\"vcpus\": 1", "\"vcpus\": 2")).unwrap();
    assert!(matches!(Template::load(dir.path()), Err(Error::Damaged { .. })));
}
