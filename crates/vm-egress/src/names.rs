//! The names of an installation and their placeholder addresses.
//!
//! Each name gets a number by its first use, which a file keeps: a line for each name. The placeholder address with this
//! number, in a VM's cache, means the same name after a restart, and in every VM. Whether a VM may use a name is decided
//! by its policy.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufRead, BufReader, Seek, Write},
    net::Ipv4Addr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use skep_keeper_protocol::EgressRefusal;

/// 198.18.0.0/15, which is for tests of devices (RFC 2544) and not routed.
const FIRST: u32 = Ipv4Addr::new(198, 18, 0, 0).to_bits();
/// Number of addresses of the network.
const NETWORK_SIZE: u32 = 1 << 17;
/// Limit of names of an installation.
const MAX_NAMES: usize = 65_536;
/// Of these, names that no policy lists: of wildcards and of `all`. The guest chooses them, so it could take all numbers
/// for ever. The rest is for names that a caller of the API has listed in a policy.
const MAX_UNLISTED: usize = MAX_NAMES / 4 * 3;

/// Whether a policy or a guest has chosen a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChosenBy {
    /// The policy lists it.
    Policy,
    /// The policy allows it by a wildcard or allows all.
    Guest,
}

/// The table of names.
#[derive(Debug)]
pub struct Names(Mutex<State>);

#[derive(Debug)]
struct State {
    /// `None` once no more names can be added: the file is another process's, or has an incomplete line.
    file: Option<File>,
    /// The length of the file, in bytes.
    length: u64,
    names: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, u32>,
}

/// Why a name gets no address.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the limit of names on this server is reached; list the name in the policy of the VM")]
    FullForUnlisted,
    #[error("the limit of {MAX_NAMES} names on this server is reached")]
    Full,
    #[error("this egress process adds no names any more; try again")]
    Closed,
    #[error("the file of names cannot be written: {0}")]
    Io(#[from] io::Error),
}

impl Error {
    pub(crate) fn refusal(&self) -> EgressRefusal {
        match self {
            Self::FullForUnlisted | Self::Full => EgressRefusal::Limit,
            Self::Closed | Self::Io(_) => EgressRefusal::Internal,
        }
    }
}

impl Names {
    /// Reads the names of a file that is open for reading and writing. An incomplete last line is removed.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn open(mut file: File) -> io::Result<Self> {
        // All processes that have the file write at its end.
        fcntl_setfl(&file, fcntl_getfl(&file)? | OFlags::APPEND)?;
        let (mut names, mut numbers, mut length) = (Vec::new(), HashMap::new(), 0);
        file.rewind()?;
        let mut lines = BufReader::new(&file);
        let mut line = String::new();
        while names.len() < MAX_NAMES && lines.read_line(&mut line)? > 0 && line.ends_with('\n') {
            length += line.len() as u64;
            let name: Arc<str> = line.trim_end().into();
            numbers.insert(Arc::clone(&name), names.len() as u32);
            names.push(name);
            line.clear();
        }
        file.set_len(length)?;
        Ok(Self(Mutex::new(State { file: Some(file), length, names, numbers })))
    }

    /// The placeholder address of a name, which is normalized. `None` if it has none yet.
    pub(crate) fn find(&self, name: &str) -> Option<Ipv4Addr> {
        self.state().numbers.get(name).map(|number| address(*number))
    }

    /// The placeholder address of a name, which is normalized. A new name is written to the file first: the page cache
    /// takes the line without waiting for the disk.
    pub(crate) fn address(&self, name: &str, chosen: ChosenBy) -> Result<Ipv4Addr, Error> {
        let mut state = self.state();
        if let Some(number) = state.numbers.get(name) {
            return Ok(address(*number));
        }
        match (state.names.len(), chosen) {
            (MAX_NAMES.., _) => return Err(Error::Full),
            // Listed names count too: the order of the first uses is all that the file has.
            (MAX_UNLISTED.., ChosenBy::Guest) => return Err(Error::FullForUnlisted),
            _ => {}
        }
        state.append(&format!("{name}\n"))?;
        let (number, name) = (state.names.len() as u32, Arc::<str>::from(name));
        state.numbers.insert(Arc::clone(&name), number);
        state.names.push(name);
        Ok(address(number))
    }

    /// The name of a placeholder address. `None` if no name has it yet.
    pub(crate) fn name(&self, address: Ipv4Addr) -> Option<Arc<str>> {
        let number = address.to_bits().checked_sub(FIRST + 1)?;
        self.state().names.get(number as usize).cloned()
    }

    /// Lets another process use the file. No more names are added here.
    pub(crate) fn release(&self) -> io::Result<()> {
        self.state().file.take().map_or(Ok(()), |file| file.unlock())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Writes a line to the file. A part of a line that could be written is removed again.
    fn append(&mut self, line: &str) -> Result<(), Error> {
        let file = self.file.as_mut().ok_or(Error::Closed)?;
        if let Err(error) = file.write_all(line.as_bytes()) {
            if file.set_len(self.length).is_err() {
                // The next process removes it.
                self.file = None;
            }
            return Err(error.into());
        }
        self.length += line.len() as u64;
        Ok(())
    }
}

