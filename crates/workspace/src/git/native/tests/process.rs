//! Limits of readings in the server's process: time, callers that have left, and no mapped files.

use std::{env::consts::ARCH, process::ExitStatus};

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};

use super::{
    super::{branches::list_branches, diff::compute_diff, log::read_page, status::compute_status},
    *,
};

/// Runs an operation and returns whether the reader answers it.
type Work<'a> = &'a dyn Fn(&mut Reader<'_>) -> bool;

impl Fixture {
    /// Commits a file, packs the repository, and changes the file.
    fn change_a_packed_file(&self) {
        self.write("file", "one\n");
        self.git(&["add", "."]);
        self.commit("First");
        self.git(&["gc", "-q"]);
        self.write("file", "two\n");
    }

    /// Runs `work` with a reader of the repository.
    fn with_reader<T>(&self, cancellation: Cancellation, work: impl FnOnce(&mut Reader<'_>) -> T) -> T {
        let roots = self.place.roots().unwrap();
        let repository = Repository::find_without_git(&self.place, Some(&self.path(""))).unwrap();
        work(&mut Reader {
            roots: &roots,
            repository: &repository,
            objects: Objects::new(&roots, repository.common_dir.join("objects")),
            packed_refs: None,
            commit_nodes: HashMap::new(),
            cancellation,
        })
    }

    /// The names of the operations that are answered within this time limit.
    fn answered_within(&self, limit: Duration) -> Vec<&'static str> {
        let (log, diff) = (self.log("", None, 10, None), self.diff(""));
        let answered = |work: Work<'_>| {
            let (cancellation, _waiting) = Cancellation::with_time_limit(limit);
            self.with_reader(cancellation, work)
        };
        let operations: [(_, Work<'_>); 4] = [
            ("log", &|reader| read_page(reader, &log).is_some()),
            ("branches", &|reader| list_branches(reader, true).is_some()),
            ("status", &|reader| compute_status(reader).is_some()),
            ("diff", &|reader| compute_diff(reader, &diff).is_some()),
        ];
        operations.into_iter().filter(|(_, work)| answered(work)).map(|(name, _)| name).collect()
    }
}

const LONG: Duration = Duration::from_secs(600);

#[test]
fn a_reading_ends_when_its_caller_is_gone() {
    let fixture = Fixture::new();
    fixture.commit("First");
    let (kept, waiting) = Cancellation::with_time_limit(LONG);
    fixture.with_reader(kept, |reader| {
        let head = reader.resolve_revision("main").unwrap();
        assert_eq!(reader.history(head, 0, 5).unwrap().len(), 1);
        drop(waiting);
        assert!(reader.history(head, 0, 5).is_none());
    });
}

#[test]
fn a_reading_ends_with_its_time_limit() {
    let fixture = Fixture::new();
    fixture.change_a_packed_file();
    assert_eq!(fixture.answered_within(Duration::ZERO), [""; 0]);
    // The control: with enough time, all are answered.
    assert_eq!(fixture.answered_within(LONG), ["log", "branches", "status", "diff"]);
}

/// If a mapped file is truncated, the next access beyond its end kills the process (SIGBUS).
#[test]
fn no_file_is_mapped_by_a_reading() {
    let fixture = Fixture::new();
    fixture.change_a_packed_file();
    let (answered, started) = std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            refuse_to_map_files();
            (fixture.answered_within(LONG), Command::new("true").status())
        });
        reading.join().unwrap()
    });
    assert_eq!(answered, ["log", "branches", "status", "diff"]);
    // The control: a program maps its libraries.
    assert!(!started.is_ok_and(|status: ExitStatus| status.success()));
}

/// From now on, the kernel refuses to map files for this thread.
fn refuse_to_map_files() {
    let anonymous = u64::from(u32::MAX);
    let condition = SeccompCondition::new(4, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, anonymous).unwrap();
    let rules = [(libc::SYS_mmap, vec![SeccompRule::new(vec![condition]).unwrap()])].into();
    let refused = SeccompAction::Errno(libc::EACCES.cast_unsigned());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refused, ARCH.try_into().unwrap()).unwrap();
    apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
}
