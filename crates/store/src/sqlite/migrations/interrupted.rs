//! Test: a migration is killed while part of it is in SQLite's files.

use std::{
    env, fs,
    process::{Command, Stdio},
    thread::sleep,
    time::{Duration, Instant},
};

use rusqlite_migration::{M, Migrations};

use super::*;
use crate::{
    SqliteSettings, SqliteStore,
    sqlite::file::DatabaseFile,
    suite::{admin_key, default_account},
};

/// Environment variable with the path of the database, for the process that the test kills.
const VICTIM: &str = "SKEP_TEST_MIGRATION_VICTIM";
/// WAL size in bytes at which the process is killed: more than SQLite keeps in memory.
const KILL_AT_WAL_BYTES: u64 = 8 << 20;

/// The process that the next test kills. Does nothing in an ordinary test run.
#[test]
fn victim() {
    let Some(database) = env::var_os(VICTIM) else { return };
    let first = include_str!("0001_accounts_keys_vms_events.sql");
    let endless = format!(
        "{first}; CREATE TABLE endless (x TEXT);
         WITH RECURSIVE n (x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)
         INSERT INTO endless SELECT hex(randomblob(500)) FROM n"
    );
    let file = DatabaseFile::locate_or_create(database.as_ref(), Duration::from_secs(5)).unwrap();
    let mut connection = file.writer().unwrap();
    Migrations::new(vec![M::up(&endless)]).to_latest(&mut connection).unwrap();
}

#[tokio::test]
async fn a_start_after_a_killed_migration_migrates() {
    let folder = tempfile::tempdir().unwrap();
    let database = folder.path().join("skep.db");
    let mut victim = Command::new(env::current_exe().unwrap());
    victim.args(["--exact", "sqlite::migrations::interrupted::victim"]).env(VICTIM, &database);
    let mut victim = victim.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    let log = folder.path().join("skep.db-wal");
    while fs::metadata(&log).map_or(0, |log| log.len()) < KILL_AT_WAL_BYTES {
        assert!(victim.try_wait().unwrap().is_none(), "the migration ended by itself");
        assert!(begun.elapsed() < Duration::from_secs(120), "the migration never began");
        sleep(Duration::from_millis(5));
    }
    victim.kill().unwrap();
    victim.wait().unwrap();

    let store = SqliteStore::open(SqliteSettings::at(&database)).await.unwrap();
    default_account(&store).await;
    crate::KeyStore::ensure_admin_key(&store, admin_key(1)).await.unwrap();
    drop(store);
    let found = crate::sqlite::inspect(&database).unwrap();
    assert_eq!(
        (found.version, found.problems),
        (LATEST, Vec::<String>::new()),
        "nothing is left of the half"
    );
}