/// Whether this is a placeholder address, with or without a name.
pub(crate) fn is_placeholder(address: Ipv4Addr) -> bool {
    address.to_bits().checked_sub(FIRST).is_some_and(|offset| offset < NETWORK_SIZE)
}

fn address(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(FIRST + 1 + number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_address() {
        let file = tempfile::tempfile().unwrap();
        let names = Names::open(file.try_clone().unwrap()).unwrap();
        let [one, two] =
            ["one.example", "two.example"].map(|name| names.address(name, ChosenBy::Policy).unwrap());
        assert_eq!([one, two], [Ipv4Addr::new(198, 18, 0, 1), Ipv4Addr::new(198, 18, 0, 2)]);
        assert_eq!(names.address("one.example", ChosenBy::Guest).unwrap(), one);
        drop(names);
        (&file).write_all(b"half.exam").unwrap();

        let names = Names::open(file).unwrap();
        assert_eq!(names.name(two).as_deref(), Some("two.example"));
        assert_eq!(names.address("three.example", ChosenBy::Guest).unwrap(), Ipv4Addr::new(198, 18, 0, 3));
        assert_eq!(names.address("two.example", ChosenBy::Guest).unwrap(), two);
        for other in [[198, 18, 0, 0], [198, 18, 0, 9], [198, 17, 255, 255], [255, 255, 255, 255]] {
            assert_eq!(names.name(other.into()), None);
        }
    }

    #[test]
    fn a_released_file_is_not_written_any_more() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || File::options().read(true).write(true).open(file.path()).unwrap();
        let replaced = Names::open(open()).unwrap();
        let one = replaced.address("one.example", ChosenBy::Guest).unwrap();
        let next = Names::open(open()).unwrap();
        // The control: without `release` both write, each at the end of what the other one wrote.
        next.address("two.example", ChosenBy::Guest).unwrap();
        replaced.address("three.example", ChosenBy::Guest).unwrap();
        replaced.release().unwrap();
        let refused = replaced.address("four.example", ChosenBy::Guest);
        assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
        assert_eq!(replaced.address("one.example", ChosenBy::Guest).unwrap(), one);
        next.address("five.example", ChosenBy::Guest).unwrap();
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert_eq!(text, "one.example\ntwo.example\nthree.example\nfive.example\n");
    }

    /// Runs itself in a process whose files may have 512 bytes.
    #[test]
    fn a_part_of_a_line_is_removed_again() {
        const IN_CHILD: &str = "SKEP_TEST_SMALL_FILES";
        if std::env::var_os(IN_CHILD).is_none() {
            let test = "names::tests::a_part_of_a_line_is_removed_again";
            let limited = "trap '' XFSZ; ulimit -f 1; exec \"$0\" --exact \"$1\"";
            let mut child = std::process::Command::new("sh");
            child.args(["-c", limited]).arg(std::env::current_exe().unwrap()).arg(test).env(IN_CHILD, "");
            let output = child.output().unwrap();
            assert!(output.status.success(), "{output:?}");
            return;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        let names = Names::open(file.reopen().unwrap()).unwrap();
        let long = |number: usize| format!("{}{number}.example", "n".repeat(91));
        let complete =
            (0..).take_while(|number| names.address(&long(*number), ChosenBy::Policy).is_ok()).count();
        assert_eq!(complete, 5);
        assert_eq!(file.as_file().metadata().unwrap().len(), 5 * 101, "no part of a line is left");
        let short = names.address("a.ex", ChosenBy::Policy).unwrap();
        assert_eq!(short, address(5));
        let names = Names::open(file.reopen().unwrap()).unwrap();
        assert_eq!(names.name(short).as_deref(), Some("a.ex"));
    }

    #[test]
    fn names_that_guests_choose_leave_numbers_for_those_that_policies_list() {
        let names = Names::open(tempfile::tempfile().unwrap()).unwrap();
        let taken = (0..MAX_NAMES)
            .take_while(|number| names.address(&format!("n{number}.example"), ChosenBy::Guest).is_ok())
            .count();
        assert_eq!(taken, MAX_UNLISTED);
        let refused = names.address("api.example", ChosenBy::Guest);
        assert!(matches!(refused, Err(Error::FullForUnlisted)), "{refused:?}");
        let listed = names.address("api.example", ChosenBy::Policy).unwrap();
        // A name that has a number keeps it, whoever asks.
        assert_eq!(names.address("api.example", ChosenBy::Guest).unwrap(), listed);
        assert!(names.address("n7.example", ChosenBy::Guest).is_ok());
    }

    #[test]
    fn the_number_of_names_is_limited() {
        let lines: String = (0..MAX_NAMES).map(|number| format!("n{number}\n")).collect();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(lines.as_bytes()).unwrap();
        let names = Names::open(file).unwrap();
        assert!(matches!(names.address("another.example", ChosenBy::Policy), Err(Error::Full)));
        let last = names.address(&format!("n{}", MAX_NAMES - 1), ChosenBy::Guest).unwrap();
        assert!(is_placeholder(last) && !is_placeholder([198, 20, 0, 0].into()), "{last}");
    }
}
