//! How many gits read at the same time, when their repositories hold them up.

use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::{CWD, Mode, mkfifoat};
use skep_harness::eventually;
use tokio::task::JoinHandle;

use super::{
    super::read_permits::{MAX_READS, MAX_READS_OF_ACCOUNT},
    *,
};

const CALLERS: usize = 100;

/// Taken by each test here: the permits are those of the process.
static ALL_PERMITS: Mutex<()> = Mutex::new(());

fn all_permits() -> MutexGuard<'static, ()> {
    ALL_PERMITS.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fixture {
    /// Git waits for a writer of its file of patterns.
    fn held_up_by_a_fifo() -> Self {
        let fixture = Self::new();
        fixture.commit("First");
        mkfifoat(CWD, fixture.at(".gitignore"), Mode::RUSR | Mode::WUSR).unwrap();
        fixture
    }

    /// Starts this many calls that read the status.
    fn callers(&self, number: usize) -> Vec<JoinHandle<Result<(), Error>>> {
        let call = |_| {
            let (place, status) = (self.place.clone(), self.status(""));
            self.runtime.spawn(async move { status.run(&place).await.map(drop) })
        };
        (0..number).map(call).collect()
    }

    /// How many gits work in this repository.
    fn gits(&self) -> usize {
        let folder = self.at("");
        let folders = fs::read_dir("/proc").unwrap().flatten();
        folders
            .filter(|process| {
                fs::read_to_string(process.path().join("comm")).is_ok_and(|name| name == "git\n")
            })
            .filter(|process| fs::read_link(process.path().join("cwd")).is_ok_and(|at| at.join("") == folder))
            .count()
    }

    fn wait_for_gits(&self, number: usize) {
        self.runtime.block_on(eventually("gits", async || self.gits() == number));
    }
}

/// The calls of an account hold the permits of the account, and end with their callers. Another account is served.
#[test]
fn a_hundred_callers_of_an_account_leave_room_for_another_one() {
    let _permits = all_permits();
    let (fixture, other) = (Fixture::held_up_by_a_fifo(), Fixture::new());
    let calls = fixture.callers(CALLERS);
    fixture.wait_for_gits(MAX_READS_OF_ACCOUNT);
    assert!(other.answer(other.status("")).clean);
    assert_eq!(fixture.gits(), MAX_READS_OF_ACCOUNT);
    // Those that wait for a permit end, too.
    calls.iter().for_each(JoinHandle::abort);
    for call in calls {
        assert!(fixture.runtime.block_on(call).unwrap_err().is_cancelled());
    }
    fixture.wait_for_gits(0);
    fs::remove_file(fixture.at(".gitignore")).unwrap();
    assert!(fixture.answer(fixture.status("")).clean);
}

/// All accounts together have as many as the machine should run. A call that waited goes on when another one is done.
#[test]
fn a_hundred_callers_of_several_accounts_are_all_answered() {
    let _permits = all_permits();
    let fixtures = [Fixture::held_up_by_a_fifo(), Fixture::held_up_by_a_fifo()];
    let calls = fixtures.each_ref().map(|fixture| fixture.callers(CALLERS / 2));
    let gits = || fixtures.iter().map(Fixture::gits).sum::<usize>();
    fixtures[0].runtime.block_on(eventually("gits", async || gits() == MAX_READS));
    // Writers of the FIFOs, from now on.
    let writers = fixtures.each_ref().map(|fixture| {
        // Open for both, because one for writing alone would wait for a reader.
        fs::OpenOptions::new().read(true).write(true).open(fixture.at(".gitignore")).unwrap()
    });
    for (fixture, calls) in fixtures.iter().zip(calls) {
        for call in calls {
            fixture.runtime.block_on(call).unwrap().unwrap();
        }
    }
    drop(writers);
}
