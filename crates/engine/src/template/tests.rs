use std::{collections::BTreeMap, fs, io::Write, os::unix::fs::FileExt, path::Path};

use super::*;

fn lay_out(dir: &Path) {
    let mut sha256 = BTreeMap::new();
    for part in Part::ALL {
        let content = if part == Part::Ram { vec![0; 1 << 20] } else { part.file_name().as_bytes().to_vec() };
        fs::write(dir.join(part.file_name()), content).unwrap();
        sha256.insert(part, hash_file(&dir.join(part.file_name()), &mut io::sink()).unwrap());
    }
    let manifest = Manifest { key: "k".to_owned(), vcpus: 1, memory_mb: 1, inputs: BTreeMap::new(), sha256 };
    fs::write(dir.join(MANIFEST), serde_json::to_vec(&manifest).unwrap()).unwrap();
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
