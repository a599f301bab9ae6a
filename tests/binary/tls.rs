//! TLS files of a server: permissions, reloading, and invalid files.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use reqwest::Method;
use tempfile::TempDir;

use crate::harness::{Skep, binary, eventually, output_of, send, serve, serve_anywhere, temp_dir, with_vms};

/// A certificate for this machine that ends in this year, and its key.
fn made(until: i32) -> (String, String) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    params.not_before = date_time_ymd(2001, 1, 1);
    params.not_after = date_time_ymd(until, 1, 1);
    (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
}

/// Two files as those leave them who get certificates: the key for its owner alone.
struct Files {
    folder: TempDir,
}

impl Files {
    fn with(pair: &(String, String)) -> Self {
        let files = Self { folder: temp_dir() };
        // Where the test is root and the server is not started by root, the server must find its way to them.
        fs::set_permissions(files.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        files.put(pair);
        files
    }

    /// Replaces the files by rename.
    fn put(&self, (certificate, key): &(String, String)) {
        for (path, text, mode) in [(self.key(), key, 0o600), (self.certificate(), certificate, 0o644)] {
            let new = path.with_extension("new");
            fs::write(&new, text).unwrap();
            fs::set_permissions(&new, fs::Permissions::from_mode(mode)).unwrap();
            if !with_vms() && rustix::process::getuid().is_root() {
                std::os::unix::fs::chown(&new, Some(65_534), Some(65_534)).unwrap();
            }
            fs::rename(new, path).unwrap();
        }
    }

    fn certificate(&self) -> PathBuf {
        self.folder.path().join("fullchain.pem")
    }

    fn key(&self) -> PathBuf {
        self.folder.path().join("privkey.pem")
    }

    fn options(&self) -> Vec<String> {
        let text = |path: PathBuf| path.display().to_string();
        ["--tls-cert".to_owned(), text(self.certificate()), "--tls-key".to_owned(), text(self.key())].into()
    }
}

async fn start(options: &[String]) -> Skep {
    Skep::start_as(temp_dir(), |command| _ = command.args(options)).await
}

/// `skep status` as a client that trusts what is in a file.
fn status(skep: &Skep, trusted: &Path) -> Output {
    let mut command = Command::new(binary());
    command.args(["status", "--json", "--url", &skep.url, "--api-key", &skep.key, "--ca-file"]).arg(trusted);
    command.output().unwrap()
}

#[track_caller]
fn is_served(skep: &Skep, trusted: &Path) {
    let output = status(skep, trusted);
    // Without root there is no swarm to describe; the refusal was sent over TLS as well.
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    let answered = output.status.success() || message.contains("VMs need root");
    assert!(answered, "{output:?}; the log of the server:\n{}", skep.log());
}

#[tokio::test]
async fn a_certificate_is_read_again_when_its_files_change() {
    let (old, new) = (made(2100), made(2100));
    let files = Files::with(&old);
    let skep = start(&files.options()).await;
    assert!(skep.url.starts_with("https://"), "{}", skep.url);
    let trusted = temp_dir();
    let (old_file, new_file) = (trusted.path().join("old"), trusted.path().join("new"));
    fs::write(&old_file, &old.0).unwrap();
    fs::write(&new_file, &new.0).unwrap();
    is_served(&skep, &old_file);
    // The control: who trusts another one refuses it.
    assert!(!status(&skep, &new_file).status.success());

    // A certificate with another key is refused and logged by name.
    files.put(&(new.0.clone(), old.1.clone()));
    eventually("the refusal", async || skep.log().contains("the new certificate is refused")).await;
    assert!(skep.log().contains("does not belong to the certificate"), "{}", skep.log());
    is_served(&skep, &old_file);

    files.put(&new);
    eventually("the new certificate", async || skep.log().contains("a new certificate is shown")).await;
    is_served(&skep, &new_file);
    assert!(!skep.log().contains(new.1.lines().nth(1).unwrap()));
}

#[tokio::test]
async fn a_file_that_cannot_be_used_ends_the_start_and_is_named() {
    let (one, other) = (made(2100), made(2100));
    let missing = "/no/such/file.pem".to_owned();
    for (what, pair, alter, named) in [
        (
            "another's key",
            (one.0.clone(), other.1.clone()),
            None,
            vec!["fullchain.pem", "privkey.pem", "belong"],
        ),
        ("no key", (one.0.clone(), "nonsense".to_owned()), None, vec!["privkey.pem", "BEGIN PRIVATE KEY"]),
        (
            "no certificate",
            ("nonsense".to_owned(), one.1.clone()),
            None,
            vec!["fullchain.pem", "BEGIN CERTIFICATE"],
        ),
        ("a missing key", one.clone(), Some((3, missing.clone())), vec!["/no/such/file.pem", "--tls-key"]),
        ("a missing certificate", one.clone(), Some((1, missing)), vec!["/no/such/file.pem", "--tls-cert"]),
    ] {
        let files = Files::with(&pair);
        let mut options = files.options();
        if let Some((at, path)) = alter {
            options[at] = path;
        }
        let data = temp_dir();
        fs::write(data.path().join("test.log"), "").unwrap();
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let output = output_of(&mut serve(data.path(), &options));
        let message = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{what}: {message}");
        for word in named {
            assert!(message.contains(word), "{what}: {message}");
        }
        assert!(!message.contains(pair.1.lines().nth(1).unwrap_or("BEGIN EC")), "{what}: {message}");
    }
}

#[tokio::test]
async fn an_expired_certificate_is_a_warning() {
    let pair = made(2002);
    let files = Files::with(&pair);
    let skep = start(&files.options()).await;
    eventually("the warning", async || skep.log().contains("has expired at 2002-01-01")).await;
    let output = status(&skep, &files.certificate());
    assert!(!output.status.success(), "{output:?}");
}

#[tokio::test]
async fn a_certificate_of_the_servers_own_lasts_over_a_restart() {
    let options = ["--tls".to_owned(), "self-signed".to_owned()];
    let skep = start(&options).await;
    let file = skep.data_dir.path().join("server/tls/certificate.pem");
    is_served(&skep, &file);
    assert!(
        skep.log().contains(", SHA-256 ") && skep.log().contains(&file.display().to_string()),
        "{}",
        skep.log()
    );
    let key = fs::metadata(skep.data_dir.path().join("server/tls/key.pem")).unwrap();
    assert_eq!(key.mode() & 0o777, 0o600);
    let first = fs::read(&file).unwrap();
    let data = skep.stop();
    let skep = Skep::start_as(data, |command| _ = command.args(&options)).await;
    assert_eq!(fs::read(&file).unwrap(), first);
    is_served(&skep, &file);
}

#[tokio::test]
async fn without_tls_nothing_but_loopback_is_served() {
    let data = temp_dir();
    fs::write(data.path().join("test.log"), "").unwrap();
    let output = output_of(serve_anywhere(data.path()).args(["--listen", "0.0.0.0:0"]));
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && message.contains("--trusted-proxy"), "{message}");
    // The control: with a trusted proxy it starts, and serves only that proxy.
    let skep = start(&["--trusted-proxy", "10.0.0.0/8"].map(str::to_owned)).await;
    let answer = send(skep.bare(Method::GET, "/api/health").header("x-forwarded-proto", "https")).await;
    assert_eq!(answer.refused(403, "https_required"), "HTTPS required");
}
