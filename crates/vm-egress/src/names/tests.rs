use std::os::unix::fs::FileExt;

use skep_api::egress::EgressPolicy;
use skep_keeper_protocol::{MAX_EGRESS_NAMES, MAX_NAME_USERS, MAX_UNLISTED_NAMES, NameRecord, VmEgress};
use tokio::time::advance;

use super::{
    table::{Entry, KEPT_TIME},
    *,
};
use crate::{
    limits::Limits,
    vms::{Vm, Vms},
};

fn account() -> Option<AccountId> {
    Some(AccountId::generate())
}

fn new_names() -> Names {
    Names::open(tempfile::tempfile().unwrap()).unwrap()
}

impl Names {
    /// The placeholder address of a name for a VM of this account.
    fn take(&self, name: &str, account: Option<AccountId>, chosen: ChosenBy) -> Result<Ipv4Addr, Error> {
        self.address(name, account, chosen).map(|(address, _)| address)
    }

    /// The name that an address has now.
    fn name_now(&self, address: Ipv4Addr) -> Option<String> {
        self.state().table.record(number(address)?).map(|record| record.name)
    }

    fn release_all(&self) {
        while self.release_some().unwrap() {}
    }

    /// Gives all numbers that no name has had. No VM uses the names.
    fn give_all_numbers(&self) {
        let mut state = self.state();
        for number in state.table.len()..MAX_EGRESS_NAMES {
            let record =
                NameRecord { name: format!("unused{number}.example"), users: Vec::new(), reused: false };
            state.table.put(number as u32, Entry::load(Some(record), Instant::now()));
        }
    }
}

#[test]
fn a_name_keeps_its_address() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let names = Names::open(file.reopen().unwrap()).unwrap();
    let (first, second) = (account(), account());
    let [one, two] =
        ["one.example", "two.example"].map(|name| names.take(name, first, ChosenBy::Policy).unwrap());
    assert_eq!([one, two], [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)]);
    assert_eq!(names.take("one.example", second, ChosenBy::Guest).unwrap(), one);
    drop(names);
    let length = file.as_file().metadata().unwrap().len();
    file.as_file().write_all_at(b"{\"name\":\"half.exam", length).unwrap();

    let names = Names::open(file.reopen().unwrap()).unwrap();
    assert_eq!(names.name_now(two).as_deref(), Some("two.example"));
    assert_eq!(names.take("three.example", first, ChosenBy::Guest).unwrap(), Ipv4Addr::new(198, 18, 0, 3));
    assert_eq!(names.take("two.example", first, ChosenBy::Guest).unwrap(), two);
    for other in [[198, 18, 0, 0], [198, 18, 0, 9], [198, 17, 255, 255], [255, 255, 255, 255]] {
        assert_eq!(names.name_now(other.into()), None);
    }
    // The accounts are known as well.
    assert_eq!(names.known_name(one, second).as_deref(), Some("one.example"));
    assert_eq!(names.known_name(two, second), None);
}

#[test]
fn a_closed_file_is_not_written_any_more() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let replaced = Names::open(file.reopen().unwrap()).unwrap();
    let one = replaced.take("one.example", None, ChosenBy::Guest).unwrap();
    replaced.close_file().unwrap();
    let next = Names::open(file.reopen().unwrap()).unwrap();
    next.take("two.example", None, ChosenBy::Guest).unwrap();
    let refused = replaced.take("three.example", None, ChosenBy::Guest);
    assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
    assert_eq!(replaced.take("one.example", None, ChosenBy::Guest).unwrap(), one);
    let text = std::fs::read_to_string(file.path()).unwrap();
    assert!(text.contains("two.example") && !text.contains("three.example"), "{text}");
}

