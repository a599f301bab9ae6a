//! The files of the HTTP service's certificate and private key, which may be readable by root only.
//!
//! The keeper reads them and passes their text on; only the server parses it.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

use skep_keeper_protocol::{MAX_PEM_BYTES, TlsPair};

use crate::Error;

/// The two files, with the content that was read last.
#[derive(Debug)]
pub struct TlsFiles {
    certificate: PathBuf,
    key: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    stamps: [Stamp; 2],
    current: TlsPair,
    /// The pair that the server currently uses. A restarted server begins with it, because it is known to be valid.
    serving: Option<TlsPair>,
    /// Whether the current read error has been logged.
    error_logged: bool,
}

/// Detects that a file was changed or replaced. Symbolic links are followed: renewal tools replace the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    changed: (i64, i64),
}

impl TlsFiles {
    /// Reads the files. Blocks.
    ///
    /// # Errors
    /// [`Error::TlsFile`], naming the file that cannot be read.
    pub fn open(certificate: PathBuf, key: PathBuf) -> Result<Self, Error> {
        let (stamps, [certificate_text, key_text]) = read_both(&certificate, &key)?;
        let current = TlsPair { edition: 1, certificate: certificate_text, key: key_text };
        let state = Mutex::new(State { stamps, current, serving: None, error_logged: false });
        Ok(Self { certificate, key, state })
    }

    /// The pair, if it is newer than the edition `seen`. `serving` is the edition that the server uses, 0 if none yet.
    /// Blocks. Logs files that cannot be read any more.
    pub(crate) fn newer_than(&self, seen: u64, serving: u64) -> Option<TlsPair> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if serving == state.current.edition {
            state.serving = Some(state.current.clone());
        }
        self.refresh(&mut state);
        let known_good = state.serving.as_ref().filter(|pair| pair.edition > seen);
        let newest = Some(&state.current).filter(|pair| pair.edition > seen);
        known_good.or(newest).cloned()
    }

    /// Reads the files again if they have changed.
    fn refresh(&self, state: &mut State) {
        let now = stamp(&self.certificate).and_then(|one| Ok([one, stamp(&self.key)?]));
        if matches!(now, Ok(stamps) if stamps == state.stamps) {
            state.error_logged = false;
            return;
        }
        match now.and_then(|_| read_both(&self.certificate, &self.key)) {
            Ok((stamps, [certificate, key])) => {
                state.error_logged = false;
                state.stamps = stamps;
                if (&certificate, &key) != (&state.current.certificate, &state.current.key) {
                    let edition = state.current.edition + 1;
                    state.current = TlsPair { edition, certificate, key };
                }
            }
            // Retried at the next call.
            Err(Error::TlsFile { source, .. }) if source.kind() == io::ErrorKind::ResourceBusy => {}
            Err(error) if !state.error_logged => {
                state.error_logged = true;
                tracing::error!(%error, "the TLS files cannot be read, the old certificate stays: {error}");
            }
            Err(_) => {}
        }
    }
}

/// Reads both files consistently. Fails with `ResourceBusy` if one of them changed meanwhile.
fn read_both(certificate: &Path, key: &Path) -> Result<([Stamp; 2], [String; 2]), Error> {
    let stamps = || Ok::<_, Error>([stamp(certificate)?, stamp(key)?]);
    let before = stamps()?;
    let texts = [read(certificate)?, read(key)?];
    if stamps()? != before {
        let source = io::Error::new(io::ErrorKind::ResourceBusy, "it changed while it was read");
        return Err(Error::TlsFile { path: certificate.to_owned(), source });
    }
    Ok((before, texts))
}

fn stamp(path: &Path) -> Result<Stamp, Error> {
    let metadata = fs::metadata(path).map_err(at(path))?;
    Ok(Stamp {
        device: metadata.dev(),
        inode: metadata.ino(),
        size: metadata.size(),
        changed: (metadata.ctime(), metadata.ctime_nsec()),
    })
}

fn read(path: &Path) -> Result<String, Error> {
    let mut text = String::new();
    let limit = MAX_PEM_BYTES as u64 + 1;
    File::open(path).and_then(|file| file.take(limit).read_to_string(&mut text)).map_err(at(path))?;
    if text.len() > MAX_PEM_BYTES {
        let what = format!("it is larger than {} KiB", MAX_PEM_BYTES >> 10);
        return Err(at(path)(io::Error::new(io::ErrorKind::FileTooLarge, what)));
    }
    Ok(text)
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::TlsFile { path, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let (certificate, key) = (folder.path().join("c.pem"), folder.path().join("k.pem"));
        fs::write(&certificate, "c1").unwrap();
        fs::write(&key, "k1").unwrap();
        (folder, certificate, key)
    }

    #[test]
    fn a_changed_pair_is_returned_once() {
        let (folder, certificate, key) = files();
        let pair = TlsFiles::open(certificate.clone(), key).unwrap();
        let first = pair.newer_than(0, 0).unwrap();
        assert_eq!((first.certificate.as_str(), first.key.as_str()), ("c1", "k1"));
        assert!(pair.newer_than(first.edition, first.edition).is_none());
        // As renewal tools do: another file is renamed to the path.
        let new = folder.path().join("new");
        fs::write(&new, "c2").unwrap();
        fs::rename(&new, &certificate).unwrap();
        let second = pair.newer_than(first.edition, first.edition).unwrap();
        assert_eq!((second.certificate.as_str(), second.key.as_str()), ("c2", "k1"));
        assert!(pair.newer_than(second.edition, first.edition).is_none());
    }

    #[test]
    fn a_restarted_server_gets_the_last_valid_pair() {
        let (_folder, certificate, key) = files();
        let pair = TlsFiles::open(certificate.clone(), key).unwrap();
        let first = pair.newer_than(0, 0).unwrap();
        assert!(pair.newer_than(first.edition, first.edition).is_none());
        fs::write(&certificate, "nonsense").unwrap();
        let refused = pair.newer_than(first.edition, first.edition).unwrap();
        assert!(pair.newer_than(refused.edition, first.edition).is_none());
        let again = pair.newer_than(0, 0).unwrap();
        assert_eq!(again.certificate, "c1");
        assert_eq!(pair.newer_than(again.edition, again.edition).unwrap().certificate, "nonsense");
    }

    #[test]
    fn an_unreadable_file_is_named_and_retried() {
        let (folder, certificate, key) = files();
        let missing = folder.path().join("missing.pem");
        for error in [
            TlsFiles::open(missing.clone(), key.clone()).unwrap_err(),
            TlsFiles::open(certificate.clone(), missing).unwrap_err(),
        ] {
            assert!(error.to_string().contains("missing.pem"), "{error}");
        }
        fs::write(&certificate, "x".repeat(MAX_PEM_BYTES + 1)).unwrap();
        let error = TlsFiles::open(certificate.clone(), key.clone()).unwrap_err().to_string();
        assert!(error.contains("c.pem") && error.contains("KiB"), "{error}");
        fs::write(&certificate, "c1").unwrap();
        let pair = TlsFiles::open(certificate, key.clone()).unwrap();
        fs::remove_file(&key).unwrap();
        assert!(pair.newer_than(1, 1).is_none());
        fs::write(&key, "k2").unwrap();
        assert_eq!(pair.newer_than(1, 1).unwrap().key, "k2");
    }
}
