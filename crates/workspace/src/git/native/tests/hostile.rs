//! Status and diff of hostile repositories.

use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{RenameFlags, renameat_with};
use skep_api::git::{ChangeKind, GitDiff};

use super::{changes::NAMES, *};

/// A damaged index must not cause anything but a refusal.
#[test]
fn an_index_that_is_broken_or_cut_short_is_survived() {
    let fixture = Fixture::new();
    for name in NAMES {
        fixture.write(name, "text\n");
        if fixture.try_git(0, &["add", "-A"]).status.success() {
            let _ = fixture.try_git(0, &["commit", "-q", "-m", "Change"]);
        }
        if matches!(name, "b.txt") {
            fixture.write("b/.gitignore", "x\n");
        }
    }
    fixture.assert_same_status("");
    let path = fixture.at(".git/index");
    let index = fs::read(&path).unwrap();
    let mut refused = 0;
    for at in (0..index.len()).step_by(3) {
        for broken in [index[..at].to_vec(), [&index[..at], &[index[at] ^ 0x51], &index[at + 1..]].concat()] {
            fs::write(&path, broken).unwrap();
            refused += usize::from(fixture.answer_without_git(&fixture.status("")).is_none());
            fixture.answer_without_git(&fixture.diff(""));
        }
    }
    assert!(refused > index.len() / 3, "{refused}");
    fs::write(&path, &index).unwrap();
    fixture.assert_same_status("");
    fs::remove_file(&path).unwrap();
    mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).unwrap();
    assert_eq!(fixture.answer_without_git(&fixture.status("")), None);
    fs::remove_file(&path).unwrap();
    let outside = fixture.folder.path().join("outside");
    fs::write(&outside, &index).unwrap();
    symlink(&outside, &path).unwrap();
    assert_eq!(fixture.answer_without_git(&fixture.status("")), None);
}

#[test]
fn a_large_work_tree_is_walked_by_several_threads() {
    let fixture = Fixture::new();
    // A thread for each 2,000 files.
    for number in 0..4_050 {
        fixture.write(&format!("d{}/e{}/f{number}", number % 90, number % 7), "text\n");
    }
    fixture.git(&["add", "."]);
    fixture.commit("First");
    assert!(fixture.assert_same_status("").clean);
    for number in (0..4_050).step_by(45) {
        fixture.write(&format!("d{}/e{}/f{number}", number % 90, number % 7), format!("text {number}\n"));
        fixture.write(&format!("d{}/new{number}", number % 90), "");
    }
    fs::remove_dir_all(fixture.at("d1/e1")).unwrap();
    let status = fixture.assert_same_status("");
    assert_eq!((status.modified.len() > 90, status.untracked.len()), (true, 90));
    let diff = GitDiff { file: Some("d0".to_owned()), ..fixture.diff("") };
    assert!(!fixture.assert_same_diff(&diff).files.is_empty());
    // A failure in one thread ends the others.
    fs::create_dir_all(fixture.at("d5/nested/.git")).unwrap();
    assert_eq!(fixture.answer_without_git(&fixture.status("")), None);
}

/// A folder and a link are exchanged while the work tree is walked.
#[test]
fn a_folder_exchanged_for_a_link_is_not_followed() {
    let fixture = Fixture::new();
    let outside = fixture.folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("canary"), "").unwrap();
    fixture.write("d/inside", "");
    symlink(&outside, fixture.at("l")).unwrap();
    let done = AtomicBool::new(false);
    let mut seen = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (folder, link) = (fixture.at("d"), fixture.at("l"));
            while !done.load(Ordering::Relaxed) {
                renameat_with(CWD, &folder, CWD, &link, RenameFlags::EXCHANGE).unwrap();
            }
        });
        for _ in 0..500 {
            let Some(status) = fixture.answer_without_git(&fixture.status("")) else { continue };
            assert!(!status.untracked.iter().any(|file| file.path.contains("canary")), "{status:?}");
            seen += usize::from(status.untracked.iter().any(|file| file.path.contains("inside")));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(seen > 20, "{seen}");
}

/// Names in an index that lead outside, and folders that were replaced by links.
#[test]
fn nothing_outside_is_looked_at() {
    let fixture = Fixture::new();
    fixture.write("d/file", "text\n");
    fixture.git(&["add", "."]);
    fixture.commit("First");
    let outside = fixture.folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::rename(fixture.at("d/file"), outside.join("file")).unwrap();
    fs::remove_dir(fixture.at("d")).unwrap();
    symlink(&outside, fixture.at("d")).unwrap();
    let status = fixture.assert_same_status("");
    assert_eq!((status.modified[0].change, status.untracked.len()), (ChangeKind::Deleted, 1));
    let path = fixture.at(".git/index");
    let index = fs::read(&path).unwrap();
    let at = index.windows(6).position(|window| window == b"d/file").unwrap();
    for name in [b"../fil", b".git/f", b"d/../f", b"/dfile", b"./file"] {
        fs::write(&path, [&index[..at], name, &index[at + 6..]].concat()).unwrap();
        assert_eq!(fixture.answer_without_git(&fixture.status("")), None, "{name:?}");
    }
}

#[test]
fn trees_without_end_and_deep_folders_are_left_to_git() {
    let fixture = Fixture::new();
    fixture.write("d/d/d", "text\n");
    fixture.git(&["add", "."]);
    fixture.commit("First");
    fixture.assert_same_status("");
    // A tree that contains itself twice, stored under the id of another one.
    let tree = fixture.git(&["rev-parse", "HEAD^{tree}"]);
    let id = data_encoding::HEXLOWER.decode(tree.as_bytes()).unwrap();
    let names = [b"40000 a\0".as_slice(), &id, b"40000 d\0", &id].concat();
    let content = [format!("tree {}\0", names.len()).as_bytes(), &names].concat();
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut packed, &content).unwrap();
    let file = fixture.at(".git/objects").join(&tree[..2]).join(&tree[2..]);
    fs::remove_file(&file).unwrap();
    fs::write(file, packed.finish().unwrap()).unwrap();
    fixture.git(&["update-index", "--force-remove", "d/d/d"]);
    assert_eq!(fixture.answer_without_git(&fixture.status("")), None);
    let fixture = Fixture::new();
    fs::create_dir_all(fixture.at(&"d/".repeat(300))).unwrap();
    assert_eq!(fixture.answer_without_git(&fixture.status("")), None);
}
