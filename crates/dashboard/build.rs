//! Embeds what `packaging/dashboard` built. Without it the crate builds too, and has no files.

use std::path::Path;

fn main() {
    let dist = Path::new("../../dashboard/dist");
    println!("cargo::rerun-if-changed={}", dist.display());
    println!("cargo::rustc-check-cfg=cfg(dashboard_is_built)");
    if dist.join("index.html").is_file() {
        println!("cargo::rustc-cfg=dashboard_is_built");
        memory_serve::load_directory(dist.join("files"));
    }
}
