//! The names of an installation and their placeholder addresses.
//!
//! Each name gets a number by its first use, which a file keeps. The placeholder address with this number, in a VM's cache, means
//! the same name after a restart, and in every VM of an account that has looked it up. Whether a VM may use a name is decided by its
//! policy. Once all numbers have been given, one that no VM has used for a day is given to another name. It means that name only to
//! VMs that have looked it up since the start of the process, because the memory of others may have it for the name from before.

mod release;
mod table;
#[cfg(test)]
mod tests;

use std::{
    fs::File,
    io,
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use skep_api::AccountId;
use skep_keeper_protocol::{EgressRefusal, MAX_NAMES_OF_ACCOUNT, MAX_UNLISTED_NAMES_OF_ACCOUNT, NamesFile};
use tokio::time::Instant;

pub(crate) use self::release::release_unused;
use self::table::Table;

/// 198.18.0.0/15, which is for tests of devices (RFC 2544) and not routed.
const FIRST: u32 = Ipv4Addr::new(198, 18, 0, 0).to_bits();
/// Number of addresses of the network.
const NETWORK_SIZE: u32 = 1 << 17;

/// Whether a policy or a guest has chosen a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChosenBy {
    /// The policy lists it.
    Policy,
    /// The policy allows it by a wildcard or allows all.
    Guest,
}

/// The names, in memory and in the file.
#[derive(Debug)]
pub struct Names(Mutex<State>);

#[derive(Debug)]
struct State {
    /// `None` once no more names can be added: the file is another process's, or has an incomplete record.
    file: Option<NamesFile>,
    table: Table,
}

/// Why a name gets no address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(
        "the account's VMs use {MAX_UNLISTED_NAMES_OF_ACCOUNT} names already; list the name in the policy of the VM, or end VMs: names \
         are free a day after the last running VM has used them"
    )]
    AccountFullForUnlisted,
    #[error(
        "the account's VMs use {MAX_NAMES_OF_ACCOUNT} names already; end VMs: names are free a day after the last running VM has used them"
    )]
    AccountFull,
    #[error("the VM uses too many names")]
    VmFull,
    #[error("the limit of names on this server is reached; list the name in the policy of the VM")]
    FullForUnlisted,
    #[error(
        "the limit of names on this server is reached; names are free a day after the last running VM has used them"
    )]
    Full,
    #[error("this egress process adds no names any more; try again")]
    Closed,
    #[error("the file of names cannot be written: {0}")]
    Io(#[from] io::Error),
}

impl Error {
    pub(crate) fn refusal(&self) -> EgressRefusal {
        match self {
            Self::VmFull
            | Self::AccountFullForUnlisted
            | Self::AccountFull
            | Self::FullForUnlisted
            | Self::Full => EgressRefusal::Limit,
            Self::Closed | Self::Io(_) => EgressRefusal::Internal,
        }
    }
}

impl Names {
    /// Reads the names of a file that is open for reading and writing. An incomplete record at its end is removed.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn open(file: File) -> io::Result<Self> {
        let file = NamesFile::new(file);
        let records = file.read()?;
        file.truncate(records.len())?;
        let table = Table::load(records, Instant::now());
        Ok(Self(Mutex::new(State { file: Some(file), table })))
    }

    /// The placeholder address of a name, which is normalized. `None` if it has none yet.
    pub(crate) fn find(&self, name: &str) -> Option<Ipv4Addr> {
        self.state().table.find(name).map(address)
    }

    /// The placeholder address of a name, which is normalized, for a VM of this account, with its generation. A change is written to
    /// the file first.
    pub(crate) fn address(
        &self,
        name: &str,
        account: Option<AccountId>,
        chosen: ChosenBy,
    ) -> Result<(Ipv4Addr, u32), Error> {
        let mut state = self.state();
        let State { file, table } = &mut *state;
        let now = Instant::now();
        if let Some((number, generation)) = table.touch(name, account, now) {
            return Ok((address(number), generation));
        }
        table.check_limits(name, account, chosen)?;
        let (number, entry) = table.entry_for(name, account, now);
        let generation = entry.generation();
        write(file, table, number, &entry)?;
        table.put(number, entry);
        Ok((address(number), generation))
    }

    /// The name of a placeholder address that a VM of this account has not looked up itself. `None` if no VM of the account has, or
    /// if another name had the address: the VM may mean that one.
    pub(crate) fn known_name(&self, address: Ipv4Addr, account: Option<AccountId>) -> Option<Arc<str>> {
        self.state().table.known_name(number(address)?, account)
    }

    /// The name of a placeholder address, if it is still that of this generation.
    pub(crate) fn name(&self, address: Ipv4Addr, generation: u32) -> Option<Arc<str>> {
        self.state().table.name(number(address)?, generation)
    }

    /// Notes that a living VM of this account uses these addresses.
    fn keep<'a>(&self, account: Option<AccountId>, addresses: impl Iterator<Item = &'a Ipv4Addr>) {
        let (now, mut state) = (Instant::now(), self.state());
        let numbers = addresses.filter_map(|address| number(*address));
        numbers.for_each(|number| state.table.keep(number, account, now));
    }

    /// Lets some numbers that no VM has used for a day be given to other names. Returns whether more are left.
    fn release_some(&self) -> Result<bool, Error> {
        let mut state = self.state();
        let State { file, table } = &mut *state;
        let (expired, are_all) = table.expired(Instant::now());
        for (number, entry) in expired {
            write(file, table, number, &entry)?;
            table.put(number, entry);
        }
        Ok(!are_all)
    }

    /// How many names VMs use.
    pub(crate) fn used(&self) -> usize {
        self.state().table.used()
    }

    /// Lets another process use the file. No more names are added here.
    pub(crate) fn close_file(&self) -> io::Result<()> {
        self.state().file.take().map_or(Ok(()), |file| file.unlock())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes the entry of a number to the file. What was written of it in vain is replaced by the entry from before.
fn write(
    file: &mut Option<NamesFile>,
    table: &Table,
    number: u32,
    entry: &table::Entry,
) -> Result<(), Error> {
    let open = file.as_ref().ok_or(Error::Closed)?;
    let Err(error) = open.write(number as usize, &entry.record()) else { return Ok(()) };
    let undone = match table.record(number) {
        Some(before) => open.write(number as usize, &before),
        None => open.truncate(table.len()),
    };
    if undone.is_err() {
        // The next process does not use the record.
        *file = None;
    }
    Err(error.into())
}

/// Whether this is a placeholder address, with or without a name.
pub(crate) fn is_placeholder(address: Ipv4Addr) -> bool {
    address.to_bits().checked_sub(FIRST).is_some_and(|offset| offset < NETWORK_SIZE)
}

fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(FIRST + 1 + number)
}

fn number(address: Ipv4Addr) -> Option<u32> {
    address.to_bits().checked_sub(FIRST + 1)
}
