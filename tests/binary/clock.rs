//! Jumps of the wall clock by an hour, forwards and backwards, under a running server.
//!
//! The machine's clock is not changed: a preloaded library shifts the time that keeper and server read.

mod leases;

use std::{
    fs::{self, File},
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Path, PathBuf},
    process::Command,
};

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use skep_harness::process::go_on;
use tempfile::TempDir;

use crate::harness::{Skep, eventually, send, temp_dir};

const HOUR_S: i64 = 3600;
/// How far a time may be from where it should be: a minute is no hour.
const NEAR_S: i64 = 120;
/// A time to live that the tests do not reach, and that an hour would.
const LONG_MS: i64 = 1_800_000;
/// One that they wait for.
const BRIEF_MS: i64 = 4_000;

/// The clock that a server lives by.
struct Clock {
    dir: TempDir,
    shift: File,
}

impl Clock {
    fn make() -> Self {
        let dir = tempfile::Builder::new().prefix("skep-test-clock-").tempdir().unwrap();
        // The server's user maps both files.
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let (file, library) = (dir.path().join("shift"), Self::library(dir.path()));
        let shift = File::options().read(true).write(true).create_new(true).open(&file).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("clock/shift.c");
        let built = Command::new("gcc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .arg(&library)
            .arg(source)
            .arg(format!("-DSHIFT_FILE=\"{}\"", file.display()))
            .arg(format!("-DOWN_FILE=\"{}\"", library.display()))
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let clock = Self { dir, shift };
        clock.move_by(0);
        clock
    }

    fn library(dir: &Path) -> PathBuf {
        dir.join("shift.so")
    }

    /// Moves it to that many seconds beside the machine's.
    fn move_by(&self, seconds: i64) {
        self.shift.write_all_at(&seconds.to_ne_bytes(), 0).unwrap();
    }

    async fn start(&self, options: &[&str]) -> Skep {
        let data_dir = temp_dir();
        Skep::start_as(data_dir, |command| self.preload(command.args(options))).await
    }

    /// A server that finds none of the programs that VMs need, so that it starts at once.
    async fn start_without_vms(&self) -> Skep {
        Skep::start_as(temp_dir(), |command| self.preload(command.env("PATH", "/nonexistent"))).await
    }

    /// Has a server that is started live by this clock.
    fn preload(&self, command: &mut Command) {
        command.env("LD_PRELOAD", Self::library(self.dir.path()));
    }
}

async fn boot_one(skep: &Skep, ttl_ms: i64) -> Value {
    let answer = skep.post("/api/swarm/boot", &json!({"ttl_ms": ttl_ms})).await.ok(201);
    answer["vms"][0].clone()
}

fn path_of(vm: &Value) -> String {
    format!("/api/swarm/vm/{}", vm["id"].as_str().unwrap())
}

/// Fails unless a time is that many seconds beside the machine's clock.
#[track_caller]
fn assert_shifted(what: &str, at: Timestamp, shift_s: i64) {
    let beside = at.as_second() - Timestamp::now().as_second();
    assert!((beside - shift_s).abs() < NEAR_S, "{what} is {beside} s beside the clock, not {shift_s}");
}

fn time(vm: &Value, field: &str) -> Timestamp {
    vm[field].as_str().unwrap().parse().unwrap()
}

/// The time in a guest.
async fn time_inside(skep: &Skep, vm: &Value) -> Timestamp {
    let output = skep.output(vm["pid"].as_u64().unwrap(), "date +%s").await;
    Timestamp::from_second(output.parse().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_hour_forth_and_back_ends_no_vm_early_and_none_late() {
    let clock = Clock::make();
    let skep = clock.start(&[]).await;
    let mut moved = Vec::new();
    for shift_s in [HOUR_S, -HOUR_S] {
        let (long, brief) = (boot_one(&skep, LONG_MS).await, boot_one(&skep, BRIEF_MS).await);
        let before = skep.get(&path_of(&long)).await.ok(200);
        clock.move_by(shift_s);
        // A later one, by the new time: that the clock did move is seen here.
        let later = boot_one(&skep, LONG_MS).await;
        assert_shifted("a boot", time(&later, "started_at"), shift_s);
        assert_shifted("an end", time(&later, "expires_at"), shift_s + LONG_MS / 1000);
        assert_shifted("a new guest's clock", time_inside(&skep, &later).await, shift_s);
        eventually("the end of a brief life", async || skep.get(&path_of(&brief)).await.status == 404).await;
        let after = skep.get(&path_of(&long)).await.ok(200);
        for fact in ["id", "pid", "started_at", "expires_at"] {
            assert_eq!(before[fact], after[fact], "{fact}");
        }
        let up = after["uptime"].as_f64().unwrap() - before["uptime"].as_f64().unwrap();
        assert!(up > 0.0 && up < NEAR_S as f64, "{up} s went by for who is up");
        moved.extend([long, later]);
    }
    for vm in &moved {
        assert_eq!(skep.output(vm["pid"].as_u64().unwrap(), "echo alive").await, "alive");
        skep.delete(&path_of(vm)).await.ok(200);
    }
    assert_eq!(skep.log().matches("reason=\"expired\"").count(), 2, "{}", skep.log());
    assert_in_sequence(&skep, moved.len() + 2);
}

/// Each VM's events follow one another as they happened, whatever the clock said.
fn assert_in_sequence(skep: &Skep, vms: usize) {
    let store = skep.data_dir.path().join("server/skep.db");
    let query = "import sqlite3, sys
for row in sqlite3.connect(sys.argv[1]).execute('select sequence, type, body from events order by sequence'):
    print(*row)";
    let rows = Command::new("python3").args(["-c", query]).arg(store).output().unwrap();
    let rows = String::from_utf8(rows.stdout).unwrap();
    let (mut booted, mut ended) = (Vec::new(), 0);
    for row in rows.lines().filter(|row| row.contains(" vm.")) {
        let (_, rest) = row.split_once("vm_").unwrap();
        let vm: String = rest.chars().take_while(char::is_ascii_alphanumeric).collect();
        if row.contains(" vm.booted ") {
            booted.push(vm);
        } else {
            assert!(row.contains(" vm.ended ") && booted.contains(&vm), "{row}:\n{rows}");
            ended += 1;
        }
    }
    assert_eq!((booted.len(), ended), (vms, vms), "{rows}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_is_moved_during_a_boot_ends_none_of_its_vms() {
    let clock = Clock::make();
    let skep = clock.start(&[]).await;
    let request = json!({"count": 3, "ttl_ms": LONG_MS});
    let boot = skep.request(reqwest::Method::POST, "/api/swarm/boot").json(&request);
    let boot = tokio::spawn(send(boot));
    // The boot does not end while a VMM of it stands still.
    let mut stopped = Vec::new();
    eventually("a VM that is half made", async || {
        stopped = skep.stop_vmms_except(&[]);
        !stopped.is_empty()
    })
    .await;
    assert!(!boot.is_finished(), "the boot was over before one of its VMMs was stopped");
    clock.move_by(HOUR_S);
    stopped.into_iter().for_each(go_on);
    let vms = boot.await.unwrap().ok(201)["vms"].as_array().unwrap().clone();
    assert_shifted("the boot's arrival", time(&vms[0], "started_at"), 0);
    // One of a later boot ends by its time, so those of this one had occasion to.
    let brief = boot_one(&skep, BRIEF_MS).await;
    eventually("the end of a brief life", async || skep.get(&path_of(&brief)).await.status == 404).await;
    assert_eq!(skep.count().await, 3, "{}", skep.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_vm_is_handed_out_with_the_time_that_it_is() {
    let clock = Clock::make();
    let skep = clock.start(&["--pool-size", "1"]).await;
    for shift_s in [HOUR_S, -HOUR_S] {
        eventually("a parked VM", async || {
            skep.get("/api/swarm/status").await.ok(200)["pool"]["base"]["ready"] == 1
        })
        .await;
        clock.move_by(shift_s);
        let vm = boot_one(&skep, LONG_MS).await;
        assert_eq!(vm["boot"]["source"], "pool", "{vm}");
        assert_shifted("a parked guest's clock", time_inside(&skep, &vm).await, shift_s);
        assert_eq!(vm["boot"]["clock_step_ms"].as_f64().unwrap() > 0.0, shift_s > 0, "{vm}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_was_on_disk_for_a_day_has_the_time_that_it_is() {
    let clock = Clock::make();
    let skep = clock.start(&[]).await;
    let vms = skep.boot(2).await;
    let (vm, awake) = (&vms[0], &vms[1]);
    skep.post(&format!("{}/pause", path_of(vm)), &json!({"to": "disk"})).await.ok(200);
    clock.move_by(24 * HOUR_S);
    skep.post(&format!("{}/resume", path_of(vm)), &json!({})).await.ok(200);
    let resumed = skep.get(&path_of(vm)).await.ok(200);
    assert_shifted("the clock of a resumed guest", time_inside(&skep, &resumed).await, 24 * HOUR_S);
    assert_shifted("the resume", time(&resumed, "resumed_at"), 24 * HOUR_S);
    // The control: the clock of a guest that was not paused stays as it was.
    assert_shifted("the clock of another guest", time_inside(&skep, awake).await, 0);
}

/// A key ends by the clock on the wall, which is the machine's at the end.
async fn keys(clock: &Clock, skep: &Skep) {
    let ends = Timestamp::now() + SignedDuration::from_secs(HOUR_S / 2);
    let request = json!({"name": "half", "scopes": ["swarm:read"], "expires_at": ends.to_string()});
    let key = skep.post("/api/keys", &request).await.ok(201)["key"].as_str().unwrap().to_owned();
    for (shift_s, status) in [(0, 200), (HOUR_S, 403), (-HOUR_S, 200), (0, 200)] {
        clock.move_by(shift_s);
        let asked = skep.bare(reqwest::Method::GET, "/api/whoami").bearer_auth(&key);
        assert_eq!(send(asked).await.status, status, "{shift_s} s beside the clock");
    }
    // The times of creation and of the last use follow this clock, too.
    clock.move_by(HOUR_S);
    let made = skep.post("/api/keys", &json!({"name": "later", "role": "agent"})).await.ok(201);
    assert_shifted("a key", time(&made, "created_at"), HOUR_S);
    clock.move_by(0);
}