/// Runs itself in a process whose files may have four records and a half.
#[test]
fn a_part_of_a_record_is_removed_again() {
    const IN_CHILD: &str = "SKEP_TEST_SMALL_FILES";
    if std::env::var_os(IN_CHILD).is_none() {
        let test = "names::tests::a_part_of_a_record_is_removed_again";
        let limited = "trap '' XFSZ; ulimit -f 9; exec \"$0\" --exact \"$1\"";
        let mut child = std::process::Command::new("sh");
        child.args(["-c", limited]).arg(std::env::current_exe().unwrap()).arg(test).env(IN_CHILD, "");
        let output = child.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        return;
    }
    let file = tempfile::NamedTempFile::new().unwrap();
    let names = Names::open(file.reopen().unwrap()).unwrap();
    let complete = (0..)
        .take_while(|number| names.take(&format!("n{number}.example"), None, ChosenBy::Policy).is_ok())
        .count();
    // `ulimit -f` counts blocks of 512 bytes.
    assert_eq!(complete, 4);
    assert_eq!(file.as_file().metadata().unwrap().len(), 4 * 1024, "no part of a record is left");
    let first = names.take("n0.example", account(), ChosenBy::Policy).unwrap();
    let names = Names::open(file.reopen().unwrap()).unwrap();
    assert_eq!(names.name_now(first).as_deref(), Some("n0.example"));
}

#[test]
fn names_that_guests_choose_leave_numbers_for_those_that_policies_list() {
    let names = new_names();
    let taken = (0..MAX_EGRESS_NAMES)
        .take_while(|number| names.take(&format!("n{number}.example"), None, ChosenBy::Guest).is_ok())
        .count();
    assert_eq!(taken, MAX_UNLISTED_NAMES);
    let refused = names.take("api.example", account(), ChosenBy::Guest);
    assert!(matches!(refused, Err(Error::FullForUnlisted)), "{refused:?}");
    let listed = names.take("api.example", account(), ChosenBy::Policy).unwrap();
    // A name that already has a number keeps it.
    assert_eq!(names.take("api.example", account(), ChosenBy::Guest).unwrap(), listed);
    assert!(names.take("n7.example", account(), ChosenBy::Guest).is_ok());
    let taken = (0..MAX_EGRESS_NAMES)
        .take_while(|number| names.take(&format!("l{number}.example"), None, ChosenBy::Policy).is_ok())
        .count();
    assert_eq!(taken, MAX_EGRESS_NAMES - MAX_UNLISTED_NAMES - 1);
    let refused = names.take("another.example", account(), ChosenBy::Policy);
    assert!(matches!(refused, Err(Error::Full)), "{refused:?}");
    assert!(is_placeholder(address(MAX_EGRESS_NAMES as u32 - 1)) && !is_placeholder([198, 20, 0, 0].into()));
}

#[test]
fn an_account_that_takes_all_its_names_leaves_those_of_others() {
    let names = new_names();
    let (greedy, other) = (account(), account());
    let take = |prefix: &str, chosen| {
        (0..MAX_EGRESS_NAMES)
            .take_while(|number| names.take(&format!("{prefix}{number}.example"), greedy, chosen).is_ok())
            .count()
    };
    assert_eq!(take("guest", ChosenBy::Guest), MAX_UNLISTED_NAMES_OF_ACCOUNT);
    let refused = names.take("api.example", greedy, ChosenBy::Guest);
    assert!(matches!(refused, Err(Error::AccountFullForUnlisted)), "{refused:?}");
    assert_eq!(take("listed", ChosenBy::Policy), MAX_NAMES_OF_ACCOUNT - MAX_UNLISTED_NAMES_OF_ACCOUNT);
    let refused = names.take("api.example", greedy, ChosenBy::Policy);
    assert!(matches!(refused, Err(Error::AccountFull)), "{refused:?}");
    // A name that another account uses already counts too.
    names.take("api.example", other, ChosenBy::Guest).unwrap();
    assert!(names.take("api.example", greedy, ChosenBy::Policy).is_err());
    // The control: the others, and the names that it has.
    assert!(names.take("guest7.example", other, ChosenBy::Guest).is_ok());
    assert!(names.take("guest7.example", greedy, ChosenBy::Guest).is_ok());
}

