//! Which name has which number, and whose VMs use it.

use std::{
    collections::{BTreeSet, HashMap, hash_map},
    sync::Arc,
    time::Duration,
};

use skep_api::AccountId;
use skep_keeper_protocol::{
    MAX_EGRESS_NAMES, MAX_NAME_USERS, MAX_NAMES_OF_ACCOUNT, MAX_UNLISTED_NAMES,
    MAX_UNLISTED_NAMES_OF_ACCOUNT, NameRecord, NameUser,
};
use tokio::time::Instant;

use super::{ChosenBy, Error};

/// How long a name counts as used after its last use.
pub(super) const KEPT_TIME: Duration = Duration::from_secs(24 * 3600);
/// How many entries one call of [`Table::expired`] returns, so that their writes delay no connection for long.
const MAX_EXPIRED: usize = 1024;

/// Names by number.
#[derive(Debug, Default)]
pub(super) struct Table {
    entries: Vec<Entry>,
    numbers: HashMap<Arc<str>, u32>,
    /// Numbers that no VM uses, the one that was used longest ago first.
    unused: BTreeSet<(Instant, u32)>,
    /// How many names VMs of an account use.
    pub(super) of_accounts: HashMap<AccountId, usize>,
}

#[derive(Debug, Clone)]
pub(super) struct Entry {
    name: Arc<str>,
    users: Vec<User>,
    /// When the last VM used it. Exact once none does.
    last_use: Instant,
    /// Whether another name had the number before.
    reused: bool,
    /// How many names had the number before, since the start of the process.
    generation: u32,
}

/// An account whose VMs have looked a name up.
#[derive(Debug, Clone)]
struct User {
    /// `None` stands for all accounts. What they use is counted for none of them.
    account: Option<AccountId>,
    last_use: Instant,
    /// Whether the last use was within [`KEPT_TIME`].
    uses: bool,
}

impl Entry {
    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    pub(super) fn record(&self) -> NameRecord {
        let user = |user: &User| NameUser { account: user.account, uses: user.uses };
        let users = self.users.iter().map(user).collect();
        NameRecord { name: self.name.as_ref().to_owned(), users, reused: self.reused }
    }

    pub(super) fn load(record: Option<NameRecord>, now: Instant) -> Self {
        // The name of a malformed record is not known, so the next one that gets its number is not the first.
        let record =
            record.unwrap_or_else(|| NameRecord { name: String::new(), users: Vec::new(), reused: true });
        let user = |user: NameUser| User { account: user.account, last_use: now, uses: user.uses };
        let users = record.users.into_iter().map(user).collect();
        Self { name: record.name.into(), users, last_use: now, reused: record.reused, generation: 0 }
    }

    fn is_used(&self) -> bool {
        self.users.iter().any(|user| user.uses)
    }

    /// Whether VMs of this account may have looked the name up.
    fn is_known_to(&self, account: Option<AccountId>) -> bool {
        self.users.iter().any(|user| user.account.is_none() || user.account == account)
    }

    /// The user for this account: its own, or that of all accounts if there can be no further one.
    fn user_mut(&mut self, account: Option<AccountId>) -> Option<&mut User> {
        let own = self.users.iter().position(|user| user.account == account);
        let of_all = || self.users.iter().position(|user| user.account.is_none());
        let found = own.or_else(|| of_all().filter(|_| self.users.len() == MAX_NAME_USERS))?;
        self.users.get_mut(found)
    }

    /// Adds a user, or notes that it uses the name again. If there can be no further one, all accounts take the place of the last one.
    fn add_user(&mut self, account: Option<AccountId>, now: Instant) {
        self.last_use = now;
        if let Some(user) = self.user_mut(account) {
            (user.last_use, user.uses) = (now, true);
            return;
        }
        let is_full = self.users.len() == MAX_NAME_USERS;
        if is_full {
            self.users.pop();
        }
        self.users.push(User { account: account.filter(|_| !is_full), last_use: now, uses: true });
    }

    /// The entry after it was noted who has not used it for [`KEPT_TIME`]. `None` if nothing changes.
    fn expired(&self, now: Instant) -> Option<Self> {
        let is_expired = |user: &User| user.uses && now.duration_since(user.last_use) >= KEPT_TIME;
        if !self.users.iter().any(is_expired) {
            return None;
        }
        let mut expired = self.clone();
        for user in expired.users.iter_mut().filter(|user| is_expired(user)) {
            user.uses = false;
            expired.last_use = expired.last_use.max(user.last_use);
        }
        Some(expired)
    }

    /// The accounts for which the name is counted.
    fn accounts(&self) -> impl Iterator<Item = AccountId> {
        self.users.iter().filter(|user| user.uses).filter_map(|user| user.account)
    }
}

