//! npm in VMs: Node takes minutes in emulated guests.

use crate::egress::tools::{TRUSTED, run_with, trust};

/// Makes what a host of the test serves: a registry of Node's packages with two, and Node with npm. The argument is a program
/// that runs others with a Node.
const CONTENT: &str = r#"
set -e
mkdir -p public/npm/- package
/usr/bin/python3 - <<'PYTHON'
import base64, hashlib, json, tarfile
for name, needs, module in [("tiny", {"tinier": "^1.0.0"}, 'require("tinier")'), ("tinier", {}, '"installed"')]:
    version = {"name": name, "version": "1.0.0", "dependencies": needs}
    json.dump(version, open("package/package.json", "w"))
    print("module.exports =", module, file=open("package/index.js", "w"))
    archive = f"public/npm/-/{name}-1.0.0.tgz"
    with tarfile.open(archive, "w:gz") as file:
        file.add("package")
    sum = base64.b64encode(hashlib.sha512(open(archive, "rb").read()).digest()).decode()
    dist = {"tarball": f"https://packages.test/npm/-/{name}-1.0.0.tgz", "integrity": f"sha512-{sum}"}
    versions = {"1.0.0": version | {"dist": dist}}
    json.dump({"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": versions}, open(f"public/npm/{name}", "w"))
PYTHON
program=$("$0" node -p process.execPath)
tar -cf public/node.tar -C "${program%/bin/node}" bin/node lib/node_modules/npm
"#;
/// Runs a command with a Node that has its npm beside it, as those of nodejs.org have.
const WITH_NODE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/node");

/// The template has no Node: the VM fetches it, as people do from nodejs.org.
#[test]
fn npm_installs_packages_as_people_know_it() {
    run_with(CONTENT, WITH_NODE, async |skep, vm, authority| {
        trust(&skep, vm, &authority).await;
        let fetch = "mkdir /opt/node && cd /opt/node && curl -sS https://packages.test/node.tar | tar -x && \
            ln -s ../lib/node_modules/npm/bin/npm-cli.js bin/npm && ln -s /opt/node/bin/* /usr/local/bin/";
        skep.output(vm, fetch).await;
        let install = |registry: &str| {
            // Node has authorities of its own.
            format!(
                "mkdir -p /root/app && cd /root/app && export NODE_EXTRA_CA_CERTS={TRUSTED} && \
                 npm install --registry {registry} --fetch-retries 0 tiny 2>&1"
            )
        };
        let other = skep.exec(vm, &install("https://other.test/npm")).await;
        assert_ne!(other["exit_code"], 0, "{other}");
        let installed = skep.output(vm, &install("https://packages.test/npm")).await;
        assert!(installed.contains("added 2 packages"), "{installed}");
        assert_eq!(skep.output(vm, "cd /root/app && node -p 'require(\"tiny\")'").await, "installed");
    });
}
