//! The control of `clones`: without the reseed, the same check finds values that VMs of one snapshot share.
//!
//! It runs in `make soak`: a kernel reseeds itself at times, so a shared value is not certain, and may need many bakes.
//!
//! The agent has no option to skip the reseed. The test patches a copy of the binary: the two ioctls of the agent on
//! the kernel's random generator are replaced by one that succeeds and does nothing.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use futures_util::future::join_all;

use crate::{
    clones::{UNIQUE, shared},
    harness::{
        Skep, binary,
        images::{images_with, templates},
        small_vms, temp_dir,
    },
};

/// The second argument of a call: `mov esi, imm32`.
const SECOND_ARGUMENT: u8 = 0xbe;
/// `RNDADDENTROPY` and `RNDRESEEDCRNG`, with which the agent takes a seed.
const RESEED: [u32; 2] = [0x4008_5203, 0x5207];
/// `RNDCLEARPOOL`: kernels since 5.18 answer it and do nothing.
const NOTHING: u32 = 0x5206;
/// Boots out of one snapshot, of two VMs each.
const ROUNDS: usize = 3;
/// A kernel reseeds itself now and then, at a time that lies in the snapshot. Where that comes before the question, VMs
/// of another snapshot are asked.
const BAKES: usize = 12;

/// The binary under test with an agent that takes no seed.
fn without_reseed(at: &Path) {
    let mut program = fs::read(binary()).unwrap();
    for request in RESEED {
        let call = |request: u32| {
            let mut code = vec![SECOND_ARGUMENT];
            code.extend(request.to_le_bytes());
            code
        };
        let (wanted, nothing) = (call(request), call(NOTHING));
        let places: Vec<usize> =
            program.windows(5).enumerate().filter(|(_, code)| *code == wanted).map(|(at, _)| at).collect();
        assert!(
            (1..=2).contains(&places.len()),
            "the agent's request {request:#x} stands at {places:x?}: the compiler has other words for it now"
        );
        for place in places {
            program[place..place + 5].copy_from_slice(&nothing);
        }
    }
    fs::write(at, program).unwrap();
    fs::set_permissions(at, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The template of that binary.
fn bake(program: &Path, images: &Path) -> PathBuf {
    let mut bake = Command::new(program);
    bake.args(["bake", "--image-dir"]).arg(images).stdin(Stdio::null());
    small_vms(&mut bake);
    let baked = bake.output().unwrap();
    assert!(baked.status.success(), "{}", String::from_utf8_lossy(&baked.stderr));
    templates(images).pop().unwrap()
}

/// What the check finds that two VMs of one call share.
async fn shared_by_two(skep: &Skep) -> Vec<String> {
    let vms = skep.boot(2).await;
    let answers = join_all(vms.iter().map(|vm| skep.output(vm["pid"].as_u64().unwrap(), UNIQUE))).await;
    for vm in &vms {
        skep.delete(&format!("/api/swarm/vm/{}", vm["pid"])).await.ok(200);
    }
    shared(&answers).into_keys().collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_reseed_the_check_of_clones_finds_what_they_share() {
    let images = images_with(&[Path::new(".cache")]);
    let images = images.path();
    let program = images.join("without-reseed");
    without_reseed(&program);
    let mut seen = Vec::new();
    for _ in 0..BAKES {
        let template = bake(&program, images);
        let data_dir = temp_dir();
        let options = |command: &mut Command| _ = command.arg("--image-dir").arg(images);
        let skep = Skep::start_by(&program, data_dir, options).await;
        for _ in 0..ROUNDS {
            let found = shared_by_two(&skep).await;
            // What the identity itself brings differs even so.
            assert!(
                found.iter().all(|name| ["urandom", "uuid", "mktemp"].contains(&name.as_str())),
                "{found:?}"
            );
            // One is enough: the kernel may reseed itself between two of the questions.
            if !found.is_empty() {
                return;
            }
            seen.push(found);
        }
        drop(skep);
        fs::remove_dir_all(template).unwrap();
    }
    panic!("VMs that were never seeded share no randomness, so the check of clones shows nothing: {seen:?}");
}
