//! Checks how many of the names for connections of VMs are in use.

use std::{collections::HashMap, fs::File, io};

use skep_api::AccountId;
use skep_keeper::DataDir;
use skep_keeper_protocol::{
    MAX_EGRESS_NAMES, MAX_NAMES_OF_ACCOUNT, MAX_UNLISTED_NAMES, MAX_UNLISTED_NAMES_OF_ACCOUNT, NameRecord,
    NamesFile,
};

use super::Finding;
use crate::settings::Settings;

const CHECK: &str = "egress names";
/// The part of a limit, in percent, from which on VMs may soon be refused a name.
const NEARLY_FULL_PERCENT: usize = 90;
const WAY_OUT: &str = "a name is free a day after the last running VM has used it; narrow the egress policies of the account's VMs, \
                       or list the names that they need";

pub(super) fn finding(settings: &Settings) -> Finding {
    let read = || -> io::Result<Usage> {
        let path = DataDir::find(&settings.data_dir).map_err(io::Error::other)?.egress_names();
        Ok(Usage::of(&NamesFile::new(File::open(path)?).read()?))
    };
    if !settings.data_dir.is_dir() {
        return Finding::ok(CHECK, "none in use");
    }
    match read() {
        Ok(usage) => usage.finding(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Finding::ok(CHECK, "none in use"),
        Err(error) => {
            Finding::warning(CHECK, format!("their file cannot be read: {error}"), "run `sudo skep doctor`")
        }
    }
}

/// How many names are in use.
#[derive(Debug, PartialEq, Eq)]
struct Usage {
    all: usize,
    /// By the account that uses the most. `None` if no account is known.
    most: Option<(usize, AccountId)>,
}

impl Usage {
    fn of(records: &[Option<NameRecord>]) -> Self {
        let mut by_account: HashMap<AccountId, usize> = HashMap::new();
        let mut all = 0;
        for record in records.iter().flatten() {
            let users = || record.users.iter().filter(|user| user.uses);
            all += usize::from(users().next().is_some());
            for account in users().filter_map(|user| user.account) {
                *by_account.entry(account).or_default() += 1;
            }
        }
        Self { all, most: by_account.into_iter().map(|(account, count)| (count, account)).max() }
    }

    fn finding(&self) -> Finding {
        let mut detail = format!("{} of {MAX_EGRESS_NAMES} in use", self.all);
        if let Some((count, account)) = self.most {
            detail.push_str(&format!(", most by {account}: {count} of {MAX_NAMES_OF_ACCOUNT}"));
        }
        let is_nearly_full = |count, limit| count * 100 >= limit * NEARLY_FULL_PERCENT;
        let of_account = self.most.map_or(0, |(count, _)| count);
        // Guests are refused before policies that list a name are.
        if is_nearly_full(self.all, MAX_UNLISTED_NAMES)
            || is_nearly_full(of_account, MAX_UNLISTED_NAMES_OF_ACCOUNT)
        {
            return Finding::warning(CHECK, detail, WAY_OUT);
        }
        Finding::ok(CHECK, detail)
    }
}
