//! The file of the names that VMs use: the keeper opens it, the egress process reads and writes it, and `skep doctor` reads it.
//!
//! The position of a record is the number of its name. A record is an object of JSON, filled up with spaces to a line of a fixed
//! length, so that a single write gives a number to another name.

use std::{
    fs::File,
    io::{self, BufReader, Read, Seek},
    os::unix::fs::FileExt,
};

use serde::{Deserialize, Serialize};
use skep_api::{AccountId, egress::is_name};

/// Limit of the names that VMs use.
pub const MAX_EGRESS_NAMES: usize = 65_536;
/// Of these, those that no policy lists: of wildcards and of `all`. The guest chooses them. The rest is for names that a caller of the
/// API has listed in a policy.
pub const MAX_UNLISTED_NAMES: usize = MAX_EGRESS_NAMES / 4 * 3;
/// Limit of the names that VMs of an account use.
pub const MAX_NAMES_OF_ACCOUNT: usize = 8192;
/// Of these, those that no policy lists.
pub const MAX_UNLISTED_NAMES_OF_ACCOUNT: usize = MAX_NAMES_OF_ACCOUNT / 4 * 3;
/// Limit of the users in a record. One of them stands for all accounts if there are more.
pub const MAX_NAME_USERS: usize = 12;
/// The length of a record, in bytes. One with the longest name and the most users is shorter.
const RECORD_BYTES: usize = 1024;

/// A name that has a number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameRecord {
    /// In lower case and without a final dot.
    pub name: String,
    /// Whose VMs have looked the name up. If none of them uses it, its number can be given to another name.
    pub users: Vec<NameUser>,
    /// Whether another name had the number before.
    pub reused: bool,
}

/// Whose VMs have looked a name up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NameUser {
    /// `None` stands for all accounts: there are more than a record has, or some that are not known.
    pub account: Option<AccountId>,
    /// Whether a VM uses the name, or did so lately.
    pub uses: bool,
}

/// The file of names.
#[derive(Debug)]
pub struct NamesFile(File);

impl NamesFile {
    /// `file` is open for reading, and for writing if a method that writes is called.
    pub fn new(file: File) -> Self {
        Self(file)
    }

    /// Reads the complete records, in the order of their numbers. `None` stands for one that is malformed.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self) -> io::Result<Vec<Option<NameRecord>>> {
        let complete = self.0.metadata()?.len() / RECORD_BYTES as u64;
        let count = complete.min(MAX_EGRESS_NAMES as u64) as usize;
        (&self.0).rewind()?;
        let mut reader = BufReader::with_capacity(64 * RECORD_BYTES, &self.0);
        let mut line = [0; RECORD_BYTES];
        let mut records = Vec::with_capacity(count);
        for _ in 0..count {
            reader.read_exact(&mut line)?;
            records.push(serde_json::from_slice(&line).ok());
        }
        Ok(records)
    }

    /// Writes the record of a number. The page cache takes it without waiting for the disk.
    ///
    /// # Errors
    /// The file cannot be written. A part of the record may be.
    pub fn write(&self, number: usize, record: &NameRecord) -> io::Result<()> {
        let mut line = serde_json::to_vec(record)?;
        if line.len() >= RECORD_BYTES {
            return Err(io::Error::other("the record of the name is too long"));
        }
        line.resize(RECORD_BYTES - 1, b' ');
        line.push(b'\n');
        self.0.write_all_at(&line, (number * RECORD_BYTES) as u64)
    }

    /// Removes all but the first records, and an incomplete one.
    ///
    /// # Errors
    /// The file cannot be changed.
    pub fn truncate(&self, count: usize) -> io::Result<()> {
        self.0.set_len((count * RECORD_BYTES) as u64)
    }

    /// Replaces all records by the names of a file of earlier releases, which has a line for each name, and waits for the disk. A line
    /// that is no name keeps its number.
    ///
    /// # Errors
    /// A file cannot be read or written.
    pub fn import(&self, mut lines: &File) -> io::Result<()> {
        let mut bytes = Vec::new();
        lines.read_to_end(&mut bytes)?;
        self.truncate(0)?;
        let complete = bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
        for (number, line) in complete.take(MAX_EGRESS_NAMES).enumerate() {
            self.write(number, &imported(line.trim_ascii_end()))?;
        }
        self.0.sync_all()
    }

    /// Lets another process lock the file.
    ///
    /// # Errors
    /// The system call failed.
    pub fn unlock(&self) -> io::Result<()> {
        self.0.unlock()
    }
}

/// The record of a name whose accounts are not known.
fn imported(name: &[u8]) -> NameRecord {
    let name = str::from_utf8(name).ok().filter(|name| is_name(name));
    let users = name.map(|_| NameUser { account: None, uses: true }).into_iter().collect();
    NameRecord { name: name.unwrap_or_default().to_owned(), users, reused: name.is_none() }
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write};

    use super::*;

    fn record(name: &str, users: usize) -> NameRecord {
        let user = |_| NameUser { account: Some(AccountId::generate()), uses: false };
        NameRecord { name: name.to_owned(), users: (0..users).map(user).collect(), reused: false }
    }

    #[test]
    fn records_are_read_as_they_were_written_and_a_malformed_one_moves_no_other() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let names = NamesFile::new(file.reopen().unwrap());
        let long = [&vec!["n".repeat(63); 3].join("."), ".", &"n".repeat(61)].concat();
        assert_eq!(long.len(), 253, "the longest name");
        let written = [record(&long, MAX_NAME_USERS), record("b.example", 0), record("c.example", 1)];
        for (number, record) in written.iter().enumerate() {
            names.write(number, record).unwrap();
        }
        assert_eq!(names.read().unwrap(), written.clone().map(Some));
        names.write(1, &record("another.example", 2)).unwrap();
        file.as_file().write_all_at(b"}", RECORD_BYTES as u64).unwrap();
        assert_eq!(names.read().unwrap(), [Some(written[0].clone()), None, Some(written[2].clone())]);
        // Each record is a line, so that usual programs can read the file.
        assert_eq!(fs::read_to_string(file.path()).unwrap().lines().count(), 3);
    }

    #[test]
    fn an_incomplete_record_is_not_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let names = NamesFile::new(file.reopen().unwrap());
        let written = record("a.example", 1);
        names.write(0, &written).unwrap();
        file.as_file().write_all_at(b"{\"name\": \"b.exam", RECORD_BYTES as u64).unwrap();
        assert_eq!(names.read().unwrap(), [Some(written.clone())]);
        names.truncate(1).unwrap();
        assert_eq!(file.as_file().metadata().unwrap().len(), RECORD_BYTES as u64);
        assert_eq!(names.read().unwrap(), [Some(written)]);
    }

    #[test]
    fn a_file_of_earlier_releases_is_imported() {
        let mut lines = tempfile::tempfile().unwrap();
        lines.write_all(b"a.example\n\xff\xfe\nb.example\nhalf.exam").unwrap();
        lines.rewind().unwrap();
        let names = NamesFile::new(tempfile::tempfile().unwrap());
        names.write(5, &record("of an import that was interrupted", 0)).unwrap();
        names.import(&lines).unwrap();
        let named = |name: &str| {
            let users = vec![NameUser { account: None, uses: true }];
            NameRecord { name: name.to_owned(), users, reused: false }
        };
        let no_name = NameRecord { name: String::new(), users: Vec::new(), reused: true };
        let expected = [named("a.example"), no_name, named("b.example")];
        assert_eq!(names.read().unwrap(), expected.map(Some));
    }
}
