//! Computes the object id of a file's content.

use std::io::Read;

use sha1::{Digest, Sha1};

use super::ObjectId;

/// Limit of a hashed file, in bytes.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// The result of hashing a file.
pub(super) struct Hashed {
    pub(super) id: ObjectId,
    /// The content contains `\r`, so line ending conversion could change it.
    pub(super) has_carriage_returns: bool,
}

/// Hashes a file of this size. `None` also if the size changed meanwhile.
pub(super) fn hash_blob(mut file: impl Read, size: u64) -> Option<Hashed> {
    if size > MAX_FILE_BYTES {
        return None;
    }
    let mut hash = Sha1::new_with_prefix(format!("blob {size}\0"));
    let (mut read, mut has_returns) = (0, false);
    let mut buffer = vec![0; usize::try_from(size.min(64 << 10)).ok()? + 1];
    loop {
        let count = match file.read(&mut buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(_) => return None,
        };
        read += count as u64;
        has_returns |= buffer[..count].contains(&b'\r');
        hash.update(&buffer[..count]);
        // The read was shorter than the buffer, so this is the end.
        if count < buffer.len() && read >= size || count == 0 {
            let id = ObjectId::from_bytes(hash.finalize().into());
            return (read == size).then_some(Hashed { id, has_carriage_returns: has_returns });
        }
        if read > size {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_have_the_names_that_git_gives_them() {
        let id = |content: &[u8]| hash_blob(content, content.len() as u64).unwrap().id.to_string();
        assert_eq!(id(b""), "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391");
        assert_eq!(id(b"hello\n"), "ce013625030ba8dba906f756967f9e9ca394464a");
        assert!(hash_blob(&b"hello"[..], 4).is_none() && hash_blob(&b"hello"[..], 6).is_none());
        assert!(hash_blob(&b"a\r\n"[..], 3).unwrap().has_carriage_returns);
        assert!(ObjectId::from_bytes(hash_blob(&b""[..], 0).unwrap().id.bytes().to_owned()).is_empty_blob());
    }
}