impl Table {
    /// The names of a file. How long they were not used is not known, so all count as used now.
    pub(super) fn load(records: Vec<Option<NameRecord>>, now: Instant) -> Self {
        let mut table = Self::default();
        for (number, record) in records.into_iter().enumerate() {
            table.put(number as u32, Entry::load(record, now));
        }
        table
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn used(&self) -> usize {
        self.entries.len() - self.unused.len()
    }

    pub(super) fn find(&self, name: &str) -> Option<u32> {
        self.numbers.get(name).copied()
    }

    /// The name of a number, if it is of this generation.
    pub(super) fn name(&self, number: u32, generation: u32) -> Option<Arc<str>> {
        let entry = self.entry(number).filter(|entry| entry.generation == generation)?;
        Some(Arc::clone(&entry.name))
    }

    pub(super) fn record(&self, number: u32) -> Option<NameRecord> {
        self.entry(number).map(Entry::record)
    }

    /// The name of a number, for an account whose VMs may have looked it up when the number had this name.
    pub(super) fn known_name(&self, number: u32, account: Option<AccountId>) -> Option<Arc<str>> {
        let entry = self.entry(number).filter(|entry| !entry.reused && entry.is_known_to(account))?;
        Some(Arc::clone(&entry.name))
    }

    /// The number of a name that VMs of this account use already, for another use, with its generation.
    pub(super) fn touch(
        &mut self,
        name: &str,
        account: Option<AccountId>,
        now: Instant,
    ) -> Option<(u32, u32)> {
        let number = self.find(name)?;
        let entry = self.entries.get_mut(number as usize)?;
        entry.user_mut(account).filter(|user| user.uses)?.last_use = now;
        Some((number, entry.generation))
    }

    /// Notes that a VM of an account that uses a number still does.
    pub(super) fn keep(&mut self, number: u32, account: Option<AccountId>, now: Instant) {
        let Some(entry) = self.entries.get_mut(number as usize) else { return };
        // The account of a VM may have become known after a look-up.
        let is_user = |user: &&mut User| user.uses && (user.account == account || user.account.is_none());
        entry.users.iter_mut().filter(is_user).for_each(|user| user.last_use = now);
    }

    /// Whether VMs of a further account may use a name.
    pub(super) fn check_limits(
        &self,
        name: &str,
        account: Option<AccountId>,
        chosen: ChosenBy,
    ) -> Result<(), Error> {
        let of_account = account.and_then(|account| self.of_accounts.get(&account)).copied().unwrap_or(0);
        match (of_account, chosen) {
            (MAX_NAMES_OF_ACCOUNT.., _) => return Err(Error::AccountFull),
            (MAX_UNLISTED_NAMES_OF_ACCOUNT.., ChosenBy::Guest) => return Err(Error::AccountFullForUnlisted),
            _ => {}
        }
        let entry = self.find(name).and_then(|number| self.entry(number));
        match (self.used(), chosen) {
            _ if entry.is_some_and(Entry::is_used) => Ok(()),
            (MAX_EGRESS_NAMES.., _) => Err(Error::Full),
            // Names that policies list count too: who has chosen a name is not kept.
            (MAX_UNLISTED_NAMES.., ChosenBy::Guest) => Err(Error::FullForUnlisted),
            _ => Ok(()),
        }
    }

    /// The number for a name, and its entry with a further user: the number of the name, else a new one, else one that no VM uses. The
    /// limits must have been checked.
    pub(super) fn entry_for(&self, name: &str, account: Option<AccountId>, now: Instant) -> (u32, Entry) {
        let found = self.find(name).and_then(|number| Some((number, self.entry(number)?.clone())));
        let (number, mut entry) = found.unwrap_or_else(|| {
            let (number, generation) = self.next_number();
            let (users, reused) = (Vec::new(), generation > 0);
            (number, Entry { name: name.into(), users, last_use: now, reused, generation })
        });
        entry.add_user(account, now);
        (number, entry)
    }

    /// The next number, and its generation.
    fn next_number(&self) -> (u32, u32) {
        let unused = self.unused.first().filter(|_| self.entries.len() == MAX_EGRESS_NAMES);
        let found = unused.and_then(|(_, number)| Some((*number, self.entry(*number)?.generation + 1)));
        found.unwrap_or((self.entries.len() as u32, 0))
    }

    /// Gives a number this entry, which is one of [`Self::entry_for`] or [`Self::expired`].
    pub(super) fn put(&mut self, number: u32, entry: Entry) {
        self.withdraw(number);
        for account in entry.accounts() {
            *self.of_accounts.entry(account).or_default() += 1;
        }
        if !entry.is_used() {
            self.unused.insert((entry.last_use, number));
        }
        self.numbers.insert(Arc::clone(&entry.name), number);
        match self.entries.get_mut(number as usize) {
            Some(before) => *before = entry,
            None => self.entries.push(entry),
        }
    }

    /// Removes what the table knows of a number but for its entry, which is replaced next.
    fn withdraw(&mut self, number: u32) {
        let Some(entry) = self.entries.get(number as usize) else { return };
        self.unused.remove(&(entry.last_use, number));
        if self.find(&entry.name) == Some(number) {
            self.numbers.remove(&entry.name);
        }
        for account in entry.accounts() {
            if let hash_map::Entry::Occupied(mut count) = self.of_accounts.entry(account) {
                *count.get_mut() -= 1;
                if *count.get() == 0 {
                    count.remove();
                }
            }
        }
    }

    /// Some of the entries that an account uses and has not used for [`KEPT_TIME`], as they are without that use; and whether these are
    /// all.
    pub(super) fn expired(&self, now: Instant) -> (Vec<(u32, Entry)>, bool) {
        let entries = (0..).zip(&self.entries);
        let expired = entries.filter_map(|(number, entry)| Some((number, entry.expired(now)?)));
        let found: Vec<_> = expired.take(MAX_EXPIRED).collect();
        let are_all = found.len() < MAX_EXPIRED;
        (found, are_all)
    }

    fn entry(&self, number: u32) -> Option<&Entry> {
        self.entries.get(number as usize)
    }
}
