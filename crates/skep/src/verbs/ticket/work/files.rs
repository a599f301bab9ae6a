//! The private folder of an attempt, with the ticket as input of the command and the result as its output.

use std::{
    fs::{File, OpenOptions, Permissions},
    io::{self, BufWriter, ErrorKind, Read, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use anyhow::Context;
use serde_json::Value;
use skep_api::tickets::{Object, Ticket};
use tempfile::TempDir;

/// Maximum size of a result, in bytes.
const MAX_RESULT_BYTES: u64 = 1 << 20;

/// A temporary folder, which is removed on drop.
pub(super) struct Files(TempDir);

impl Files {
    /// Creates a folder that only this user can enter, in that of the worker.
    ///
    /// # Errors
    /// The folder of the worker cannot be written.
    pub(super) fn create_in(worker: &Path) -> anyhow::Result<Self> {
        let made = tempfile::Builder::new()
            .prefix("attempt-")
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(worker);
        Ok(Self(made.context("the folder of the ticket's files cannot be created")?))
    }

    pub(super) fn ticket(&self) -> PathBuf {
        self.0.path().join("ticket.json")
    }

    /// The file to which the command may write its result.
    pub(super) fn result(&self) -> PathBuf {
        self.0.path().join("result.json")
    }

    /// Starts the ticket's file: `{"ticket": RECORD, "prerequisites": [RECORD...]}`. Prerequisites are added one at a
    /// time, because together they may be large.
    pub(super) fn begin_ticket(&self, ticket: &Ticket) -> io::Result<TicketWriter> {
        let mut file = BufWriter::new(File::create_new(self.ticket())?);
        file.write_all(br#"{"ticket":"#)?;
        serde_json::to_writer(&mut file, ticket)?;
        file.write_all(br#","prerequisites":["#)?;
        Ok(TicketWriter { file, is_first: true })
    }

    /// The object that the command wrote; `None` if it wrote none.
    ///
    /// # Errors
    /// The content is not a valid result, for this reason.
    pub(super) fn read_result(&self) -> Result<Option<Object>, String> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(self.result()) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) if error.raw_os_error() == Some(libc::ELOOP) => return Err(not_regular()),
            Err(error) => return Err(format!("the result file cannot be read: {error}")),
        };
        if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
            return Err(not_regular());
        }
        let mut text = Vec::new();
        let read = file.take(MAX_RESULT_BYTES + 1).read_to_end(&mut text);
        read.map_err(|error| format!("the result file cannot be read: {error}"))?;
        if text.len() as u64 > MAX_RESULT_BYTES {
            return Err(format!("the result file has more than {MAX_RESULT_BYTES} bytes"));
        }
        match serde_json::from_slice(&text) {
            Ok(Value::Object(object)) => Ok(Some(object)),
            Ok(_) => Err("the result file is not an object of JSON".to_owned()),
            Err(error) => Err(format!("the result file is not JSON: {error}")),
        }
    }
}

fn not_regular() -> String {
    "the result file is not a regular file".to_owned()
}

/// Writes the ticket's file.
pub(super) struct TicketWriter {
    file: BufWriter<File>,
    is_first: bool,
}

impl TicketWriter {
    pub(super) fn add(&mut self, prerequisite: &Ticket) -> io::Result<()> {
        if !self.is_first {
            self.file.write_all(b",")?;
        }
        self.is_first = false;
        Ok(serde_json::to_writer(&mut self.file, prerequisite)?)
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        self.file.write_all(b"]}")?;
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_an_object_in_a_regular_file_is_a_result() {
        let worker = tempfile::tempdir().unwrap();
        let files = Files::create_in(worker.path()).unwrap();
        let mode = std::fs::metadata(files.0.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        assert_eq!(files.read_result(), Ok(None));
        for (text, message) in [
            ("[1]".to_owned(), "not an object"),
            ("{".to_owned(), "not JSON"),
            (String::new(), "not JSON"),
            (format!("{{\"a\":\"{}\"}}", "x".repeat(1 << 20)), "more than 1048576 bytes"),
        ] {
            std::fs::write(files.result(), text).unwrap();
            let refused = files.read_result().unwrap_err();
            assert!(refused.contains(message), "{refused}");
        }
        std::fs::write(files.result(), r#"{"a": 1}"#).unwrap();
        assert_eq!(files.read_result().unwrap().unwrap()["a"], 1);
        // A link to a valid result is refused, and opening a FIFO does not block.
        std::fs::rename(files.result(), files.0.path().join("other")).unwrap();
        symlink(files.0.path().join("other"), files.result()).unwrap();
        assert!(files.read_result().unwrap_err().contains("regular"));
        std::fs::remove_file(files.result()).unwrap();
        std::fs::create_dir(files.result()).unwrap();
        assert!(files.read_result().unwrap_err().contains("regular"));
        std::fs::remove_dir(files.result()).unwrap();
        let mode = rustix::fs::Mode::RWXU;
        rustix::fs::mknodat(rustix::fs::CWD, files.result(), rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(files.read_result().unwrap_err().contains("regular"));
    }
}
