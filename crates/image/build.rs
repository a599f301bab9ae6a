//! Embeds the guest agent if it has been built. Without it, `cargo check` works, and a bake fails with a hint to run `make`.

use std::{env, fs, path::PathBuf};

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../..");
    println!("cargo::rerun-if-env-changed=SKEP_AGENT");
    let agent = match env::var_os("SKEP_AGENT") {
        Some(path) => PathBuf::from(path),
        None => root.join("target/guest/x86_64-unknown-linux-gnu/guest/skep-agent"),
    };
    println!("cargo::rerun-if-changed={}", agent.display());
    let code = match fs::canonicalize(&agent) {
        Ok(path) => format!("Some(include_bytes!({path:?}))"),
        Err(_) => "None".to_owned(),
    };
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("agent.rs");
    if let Err(error) = fs::write(&out, code) {
        println!("cargo::error={}: {error}", out.display());
    }
}
