//! A VM that works for long.

use super::MemoryGroup;
use crate::harness::Skep;

/// Each round runs much code at other addresses than the round before, so that an emulator translates it anew.
const NEW_CODE: &str = "echo 3 > /proc/sys/vm/drop_caches
    python3 -c 'import unittest, json, ssl, asyncio, email, http.server'";
/// Without a limit of the cache of translated code, some twelve are the end of a VM.
const ROUNDS: usize = 16;

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_runs_new_code_again_and_again_lives_on() {
    let skep = Skep::start().await;
    let vm = skep.boot(1).await.remove(0);
    let pid = vm["pid"].as_u64().unwrap();
    for _ in 0..ROUNDS {
        skep.output(pid, NEW_CODE).await;
    }
    let group = MemoryGroup::of(&skep, &vm);
    let (taken, limit) = (group.taken(), group.limit());
    assert!(taken < limit, "{taken} bytes of {limit}");
}
