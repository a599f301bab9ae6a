//! A guest whose files fill its memory.

use reqwest::Method;

use super::Pair;
use crate::harness::send;

#[tokio::test(flavor = "multi_thread")]
async fn files_that_lie_in_a_guests_memory_leave_it_enough() {
    let pair = Pair::start().await;
    // Both as full as they get, and each tried twice.
    let fill =
        "for place in /dev/shm /run /dev/shm /run; do head -c 128M /dev/zero > $place/filled; done 2>&1
        df --output=pcent /dev/shm /run | grep -c 100%";
    let answer = pair.run(fill, 240_000).await;
    let output = answer["stdout"].as_str().unwrap();
    assert!(output.contains("No space left") && output.ends_with("2\n"), "{answer}");
    for name in ["/dev/shm/more", "/run/more"] {
        let upload = format!("/api/files/raw?vm={}&path={name}", pair.hog());
        let upload = pair.skep.request(Method::PUT, &upload).body(vec![0; 64 << 20]);
        send(upload).await.refused(503, "disk_full");
    }
    // More than there is of memory has room where temporary files lie.
    let on_disk =
        "head -c 160M /dev/zero > /tmp/filled; stat -c %s /tmp/filled; stat -c %a /tmp; rm /tmp/filled";
    let answer = pair.run(on_disk, 240_000).await;
    assert_eq!(answer["stdout"], "167772160\n1777\n", "{answer}");
}
