//! Checks that the roots of accounts are folders that an account may have.

use std::path::PathBuf;

use skep_accounts::DEFAULT_ACCOUNT;
use skep_server::RootRules;
use skep_store::{AccountRoot, sqlite::account_roots};

use super::Finding;
use crate::{output, privileges::as_owner_of, settings::Settings};

const CHECK: &str = "roots";

pub(super) fn findings(settings: &Settings) -> Vec<Finding> {
    let rules = match RootRules::new(&settings.data_dir) {
        Ok(rules) => rules,
        Err(error) => {
            let detail = format!("{} cannot be read: {error}", settings.data_dir.display());
            return vec![Finding::warning(CHECK, detail, "run `sudo skep doctor`")];
        }
    };
    let own = settings.roots().into_iter().map(|path| of(DEFAULT_ACCOUNT, path));
    let all: Vec<AccountRoot> = match stored(settings) {
        // The roots of `default` come from the settings; the store has those of the last start.
        Ok(stored) => own.chain(stored.into_iter().filter(|root| root.account != DEFAULT_ACCOUNT)).collect(),
        // The finding of the store check reports the error.
        Err(_) => own.collect(),
    };
    let found: Vec<Finding> = all.iter().filter_map(|root| wrong(&rules, root, &all)).collect();
    if found.is_empty() {
        return vec![Finding::ok(
            CHECK,
            format!("{} in all, apart from each other and from the data", all.len()),
        )];
    }
    found
}

fn of(account: &str, path: PathBuf) -> AccountRoot {
    AccountRoot { account: account.to_owned(), path }
}

fn stored(settings: &Settings) -> anyhow::Result<Vec<AccountRoot>> {
    let (folder, store) = (settings.server_dir(), settings.store());
    if !store.exists() {
        return Ok(Vec::new());
    }
    as_owner_of(&folder, || Ok(account_roots(&store)?))
}

fn wrong(rules: &RootRules, root: &AccountRoot, all: &[AccountRoot]) -> Option<Finding> {
    let others: Vec<AccountRoot> =
        all.iter().filter(|other| other.account != root.account).cloned().collect();
    let refused = rules.check_stored(&root.path, &others).err()?;
    let way_out = if root.account == DEFAULT_ACCOUNT {
        "start `skep serve` with another --root".to_owned()
    } else {
        format!("give it another: `skep account set {} --root DIR`", root.account)
    };
    let detail = output::one_line(&anyhow::Error::from(refused));
    Some(Finding::warning(CHECK, format!("account `{}`: {detail}", root.account), way_out))
}
