//! Files that are moved while they are written to.

use super::*;

/// Moves the file repeatedly while another thread appends to it. Afterwards every line exists exactly once.
fn no_line_is_lost_by_moves_to(target: &Path) {
    const LINES: usize = 300;
    let fixture = Fixture::new();
    let (root, place) = (fixture.at(""), &fixture.place);
    let roots = Roots::open([root, target.to_owned()]).unwrap();
    let to = |n: usize| target.join(format!("log-{n}"));
    let done = AtomicBool::new(false);
    let moved = std::thread::scope(|scope| {
        scope.spawn(|| {
            for line in 0..LINES {
                let append = WriteFile { append: true, ..fixture.writing("log", &format!("{line}\n")) };
                write::write(&roots, place, &append, &WriteCondition::None).unwrap();
            }
            done.store(true, Ordering::SeqCst);
        });
        let mut moved = 0;
        while !done.load(Ordering::SeqCst) {
            let path = AbsolutePath::parse("to", to(moved).to_str().unwrap(), PathEncoding::Plain).unwrap();
            let request = MoveFile { from: fixture.path("log"), to: path, overwrite: false };
            match relocate::move_file(&roots, place, &request) {
                Ok(_) => moved += 1,
                Err(error) => {
                    assert!(matches!(error.code(), ErrorCode::UnknownPath | ErrorCode::FileBusy), "{error}");
                }
            }
        }
        moved
    });
    assert!(moved > 0, "nothing was moved");
    let texts = (0..moved).map(to).chain([fixture.at("log")]).map(fs::read_to_string);
    let text: String = texts.filter_map(Result::ok).collect();
    let mut lines: Vec<usize> = text.lines().map(|line| line.parse().unwrap()).collect();
    lines.sort_unstable();
    assert_eq!(lines, (0..LINES).collect::<Vec<_>>());
}

#[test]
fn a_file_is_moved_with_all_that_is_added_to_it() {
    let target = tempfile::tempdir().unwrap();
    no_line_is_lost_by_moves_to(target.path());
}

#[test]
fn a_file_is_moved_to_another_file_system_with_all_that_is_added_to_it() {
    let (here, target) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
    let device = |folder: &TempDir| fs::metadata(folder.path()).unwrap().dev();
    assert_ne!(device(&here), device(&target), "/dev/shm is no file system of its own here");
    no_line_is_lost_by_moves_to(target.path());
}
