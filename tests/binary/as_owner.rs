//! `packaging/as-owner`, with clones, homes and compilers that the test makes.

use std::{
    fs,
    os::unix::fs::{MetadataExt, chown, symlink},
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

use crate::harness::write_program;

/// The user that owns the clone. It exists only in the mount namespace of the script.
const OWNER: &str = "skep-test-owner";
const UID: u32 = 54_321;

/// A clone with a home for its owner.
struct Clone(TempDir);

impl Clone {
    fn of(uid: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let clone = Self(folder);
        let of_root = ["home/.cargo/bin", "clone/packaging", "clone/target/images", "clone/target/release"];
        let of_owner = ["home", "home/.cargo", "clone", "clone/dashboard", "clone/dashboard/src/api"];
        for folder in of_root.into_iter().chain(of_owner) {
            fs::create_dir_all(clone.at(folder)).unwrap();
        }
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for file in ["packaging/as-owner", "Cargo.toml"] {
            fs::copy(repository.join(file), clone.at("clone").join(file)).unwrap();
        }
        for folder in of_owner {
            chown(clone.at(folder), Some(uid), Some(uid)).unwrap();
        }
        let users = fs::read_to_string("/etc/passwd").unwrap();
        let home = clone.at("home");
        let owner = format!("{OWNER}:x:{UID}:{UID}::{}:/bin/sh\n", home.display());
        fs::write(clone.at("passwd"), users + &owner).unwrap();
        // The umask may have closed them to the owner.
        let opened = Command::new("chmod").args(["-R", "go+rX"]).arg(clone.at(".")).status().unwrap();
        assert!(opened.success());
        clone
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    /// Puts a compiler of this version into the owner's home.
    fn install_rust(&self, version: &str) {
        write_program(&self.at("home/.cargo/bin/cargo"), "#!/bin/sh\n");
        write_program(
            &self.at("home/.cargo/bin/rustc"),
            &format!("#!/bin/sh\necho 'rustc {version} (0123456 2026-01-01)'\n"),
        );
    }

    /// What the script prints with these arguments, as root with folders of root in the environment.
    fn run(&self, arguments: &[&str]) -> String {
        let mount = "mount --bind \"$0\" /etc/passwd; exec \"$@\"";
        let mut script = Command::new("unshare");
        script.args(["--mount", "--propagation", "private", "sh", "-ec", mount]).arg(self.at("passwd"));
        script.arg(self.at("clone/packaging/as-owner")).args(arguments).current_dir(self.at("clone"));
        script.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", "/root").env("TMPDIR", "/root/tmp");
        script.env("CARGO_HOME", "/root/.cargo").env("KEPT", "kept");
        let output = script.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn user_of_command(&self) -> String {
        self.run(&["id", "-un"])
    }

    fn owner_of(&self, path: &str) -> u32 {
        fs::symlink_metadata(self.at(path)).unwrap().uid()
    }
}

#[test]
fn the_owner_of_a_clone_runs_the_command_in_an_environment_of_its_own() {
    let clone = Clone::of(UID);
    clone.install_rust("1.999.0-nightly");
    assert_eq!(clone.user_of_command(), OWNER);
    let printed = clone.run(&["sh", "-c", "echo $HOME $PATH $USER $KEPT ${TMPDIR-none} ${CARGO_HOME-none}"]);
    let home = clone.at("home").display().to_string();
    let path = format!("{home}/.cargo/bin:/usr/sbin:/usr/bin:/sbin:/bin");
    assert_eq!(printed, format!("{home} {path} {OWNER} kept none none"));
    // Arguments are passed unchanged.
    assert_eq!(clone.run(&["printf", "<%s>", "a b", "", "$(id)"]), "<a b><><$(id)>");
}

#[test]
fn root_runs_the_command_where_the_owner_cannot_build() {
    let is_roots = |clone: &Clone, why: &str| {
        assert_eq!(clone.user_of_command(), "root", "{why}");
        assert_eq!(clone.run(&["sh", "-c", "echo $HOME $CARGO_HOME"]), "/root /root/.cargo", "{why}");
        fs::write(clone.at("clone/target/built"), "").unwrap();
        assert_eq!(clone.run(&["--hand-over"]), "", "{why}");
        assert_eq!(clone.owner_of("clone/target/built"), 0, "{why}");
    };
    let clone = Clone::of(UID);
    // The `cargo` of rustup fails like this if no compiler is installed.
    write_program(&clone.at("home/.cargo/bin/cargo"), "#!/bin/sh\nexit 1\n");
    is_roots(&clone, "no Rust");
    clone.install_rust("1.9.0");
    is_roots(&clone, "Rust that is too old");
    clone.install_rust("1.999.0");
    chown(clone.at("home/.cargo"), Some(0), Some(0)).unwrap();
    is_roots(&clone, "a folder of cargo that belongs to root");
    let clone = Clone::of(UID);
    clone.install_rust("1.999.0");
    fs::create_dir(clone.at("home/.cargo/registry")).unwrap();
    is_roots(&clone, "sources of dependencies that belong to root");
    let clone = Clone::of(UID);
    clone.install_rust("1.999.0");
    chown(clone.at("clone/dashboard"), Some(0), Some(0)).unwrap();
    is_roots(&clone, "a folder of the clone that belongs to root");
    let own = Clone::of(0);
    own.install_rust("1.999.0");
    is_roots(&own, "root's clone");
    let unknown = Clone::of(UID + 1);
    unknown.install_rust("1.999.0");
    is_roots(&unknown, "a clone whose owner has no name");
}

#[test]
fn what_root_wrote_is_handed_over_but_images_and_what_links_lead_to_are_not() {
    for target_is_link in [false, true] {
        let clone = Clone::of(UID);
        clone.install_rust("1.999.0");
        if target_is_link {
            fs::rename(clone.at("clone/target"), clone.at("elsewhere")).unwrap();
            symlink(clone.at("elsewhere"), clone.at("clone/target")).unwrap();
        }
        fs::create_dir(clone.at("clone/dashboard/node_modules")).unwrap();
        let of_root = ["target/release/a b", "target/images/image", "source", "dashboard/source"];
        let of_builds = ["dashboard/node_modules/x", "dashboard/src/api/schema.d.ts"];
        for file in of_root.into_iter().chain(of_builds) {
            fs::write(clone.at("clone").join(file), "").unwrap();
        }
        fs::create_dir(clone.at("canary")).unwrap();
        fs::write(clone.at("canary/file"), "").unwrap();
        symlink(clone.at("canary"), clone.at("clone/target/link")).unwrap();
        fs::write(clone.at("clone/target/of-another"), "").unwrap();
        chown(clone.at("clone/target/of-another"), Some(UID + 1), None).unwrap();
        assert!(clone.run(&["--hand-over"]).contains(OWNER));
        let owners = [
            ("clone/target/.", UID),
            ("clone/target/release/a b", UID),
            ("clone/target/link", UID),
            ("clone/target/images", 0),
            ("clone/target/images/image", 0),
            ("clone/target/of-another", UID + 1),
            ("clone/source", 0),
            ("clone/dashboard/source", 0),
            ("clone/dashboard/node_modules/x", UID),
            ("clone/dashboard/src/api/schema.d.ts", UID),
            ("canary", 0),
            ("canary/file", 0),
        ];
        for (path, owner) in owners {
            assert_eq!(clone.owner_of(path), owner, "{path}, {target_is_link}");
        }
        // The owner writes there now.
        clone.run(&["touch", "target/release/a b", "target/new"]);
        assert_eq!(clone.owner_of("clone/target/new"), UID);
    }
}
