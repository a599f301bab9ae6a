//! Embeds the library that is preloaded into VMMs if it has been built. Without it, `cargo check` works, and VMs are
//! refused with a hint to run `make`.

use std::{env, fs, path::PathBuf};

fn main() {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../..");
    println!("cargo::rerun-if-env-changed=SKEP_PRELOAD");
    let library = match env::var_os("SKEP_PRELOAD") {
        Some(path) => PathBuf::from(path),
        None => root.join("target/preload/x86_64-unknown-linux-gnu/guest/libskep_preload.so"),
    };
    println!("cargo::rerun-if-changed={}", library.display());
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("preload.rs");
    let code = match fs::canonicalize(&library) {
        Ok(path) => format!("Some(include_bytes!({path:?}))"),
        Err(_) => {
            // A library that appears now may have an earlier time than this run, and cargo would take it for unchanged. A file
            // that never exists makes cargo run this again at each build.
            println!("cargo::rerun-if-changed={}", out.with_extension("missing").display());
            "None".to_owned()
        }
    };
    if let Err(error) = fs::write(&out, code) {
        println!("cargo::error={}: {error}", out.display());
    }
}
