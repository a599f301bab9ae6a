//! Tools that people use in VMs, by TLS and as they know them: without settings for a proxy.

use std::{fs, path::Path, process::Command};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use serde_json::json;
use skep_harness::temp_dir;

use super::{OPTIONS, boot, world::World};
use crate::{
    harness::{
        Skep,
        images::{skep, test_images},
    },
    sizes::{large_vms, vcpus},
};

/// Makes what hosts of the test serve: a repository, an index of Python packages with one, and an empty one of Debian's.
pub(super) const CONTENT: &str = r#"
set -e
mkdir -p public/simple/made public/debian made/made-1.0.dist-info
git init -q project
echo cloned > project/file
git -C project add file
git -C project -c user.name=a -c user.email=a@example.org commit -q -m one
git clone -q --bare project public/project.git
git -C public/project.git update-server-info
cd made
echo 'value = "installed"' > made.py
printf 'Metadata-Version: 2.1\nName: made\nVersion: 1.0\n' > made-1.0.dist-info/METADATA
printf 'Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n' > made-1.0.dist-info/WHEEL
printf 'made.py,,\nmade-1.0.dist-info/METADATA,,\nmade-1.0.dist-info/WHEEL,,\nmade-1.0.dist-info/RECORD,,\n' \
    > made-1.0.dist-info/RECORD
/usr/bin/python3 -m zipfile -c ../public/simple/made/made-1.0-py3-none-any.whl made.py made-1.0.dist-info/
cd ..
echo '<a href="made-1.0-py3-none-any.whl">made-1.0-py3-none-any.whl</a>' > public/simple/made/index.html
: > public/debian/Packages
"#;

/// Makes a certificate for the hosts of the test, and returns that of its authority.
fn certify(folder: &Path) -> String {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    // Another name than that of the certificates: OpenSSL takes one whose issuer has its own name for self-signed.
    params.distinguished_name.push(DnType::CommonName, "authority of the test");
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let hosts = ["code.test", "packages.test", "other.test"].map(str::to_owned);
    let certificate = CertificateParams::new(hosts).unwrap().signed_by(&key, &authority).unwrap();
    fs::write(folder.join("certificate.pem"), certificate.pem()).unwrap();
    fs::write(folder.join("key.pem"), key.serialize_pem()).unwrap();
    authority.pem()
}

/// Runs a test in a world whose hosts serve what this script makes with this argument, by a VM that may reach two of them.
/// Pip and npm need more memory than VMs of most tests have.
pub(crate) fn run_with(
    content: &str,
    argument: &str,
    test: impl AsyncFnOnce(Skep, u64, String) + Send + 'static,
) {
    let vcpus = vcpus();
    // The world of the test has no packages for a bake.
    let baked = skep(&[&["bake"][..], &large_vms(&vcpus)].concat(), &test_images()).output().unwrap();
    assert!(baked.status.success(), "{baked:?}");
    run_in_world(content, argument, large_vms(&vcpus).map(str::to_owned).to_vec(), test);
}

/// The same with VMs of a size that these options give.
fn run_in_world(
    content: &str,
    argument: &str,
    size: Vec<String>,
    test: impl AsyncFnOnce(Skep, u64, String) + Send + 'static,
) {
    let folder = temp_dir();
    let mut make = Command::new("sh");
    let made = make.args(["-c", content, argument]).current_dir(folder.path()).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let authority = certify(folder.path());
    World::run_with_files(folder.path(), async move || {
        let options: Vec<&str> = OPTIONS.into_iter().chain(size.iter().map(String::as_str)).collect();
        let skep = Skep::start_on(temp_dir(), &options).await;
        let vm = boot(&skep, json!({"allow": ["code.test", "packages.test"], "ports": [443]})).await;
        test(skep, vm, authority).await;
    });
}

/// These two trust an authority by a variable or an option, while the VM's own list takes long to be made.
#[test]
fn git_and_apt_use_tls_that_nothing_on_the_way_ends() {
    run_in_world(CONTENT, "", Vec::new(), async |skep, vm, authority| {
        let clone = "cd /root && rm -rf project && git clone -q https://code.test/project.git 2>&1";
        // The control: nothing ends TLS on the way, so that an authority that the VM does not know is not trusted.
        let untrusted = skep.exec(vm, clone).await;
        assert!(untrusted["stdout"].as_str().unwrap().contains("certificate"), "{untrusted}");

        skep.output(vm, &format!("cat > /etc/authority <<'END'\n{authority}\nEND")).await;
        let trusting = format!("export GIT_SSL_CAINFO=/etc/authority; {clone}");
        assert_eq!(skep.output(vm, &format!("{trusting} && cat project/file")).await, "cloned");
        let other = skep.exec(vm, &trusting.replace("code.test", "other.test")).await;
        assert_ne!(other["exit_code"], 0, "{other}");

        let update = "echo 'deb [trusted=yes] https://packages.test/debian ./' > /etc/apt/sources.list && \
            apt-get update -o Dir::Etc::sourceparts=- -o Acquire::https::CaInfo=/etc/authority 2>&1";
        let updated = skep.output(vm, update).await;
        assert!(updated.contains("https://packages.test/debian"), "{updated}");
    });
}

#[test]
fn pip_installs_from_an_index_by_tls() {
    run_with(CONTENT, "", async |skep, vm, authority| {
        skep.output(vm, &format!("cat > /etc/authority <<'END'\n{authority}\nEND")).await;
        // Without what takes long in an emulated guest: the look for another pip, and the compilation of what is installed.
        let install = "pip install -q --cert /etc/authority --no-compile --disable-pip-version-check \
            --root-user-action=ignore --index-url https://packages.test/simple made";
        let import = "python3 -c 'import made; print(made.value)'";
        assert_eq!(skep.output(vm, &format!("{install} && {import}")).await, "installed");
    });
}

/// Where the VM has the certificate of the test's authority.
pub(crate) const TRUSTED: &str = "/usr/local/share/ca-certificates/test.crt";

pub(crate) async fn trust(skep: &Skep, vm: u64, authority: &str) {
    skep.output(vm, &format!("cat > {TRUSTED} <<'END'\n{authority}\nEND\nupdate-ca-certificates")).await;
}
