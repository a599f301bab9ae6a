//! The initial stack of a program: arguments, environment and auxiliary vector (System V ABI for x86-64, 3.4.1).
//!
//! A prepared shell is started with more and longer environment variables than it needs. Those of a command are
//! written into this space, at the addresses that its libraries stored while they were linked.

use std::{collections::BTreeMap, ffi::OsString, io, iter};

/// The arguments of the shell before the command.
pub(crate) const ARGUMENTS: [&str; 3] = ["/bin/sh", "-c", "--"];
/// The command until the real one is known. It appears in process listings and does nothing.
pub(crate) const PLACEHOLDER: &str = ": a shell that waits for its command";
/// The number of pointers reserved for variables and for the auxiliary vector after them.
const POINTER_SLOTS: usize = 512;
/// The space for all strings, in bytes. The kernel accepts no variable longer than 128 KiB.
const STRING_BYTES: usize = 64 * 1024;
/// Prefixes of variables that affect the dynamic loader, which has already run.
const LOADER_PREFIXES: [&str; 3] = ["LD_", "GLIBC_TUNABLES", "MALLOC_"];
const WORD: usize = size_of::<u64>();

/// Variables that reserve the space.
pub(crate) fn placeholder_environment() -> impl Iterator<Item = (OsString, OsString)> {
    let places = (1..POINTER_SLOTS).map(|number| (format!("_{number}").into(), OsString::new()));
    places.chain(iter::once(("_".into(), "_".repeat(STRING_BYTES).into())))
}

/// The addresses at which a prepared shell finds its arguments and environment.
#[derive(Debug, Clone)]
pub(crate) struct Stack {
    /// The address of `argc`, which everything else follows.
    top: u64,
    /// The address of the string of the first argument.
    texts: u64,
    /// The end of the last string.
    texts_end: u64,
    /// The auxiliary vector with its terminator.
    auxv: Vec<u8>,
}

/// The data to write for one command.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StackImage {
    /// The address of `pointers`.
    pub(crate) pointers_at: u64,
    pub(crate) pointers: Vec<u8>,
    /// The address of `texts`.
    pub(crate) texts_at: u64,
    pub(crate) texts: Vec<u8>,
    /// The address where the argument strings end and the environment strings begin.
    pub(crate) environment: u64,
    /// The address where the environment strings end.
    pub(crate) end: u64,
}

impl Stack {
    pub(crate) fn new(top: u64, texts: u64, texts_end: u64, notes: Vec<u8>) -> Self {
        Self { top, texts, texts_end, auxv: notes }
    }

    /// Checks that the stack of the process has the expected content.
    pub(crate) fn check(&self, read: impl Fn(u64, &mut [u8]) -> io::Result<()>) -> io::Result<()> {
        let (mut head, mut texts) = ([0; 2 * WORD], argument_strings());
        read(self.top, &mut head)?;
        read(self.texts, &mut texts)?;
        let count = ARGUMENTS.len() as u64 + 1;
        let wanted: Vec<u8> = [count, self.texts].iter().flat_map(|word| word.to_le_bytes()).collect();
        if head.as_slice() == wanted && texts == argument_strings() {
            return Ok(());
        }
        Err(io::Error::other("the shell has another stack than it was given"))
    }

    /// The data to write for a command. `None` if it does not fit, or if a variable would have affected the dynamic
    /// loader.
    pub(crate) fn image(&self, command: &str, environment: &BTreeMap<&str, &str>) -> Option<StackImage> {
        let affects_loader = |name: &&str| LOADER_PREFIXES.iter().any(|begin| name.starts_with(begin));
        if environment.keys().any(affects_loader) {
            return None;
        }
        // The original auxiliary vector stays in place as well, and its copy must not overwrite it.
        if environment.len() + self.auxv.len().div_ceil(WORD) > POINTER_SLOTS {
            return None;
        }
        let texts_at = self.texts + argument_strings().len() as u64;
        let mut texts = terminated(&[command])?;
        let argument = texts_at;
        let environment_at = texts_at + texts.len() as u64;
        let mut pointers = [argument, 0].map(u64::to_le_bytes).concat();
        for (name, value) in environment {
            pointers.extend((texts_at + texts.len() as u64).to_le_bytes());
            texts.extend(terminated(&[name, "=", value])?);
        }
        pointers.extend(0u64.to_le_bytes());
        pointers.extend(&self.auxv);
        let end = texts_at + texts.len() as u64;
        let pointers_at = self.top + (WORD * (1 + ARGUMENTS.len())) as u64;
        let fits = end <= self.texts_end;
        fits.then_some(StackImage {
            pointers_at,
            pointers,
            texts_at,
            texts,
            environment: environment_at,
            end,
        })
    }
}

fn argument_strings() -> Vec<u8> {
    ARGUMENTS.iter().flat_map(|argument| argument.bytes().chain([0])).collect()
}

/// Joins the parts and appends a NUL. `None` if a part contains a NUL.
fn terminated(parts: &[&str]) -> Option<Vec<u8>> {
    let mut text = parts.concat().into_bytes();
    if text.contains(&0) {
        return None;
    }
    text.push(0);
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOP: u64 = 0x7000_0000;
    const TEXTS: u64 = TOP + 0x2000;

    fn stack() -> Stack {
        Stack::new(TOP, TEXTS, TEXTS + STRING_BYTES as u64, vec![0xA5; 42 * WORD])
    }

    fn words(bytes: &[u8]) -> Vec<u64> {
        bytes.chunks_exact(WORD).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
    }

    #[test]
    fn pointers_lead_to_texts_that_follow_each_other() {
        let env = BTreeMap::from([("A", "1\n2"), ("B", "")]);
        let image = stack().image("echo", &env).unwrap();
        assert_eq!(image.texts, b"echo\0A=1\n2\0B=\0");
        assert_eq!((image.pointers_at, image.texts_at), (TOP + 32, TEXTS + 14));
        let at = image.texts_at;
        let pointers = words(&image.pointers);
        assert_eq!(pointers[..5], [at, 0, at + 5, at + 11, 0]);
        assert_eq!(image.pointers[5 * WORD..], stack().auxv);
        assert_eq!((image.environment, image.end), (at + 5, at + 14));
    }

    #[test]
    fn what_does_not_fit_is_not_written() {
        let none = BTreeMap::new();
        assert!(stack().image(&"x".repeat(STRING_BYTES - 15), &none).is_some());
        assert_eq!(stack().image(&"x".repeat(STRING_BYTES - 14), &none), None);
        let names: Vec<String> = (0..POINTER_SLOTS).map(|number| format!("N{number:03}")).collect();
        let env = |count: usize| names[..count].iter().map(|name| (name.as_str(), "")).collect();
        assert!(stack().image("true", &env(POINTER_SLOTS - 42)).is_some());
        assert_eq!(stack().image("true", &env(POINTER_SLOTS - 41)), None);
    }

    #[test]
    fn what_the_loader_would_have_read_is_refused() {
        for name in ["LD_PRELOAD", "LD_X", "GLIBC_TUNABLES", "MALLOC_PERTURB_"] {
            assert_eq!(stack().image("true", &BTreeMap::from([(name, "1")])), None, "{name}");
        }
        assert!(stack().image("true", &BTreeMap::from([("OLD_LD_", "1")])).is_some());
        assert_eq!(stack().image("a\0b", &BTreeMap::new()), None);
        assert_eq!(stack().image("true", &BTreeMap::from([("A", "\0")])), None);
    }
}