#[tokio::test(start_paused = true)]
async fn names_that_no_vm_has_used_for_a_day_are_not_counted() {
    let names = new_names();
    let (first, second) = (account(), account());
    let used = names.take("used.example", first, ChosenBy::Guest).unwrap();
    let unused = names.take("unused.example", first, ChosenBy::Guest).unwrap();
    names.take("used.example", second, ChosenBy::Guest).unwrap();
    for _ in 0..2 {
        advance(KEPT_TIME / 2).await;
        names.keep(first, [used].iter());
        names.release_all();
    }
    assert_eq!(names.used(), 1);
    let state = names.state();
    let users: Vec<_> = [used, unused]
        .iter()
        .map(|address| state.table.record(number(*address).unwrap()).unwrap().users)
        .map(|users| users.into_iter().map(|user| (user.account, user.uses)).collect::<Vec<_>>())
        .collect();
    assert_eq!(users, [vec![(first, true), (second, false)], vec![(first, false)]]);
    drop(state);
    // Its address stays that of the name, which is counted again by the next use.
    assert_eq!(names.known_name(unused, first).as_deref(), Some("unused.example"));
    assert_eq!(names.take("unused.example", first, ChosenBy::Guest).unwrap(), unused);
    assert_eq!(names.used(), 2);
}

#[tokio::test(start_paused = true)]
async fn numbers_are_given_again_once_all_were_given_and_the_one_unused_longest_first() {
    let names = new_names();
    let of_account = account();
    let take = |name: &str| names.take(name, of_account, ChosenBy::Guest).unwrap();
    let [first, second, third] = ["first.example", "second.example", "third.example"].map(take);
    advance(KEPT_TIME / 2).await;
    // The first one is used later than the second one, and the third one by a VM that lives.
    take("first.example");
    names.keep(of_account, [third].iter());
    advance(KEPT_TIME).await;
    names.keep(of_account, [third].iter());
    names.release_all();
    assert_eq!(names.used(), 1);
    // As long as there are numbers that no name has had, they are given first.
    assert_eq!(take("fourth.example"), address(3));
    for number in 4..MAX_EGRESS_NAMES {
        let chosen = ChosenBy::Policy;
        names.take(&format!("n{number}.example"), None, chosen).unwrap();
    }
    // Two names that policies list, since guests may not choose so many.
    let take = |name: &str| names.take(name, of_account, ChosenBy::Policy).unwrap();
    assert_eq!(take("fifth.example"), second);
    assert_eq!(take("sixth.example"), first);
    let refused = names.take("seventh.example", of_account, ChosenBy::Policy);
    assert!(matches!(refused, Err(Error::Full)), "{refused:?}");
    let named = [first, second, third].map(|address| names.name_now(address).unwrap());
    assert_eq!(named, ["sixth.example", "fifth.example", "third.example"]);
    assert_eq!((names.find("first.example"), names.find("second.example")), (None, None));
}

/// A VM of this account, which may connect to everything.
fn vm_of(account: Option<AccountId>) -> Arc<Vm> {
    let (vms, address) = (Vms::new(Limits::default()), Ipv4Addr::new(10, 77, 0, 2));
    vms.set(address, VmEgress { policy: EgressPolicy::All, account });
    vms.find(address).unwrap()
}

/// Lets a name of an account that no VM uses lose its number, which another name gets. Returns the address, and the VM of the account
/// that has looked it up for the other name.
async fn given_again(names: &Names, account: Option<AccountId>) -> (Ipv4Addr, Arc<Vm>) {
    let address = names.take("before.example", account, ChosenBy::Guest).unwrap();
    advance(KEPT_TIME).await;
    names.release_all();
    names.give_all_numbers();
    let vm = vm_of(account);
    assert_eq!(vm.use_name(names, "after.example").unwrap(), address);
    (address, vm)
}

#[tokio::test(start_paused = true)]
async fn an_address_that_was_given_again_means_nothing_to_a_vm_that_has_not_looked_up_its_name() {
    let (names, account) = (new_names(), account());
    let copy = vm_of(account);
    let before = names.take("before.example", account, ChosenBy::Guest).unwrap();
    // The control: as long as no other name has it, a copy of a VM may use it.
    assert_eq!(copy.name_of(&names, before).as_deref(), Some("before.example"));
    let (address, vm) = given_again(&names, account).await;
    assert_eq!((address, vm.name_of(&names, address).as_deref()), (before, Some("after.example")));
    assert_eq!(copy.name_of(&names, address), None);
    // Also after a start of the process, when no VM has looked anything up yet.
    let records = (0..names.state().table.len()).map(|number| names.state().table.record(number as u32));
    let next = new_names();
    next.state().table = Table::load(records.collect(), Instant::now());
    assert_eq!(vm_of(account).name_of(&next, address), None);
    assert_eq!(next.find("after.example"), Some(address));
}

