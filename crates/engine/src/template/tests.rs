use std::{collections::BTreeMap, fs, io::Write, os::unix::fs::FileExt, path::Path};

use super::*;

fn lay_out(dir: &Path) {
    let mut sha256 = BTreeMap::new();
    for part in Part::ALL {
        let content = if part == Part::Ram { vec![0; 1 << 20] } else { part.file_name().as_bytes().to_vec() };
        fs::write(dir.join(part.file_name()), content).unwrap();
        sha256.insert(part, hash_file(&dir.join(part.file_name())).unwrap());
    }
    let manifest = Manifest { key: "k".to_owned(), vcpus: 1, memory_mb: 1, inputs: BTreeMap::new(), sha256 };
    fs::write(dir.join(MANIFEST), manifest.to_file().unwrap()).unwrap();
}

#[test]
fn a_whole_template_loads_and_its_memory_is_sealed() {
    let dir = tempfile::tempdir().unwrap();
    lay_out(dir.path());
    let template = Template::load(dir.path()).unwrap();
    let mut ram = File::from(template.ram().unwrap());
    assert_eq!(ram.metadata().unwrap().len(), 1 << 20);
    let refused = ram.write(b"x").unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied, "{refused}");
    assert!(ram.set_len(1).is_err());
}

#[test]
fn one_flipped_bit_in_any_file_is_named_and_never_served() {
    for part in Part::ALL {
        let dir = tempfile::tempdir().unwrap();
        lay_out(dir.path());
        let file =
            fs::OpenOptions::new().read(true).write(true).open(dir.path().join(part.file_name())).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, 3).unwrap();
        file.write_all_at(&[byte[0] ^ 1], 3).unwrap();
        let error = Template::load(dir.path()).unwrap_err();
        assert!(error.to_string().contains(part.file_name()), "{error}");
        assert_eq!(error.code(), skep_api::ErrorCode::TemplateDamaged);
    }
}

#[test]
fn a_missing_template_and_a_missing_file_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(Template::load(dir.path()), Err(Error::NoTemplate(_))));
    lay_out(dir.path());
    fs::remove_file(dir.path().join(Part::State.file_name())).unwrap();
    assert!(matches!(Template::load(dir.path()), Err(Error::DamagedTemplate { .. })));
}

#[test]
fn a_flipped_bit_anywhere_in_the_manifest_is_never_served() {
    let dir = tempfile::tempdir().unwrap();
    lay_out(dir.path());
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
fn a_truncated_file_is_named() {
    let dir = tempfile::tempdir().unwrap();
    lay_out(dir.path());
    let path = dir.path().join(Part::Root.file_name());
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(1).unwrap();
    let error = Template::load(dir.path()).unwrap_err();
    assert!(error.to_string().contains("root.erofs"), "{error}");
}

#[test]
fn a_loaded_template_stays_what_was_checked() {
    let dir = tempfile::tempdir().unwrap();
    lay_out(dir.path());
    let template = Template::load(dir.path()).unwrap();
    let path = dir.path().join(Part::Kernel.file_name());
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another kernel").unwrap();
    for _ in 0..2 {
        let opened = File::from(template.open(Part::Kernel).unwrap());
        assert_eq!(io::read_to_string(opened).unwrap(), Part::Kernel.file_name());
    }
}
