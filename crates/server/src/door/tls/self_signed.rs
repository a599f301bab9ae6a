//! Creates and renews a self-signed certificate, for a server without a public name.

use std::{
    fs::{self, DirBuilder, File},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use jiff::{SignedDuration, Timestamp, tz::TimeZone};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, date_time_ymd};

use super::{Certificates, Pem};

const VALIDITY: SignedDuration = SignedDuration::from_hours(365 * 24);
/// How long before its expiry a certificate is renewed.
const RENEW_BEFORE: SignedDuration = SignedDuration::from_hours(30 * 24);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}: {source}", path.display())]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The certificate could not be created.
    #[error("no certificate could be made for {names:?}: {source}")]
    Make {
        /// The requested names.
        names: Vec<String>,
        #[source]
        source: rcgen::Error,
    },
}

/// The file of the certificate in its folder, for clients to trust.
pub fn certificate_file(folder: &Path) -> PathBuf {
    folder.join("certificate.pem")
}

/// Reads the certificate in a folder. Where there is none or it expires soon, creates one for these names and
/// addresses, with the old key where there is one.
///
/// # Errors
/// See [`Error`].
pub fn ensure(folder: &Path, names: &[String], now: Timestamp) -> Result<Pem, Error> {
    let (certificate_file, key_file) = (certificate_file(folder), folder.join("key.pem"));
    let read = |path: &Path| match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::File { path: path.to_owned(), source }),
    };
    let old_key = read(&key_file)?;
    if let (Some(certificate), Some(key)) = (read(&certificate_file)?, &old_key) {
        let pem = Pem { certificate, key: key.clone() };
        if Certificates::new(&pem).is_ok_and(|there| there.expires_at().duration_since(now) > RENEW_BEFORE) {
            return Ok(pem);
        }
    }
    let make_error = |source| Error::Make { names: names.to_vec(), source };
    let key = match old_key.and_then(|text| KeyPair::from_pem(&text).ok()) {
        Some(key) => key,
        None => KeyPair::generate().map_err(make_error)?,
    };
    let pem = make(names, &key, now).map_err(make_error)?;
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(|source| Error::File { path: folder.to_owned(), source })?;
    for (path, text, mode) in [(key_file, &pem.key, 0o600), (certificate_file, &pem.certificate, 0o644)] {
        write(&path, text, mode).map_err(|source| Error::File { path, source })?;
    }
    Ok(pem)
}

fn make(names: &[String], key: &KeyPair, now: Timestamp) -> Result<Pem, rcgen::Error> {
    let mut params = CertificateParams::new(names.to_vec())?;
    params.distinguished_name.push(DnType::CommonName, "skep self-signed");
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    // A day earlier, for clients whose clock is slow.
    params.not_before = day(now - SignedDuration::from_hours(24));
    params.not_after = day(now + VALIDITY);
    let certificate = params.self_signed(key)?.pem();
    Ok(Pem { certificate, key: key.serialize_pem() })
}

fn day(at: Timestamp) -> time::OffsetDateTime {
    let date = at.to_zoned(TimeZone::UTC).date();
    let (month, day) = (date.month().unsigned_abs(), date.day().unsigned_abs());
    date_time_ymd(date.year().into(), month, day)
}

/// Writes a file atomically.
fn write(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let new = path.with_extension("new");
    // A file that a crash left behind may have another mode.
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file: File = File::options().write(true).create_new(true).mode(mode).open(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_certificate_is_created_once_and_renewed_before_it_expires() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("tls");
        let names = ["localhost".to_owned(), "127.0.0.1".to_owned()];
        let now = Timestamp::now();
        let first = ensure(&folder, &names, now).unwrap();
        assert_eq!(ensure(&folder, &names, now).unwrap(), first);
        let mode = |name: &str| fs::metadata(folder.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("key.pem"), mode("certificate.pem")), (0o600, 0o644));
        let late = now + VALIDITY - RENEW_BEFORE + SignedDuration::from_hours(24);
        let second = ensure(&folder, &names, late).unwrap();
        assert_ne!(second.certificate, first.certificate);
        assert_eq!(second.key, first.key);
        assert!(
            Certificates::new(&second).unwrap().expires_at()
                > late + VALIDITY - SignedDuration::from_hours(48)
        );
    }

    #[test]
    fn a_damaged_certificate_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["localhost".to_owned()];
        let first = ensure(folder.path(), &names, Timestamp::now()).unwrap();
        fs::write(folder.path().join("key.pem"), "no key").unwrap();
        let second = ensure(folder.path(), &names, Timestamp::now()).unwrap();
        assert_ne!(second.key, first.key);
        Certificates::new(&second).unwrap();
    }
}