#[tokio::test(start_paused = true)]
async fn a_name_that_is_used_by_its_address_keeps_its_number_as_long_as_the_vm_lives() {
    let (names, account) = (new_names(), account());
    let address = names.take("used.example", account, ChosenBy::Guest).unwrap();
    advance(KEPT_TIME).await;
    names.release_all();
    assert_eq!(names.used(), 0);
    // A VM that was on disk connects by the address that its memory has.
    let vm = vm_of(account);
    let name = vm.name_of(&names, address).unwrap();
    assert_eq!(vm.use_name(&names, &name).unwrap(), address);
    assert_eq!(names.used(), 1);
    advance(KEPT_TIME).await;
    vm.with_names(|used| names.keep(vm.account(), used.keys()));
    names.release_all();
    names.give_all_numbers();
    assert_ne!(names.take("other.example", account, ChosenBy::Policy).unwrap(), address);
    assert_eq!(vm.name_of(&names, address).as_deref(), Some("used.example"));
}

#[tokio::test(start_paused = true)]
async fn a_vm_does_not_take_the_next_name_of_an_address_for_the_one_that_it_looked_up() {
    let (names, account) = (new_names(), account());
    let vm = vm_of(account);
    let before = vm.use_name(&names, "before.example").unwrap();
    // The VM is not noted as living here, so the number is given again.
    let (address, _) = given_again(&names, account).await;
    assert_eq!((address, vm.name_of(&names, address)), (before, None));
}

#[test]
fn an_address_means_nothing_to_a_vm_whose_account_has_not_looked_up_its_name() {
    let names = new_names();
    let (owner, other) = (account(), account());
    let secret = names.take("secret.example", owner, ChosenBy::Guest).unwrap();
    assert_eq!(vm_of(other).name_of(&names, secret), None);
    assert_eq!(vm_of(None).name_of(&names, secret), None);
    // The control.
    assert_eq!(vm_of(owner).name_of(&names, secret).as_deref(), Some("secret.example"));
}

#[test]
fn a_name_with_more_users_than_a_record_has_is_one_of_all_accounts() {
    let names = new_names();
    let users: Vec<_> = (0..=MAX_NAME_USERS).map(|_| account()).collect();
    let take = |user: Option<AccountId>| names.take("shared.example", user, ChosenBy::Guest).unwrap();
    let address = take(users[0]);
    users[1..MAX_NAME_USERS].iter().for_each(|user| assert_eq!(take(*user), address));
    assert_eq!(names.known_name(address, account()), None);
    assert_eq!(names.state().table.of_accounts.len(), MAX_NAME_USERS);
    // The last two are not counted one by one any more, and their uses are kept together.
    take(users[MAX_NAME_USERS]);
    assert_eq!(names.known_name(address, account()).as_deref(), Some("shared.example"));
    assert_eq!(names.state().table.of_accounts.len(), MAX_NAME_USERS - 1);
    take(account());
    let record = names.state().table.record(0).unwrap();
    assert_eq!((record.users.len(), record.users[MAX_NAME_USERS - 1].account), (MAX_NAME_USERS, None));
}

#[test]
fn a_name_of_accounts_that_are_not_known_is_counted_for_those_that_use_it() {
    let names = new_names();
    let (imported, account) = (names.take("imported.example", None, ChosenBy::Guest).unwrap(), account());
    assert_eq!(vm_of(account).name_of(&names, imported).as_deref(), Some("imported.example"));
    names.take("imported.example", account, ChosenBy::Guest).unwrap();
    assert_eq!(names.state().table.of_accounts.get(&account.unwrap()), Some(&1));
}

#[test]
fn a_malformed_record_is_a_number_without_a_name() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let names = Names::open(file.reopen().unwrap()).unwrap();
    for name in ["a.example", "b.example", "c.example"] {
        names.take(name, None, ChosenBy::Guest).unwrap();
    }
    file.as_file().write_all_at(b"}", 1024).unwrap();
    let names = Names::open(file.reopen().unwrap()).unwrap();
    assert_eq!(names.used(), 2);
    assert_eq!(names.find("b.example"), None);
    assert_eq!(names.known_name(address(1), None), None);
    assert_eq!(names.find("c.example"), Some(address(2)));
    assert_eq!(names.take("b.example", None, ChosenBy::Guest).unwrap(), address(3));
}
