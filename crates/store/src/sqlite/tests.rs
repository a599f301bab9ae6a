//! Runs the suite on SQLite, and tests properties of files: permissions, locks, disappearance, damage and versions.

use std::{fs, os::unix::fs::PermissionsExt, path::PathBuf, sync::Arc, time::Duration};

use jiff::Timestamp;
use rusqlite::Connection;
use skep_api::{
    ErrorCode, TemplateId, VmName,
    swarm::{EndReason, PausedBy, ResumedBy},
};
use tempfile::TempDir;

use super::{key_cache::Lookup, *};
use crate::suite::{admin_key, all_events, boot, booted, default_account, end, moment, new_key, revocation};
use crate::{
    AccountStore, HealthStore, KeyStore, KeyUse, PauseChange, RecordPause, SessionStore, SetAccountRoots,
    Store, VmAttributes, VmBooted, VmOnDisk, VmStore,
};

async fn fresh() -> (TempDir, Arc<dyn Store>) {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(settings(&folder)).await.unwrap();
    (folder, Arc::new(store))
}

fn database(folder: &TempDir) -> PathBuf {
    folder.path().join("skep.db")
}

fn settings(folder: &TempDir) -> SqliteSettings {
    SqliteSettings { busy_timeout: Duration::from_millis(50), ..SqliteSettings::at(database(folder)) }
}

async fn refused(settings: SqliteSettings) -> Error {
    SqliteStore::open(settings).await.err().expect("opening was to be refused")
}

crate::store_suite!(fresh);

#[tokio::test]
async fn opening_again_finds_all_of_it() {
    let (folder, store) = fresh().await;
    let account = default_account(&*store).await;
    let admin = store.ensure_admin_key(admin_key(1)).await.unwrap();
    let (alive, ended) = (booted(account.id, 3), booted(account.id, 4));
    store.record_boots(boot(vec![alive.clone(), ended.clone()])).await.unwrap();
    store.record_end(end(ended.id, EndReason::Expired, 600)).await.unwrap();
    let session = crate::suite::sessions::session(admin.key.id, 1, 5);
    store.create_session(session).await.unwrap();
    let events = all_events(&*store).await;
    drop(store);

    let store = SqliteStore::open(settings(&folder)).await.unwrap();
    assert_eq!(default_account(&store).await, account);
    assert_eq!(store.ensure_admin_key(admin_key(1)).await.unwrap(), admin);
    assert_eq!(store.live_vms().await.unwrap().into_iter().map(|r| r.vm).collect::<Vec<_>>(), [alive]);
    assert_eq!(all_events(&store).await, events, "the epoch too stays");
    assert!(store.session(session.hash).await.unwrap().is_some());
}

#[tokio::test]
async fn vms_on_disk_are_read_beside_a_server() {
    let (folder, store) = fresh().await;
    let account = default_account(&*store).await.id;
    let name: Option<VmName> = Some("sleeper".parse().unwrap());
    let named = booted(account, 3);
    let attributes = VmAttributes { name: name.clone(), ..named.attributes.clone() };
    let named = VmBooted { attributes, ..named };
    let others = [booted(account, 4), booted(account, 5), booted(account, 6)];
    store.record_boots(boot([std::slice::from_ref(&named), &others[..]].concat())).await.unwrap();
    let to_disk = |snapshot| PauseChange::PausedToDisk { snapshot, by: PausedBy::Request };
    let pause = async |vm, change| {
        let command = RecordPause { vm, change, at: moment(600), request_id: None };
        store.record_pause(command).await.unwrap();
    };
    let snapshot = TemplateId::generate();
    pause(named.id, to_disk(snapshot)).await;
    for other in &others {
        pause(other.id, to_disk(TemplateId::generate())).await;
    }
    pause(others[0].id, PauseChange::Restored { pid: 7, by: ResumedBy::Request, memory: true }).await;
    pause(others[1].id, PauseChange::Runs { by: ResumedBy::Request }).await;
    store.record_end(end(others[2].id, EndReason::Deleted, 700)).await.unwrap();
    assert_eq!(vms_on_disk(&database(&folder)).unwrap(), [VmOnDisk { vm: named.id, name, snapshot }]);
    assert_eq!(vms_on_disk(&folder.path().join("none.db")).unwrap(), []);
}

#[tokio::test]
async fn only_its_owner_can_read_the_database() {
    let (folder, store) = fresh().await;
    default_account(&*store).await;
    let names = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
    let modes: Vec<_> = names.map(|p| (fs::metadata(&p).unwrap().permissions().mode() & 0o777, p)).collect();
    assert_eq!(modes.len(), 3, "database, log and index of the log: {modes:?}");
    assert!(modes.iter().all(|(mode, _)| *mode == 0o600), "{modes:?}");
}

#[test]
fn every_commit_waits_for_the_disk() {
    let folder = tempfile::tempdir().unwrap();
    let file = DatabaseFile::locate_or_create(&database(&folder), Duration::from_millis(50)).unwrap();
    let writer = file.writer().unwrap();
    let pragma = |name| writer.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).unwrap();
    assert_eq!((pragma("synchronous"), pragma("foreign_keys")), (2, 1));
    let mode: String = writer.pragma_query_value(None, "journal_mode", |row| row.get(0)).unwrap();
    assert_eq!(mode, "wal");
}

#[tokio::test]
async fn a_newer_database_is_refused_by_its_version() {
    let (folder, store) = fresh().await;
    drop(store);
    let newer = migrations::LATEST + 7;
    let raw = Connection::open(database(&folder)).unwrap();
    raw.pragma_update(None, "user_version", newer).unwrap();
    drop(raw);
    let error = refused(settings(&folder)).await;
    assert!(matches!(error, Error::NewerVersion { found, .. } if found == newer), "{error:?}");
    assert!(error.to_string().contains(&format!("version {newer}")), "{error}");
}

#[tokio::test]
async fn a_file_that_is_not_a_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(database(&folder), "a letter, not a database. ".repeat(100)).unwrap();
    let missing = SqliteSettings::at(folder.path().join("no/such/folder/skep.db"));
    let directory = SqliteSettings::at(folder.path());
    for settings in [settings(&folder), missing, directory] {
        let path = settings.path.display().to_string();
        let error = refused(settings).await;
        assert_eq!(error.code(), ErrorCode::StoreUnavailable, "{error:?}");
        assert!(error.to_string().contains(&path), "{error}");
    }
}

#[tokio::test]
async fn a_locked_database_is_unavailable_until_the_lock_is_gone() {
    let (folder, store) = fresh().await;
    let account = default_account(&*store).await.id;
    let other = Connection::open(database(&folder)).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = store.create_key(new_key(account, "ci", 1)).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::StoreUnavailable, "{error:?}");
    let ping = store.ping(Duration::from_secs(30)).await.unwrap_err();
    assert_eq!(ping.code(), ErrorCode::StoreUnavailable);
    store.account(account).await.expect("reading goes on");

    other.execute_batch("ROLLBACK").unwrap();
    store.create_key(new_key(account, "ci", 1)).await.unwrap();
    assert_eq!(all_events(&*store).await.len(), 1, "the refused attempt left nothing");
}

#[tokio::test]
async fn a_ping_does_not_wait_beyond_its_limit() {
    let (folder, store) = fresh().await;
    let patient = SqliteStore::open(SqliteSettings::at(database(&folder))).await.unwrap();
    drop(store);
    let other = Connection::open(database(&folder)).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = patient.ping(Duration::from_millis(20)).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::StoreUnavailable);
    let Error::Unavailable { source, .. } = error else { panic!("{error:?}") };
    assert!(source.to_string().contains("20 ms"), "{source}");
    other.execute_batch("ROLLBACK").unwrap();
}

#[tokio::test]
async fn a_database_that_vanished_is_unavailable() {
    let (folder, store) = fresh().await;
    let account = default_account(&*store).await.id;
    drop(folder);
    for error in [
        store.create_key(new_key(account, "ci", 1)).await.unwrap_err(),
        store.ping(Duration::from_secs(30)).await.unwrap_err(),
    ] {
        assert_eq!(error.code(), ErrorCode::StoreUnavailable, "{error:?}");
    }
}

#[tokio::test]
async fn another_file_in_its_place_is_not_read() {
    let (folder, store) = fresh().await;
    let account = default_account(&*store).await.id;
    let elsewhere = folder.path().join("elsewhere");
    // No read connection is open yet, so the first one would open the new file.
    fs::rename(database(&folder), &elsewhere).unwrap();
    fs::write(database(&folder), "").unwrap();
    let error = store.account(account).await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::StoreUnavailable, "{error:?}");
    fs::rename(&elsewhere, database(&folder)).unwrap();
    store.account(account).await.unwrap();
}

#[tokio::test]
async fn a_full_disk_loses_nothing_that_was_answered() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(&folder);
    let file = Arc::new(DatabaseFile::locate_or_create(&settings.path, settings.busy_timeout).unwrap());
    let mut connection = file.writer().unwrap();
    migrations::migrate(&mut connection).unwrap();
    let pages: i64 = connection.pragma_query_value(None, "page_count", |row| row.get(0)).unwrap();
    connection.pragma_update(None, "max_page_count", pages + 4).unwrap();
    let store = SqliteStore::start(connection, file, Arc::new(())).unwrap();

    let account = default_account(&store).await.id;
    let mut answered = Vec::new();
    let error = loop {
        let vm = booted(account, 3);
        match store.record_boots(boot(vec![vm.clone()])).await {
            Ok(()) => answered.push(vm.id),
            Err(error) => break error,
        }
        assert!(answered.len() < 10_000, "the disk never fills");
    };
    assert_eq!(error.code(), ErrorCode::StoreUnavailable, "{error:?}");
    let kept: Vec<_> = store.live_vms().await.unwrap().into_iter().map(|record| record.vm.id).collect();
    answered.sort_unstable();
    assert_eq!(kept, answered);
    assert_eq!(all_events(&store).await.len(), answered.len());
}

/// Compares the sizes that retention uses with the actual growth of the file.
#[tokio::test]
async fn counted_sizes_of_history_match_the_growth_of_the_file() {
    let (folder, store) = fresh().await;
    let account = default_account(&*store).await.id;
    let raw = Connection::open(database(&folder)).unwrap();
    let size = || {
        raw.execute_batch("DELETE FROM vms; VACUUM; PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        fs::metadata(database(&folder)).unwrap().len()
    };
    let empty = size();
    for wave in 0..8 {
        store.record_audit(crate::suite::audit::entries(account, 500, 500 * wave)).await.unwrap();
    }
    let with_audit = size();
    for _ in 0..8 {
        store.record_boots(boot((0..250).map(|pid| booted(account, pid)).collect())).await.unwrap();
    }
    let whole = size();
    for (name, grown) in [("audit", with_audit - empty), ("events", whole - with_audit)] {
        let counted = retention::volume(&raw, name).unwrap();
        assert!(counted > grown / 2 && counted < grown * 2, "{name}: counted {counted}, grown by {grown}");
    }
}

#[tokio::test]
async fn a_key_that_another_process_revokes_is_known_as_revoked_at_once() {
    let (folder, store) = fresh().await;
    let account = default_account(&*store).await.id;
    let elsewhere = SqliteStore::open(settings(&folder)).await.unwrap();
    let keys = [new_key(account, "first", 7), new_key(account, "second", 8)];
    let mut ids = Vec::new();
    for key in &keys {
        ids.push(store.create_key(key.clone()).await.unwrap().key.id);
    }
    // Twice, so that the second lookup is served by the cache.
    for key in keys.iter().chain(&keys) {
        let found = store.key_by_hash(key.hash).await.unwrap().unwrap();
        assert_eq!(found.record.key.revoked_at, None);
    }
    elsewhere.revoke_key(revocation(account, ids[0], 5)).await.unwrap();
    // The cache may miss commits of other processes for this long.
    tokio::time::sleep(2 * key_cache::CHECK_INTERVAL).await;
    let revoked = store.key_by_hash(keys[0].hash).await.unwrap().unwrap();
    assert!(revoked.record.key.revoked_at.is_some(), "{revoked:?}");
    let other = store.key_by_hash(keys[1].hash).await.unwrap().unwrap();
    assert_eq!(other.record.key.revoked_at, None);
}

#[tokio::test]
async fn a_key_that_was_read_before_a_commit_is_not_cached_after_it() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(&folder);
    let store = SqliteStore::open(settings.clone()).await.unwrap();
    let account = default_account(&store).await.id;
    let new = new_key(account, "old", 7);
    let id = store.create_key(new.clone()).await.unwrap().key.id;

    let file = DatabaseFile::locate(&settings.path, settings.busy_timeout).unwrap();
    let known = KeyCache::new(&file, CommitCounter::new(Arc::new(()), watch::channel(0).0)).unwrap();
    let Lookup::Miss(version) = known.look_up(&new.hash) else { panic!("it was never presented") };
    let old = store.key_by_hash(new.hash).await.unwrap().unwrap();
    store.revoke_key(revocation(account, id, 5)).await.unwrap();
    // For this cache, the store is another process.
    tokio::time::sleep(2 * key_cache::CHECK_INTERVAL).await;
    assert!(matches!(known.look_up(&new.hash), Lookup::Miss(now) if now != version));
    known.insert(new.hash, old.clone(), version);
    let Lookup::Miss(version) = known.look_up(&new.hash) else { panic!("the old record was kept") };
    known.insert(new.hash, old, version);
    assert!(matches!(known.look_up(&new.hash), Lookup::Hit(_)), "what is kept is found");
}

#[tokio::test]
async fn only_changes_of_keys_and_accounts_clear_the_key_cache() {
    let folder = tempfile::tempdir().unwrap();
    let settings = settings(&folder);
    let store = SqliteStore::open(settings.clone()).await.unwrap();
    let account = default_account(&store).await.id;
    let (new, other) = (new_key(account, "new", 7), new_key(account, "other", 8));
    store.create_key(new.clone()).await.unwrap();
    let other = store.create_key(other).await.unwrap().key.id;
    let file = DatabaseFile::locate(&settings.path, settings.busy_timeout).unwrap();
    let known = KeyCache::new(&file, CommitCounter::new(Arc::new(()), watch::channel(0).0)).unwrap();
    let record = store.key_by_hash(new.hash).await.unwrap().unwrap();
    let look_up = async || {
        tokio::time::sleep(2 * key_cache::CHECK_INTERVAL).await;
        let found = known.look_up(&new.hash);
        if let Lookup::Miss(version) = found {
            known.insert(new.hash, record.clone(), version);
        }
        matches!(found, Lookup::Hit(_))
    };
    assert!(!look_up().await && look_up().await);

    crate::suite::tickets::create_ticket(&store, account, Vec::new()).await;
    store.record_boots(boot(vec![booted(account, 3)])).await.unwrap();
    assert!(look_up().await, "neither tickets nor VMs change a key");

    let at = Timestamp::from_second(9).unwrap();
    store.record_key_uses(vec![KeyUse { id: other, at }]).await.unwrap();
    assert!(!look_up().await && look_up().await, "a key was used");
    store.revoke_key(revocation(account, other, 5)).await.unwrap();
    assert!(!look_up().await && look_up().await, "a key was revoked");
    let roots = SetAccountRoots { account, roots: vec!["/srv/other".to_owned()] };
    store.set_account_roots(roots).await.unwrap();
    assert!(!look_up().await && look_up().await, "an account was changed");
}

#[tokio::test]
async fn the_counters_are_true_whatever_is_done_and_a_wrong_one_is_found() {
    use crate::suite::{ticket_model, tickets};

    let (folder, store) = fresh().await;
    ticket_model::try_concurrent_sequences(Arc::clone(&store), 8).await;
    tickets::what_a_finished_ticket_once_waited_for_may_go(Arc::clone(&store)).await;
    let problems = || inspect(&database(&folder)).unwrap().problems;
    assert_eq!(problems(), Vec::<String>::new());

    let account = default_account(&*store).await.id;
    let need = tickets::create_ticket(&*store, account, vec![]).await;
    let id = tickets::create_ticket(&*store, account, vec![skep_tickets::Dependency::Ticket(need)]).await;
    let raw = Connection::open(database(&folder)).unwrap();
    for (counted, found) in [(0, true), (1, false), (2, true)] {
        let sql = "UPDATE tickets SET unmet = ?2, ready_at = CASE WHEN ?2 = 0 THEN 1 END WHERE id = ?1";
        raw.execute(sql, (id.to_string(), counted)).unwrap();
        let problems = problems();
        assert_eq!(problems.len(), usize::from(found), "{problems:?}");
        let expected = format!("`{id}` counts {counted} open dependencies and has 1");
        assert!(problems.iter().all(|problem| problem.contains(&expected)), "{problems:?}");
    }
}

#[tokio::test]
async fn a_wrong_index_of_labels_and_a_wrong_count_are_found() {
    let (folder, store) = fresh().await;
    let account = default_account(&*store).await.id;
    let need = crate::suite::tickets::create_ticket(&*store, account, vec![]).await;
    let needs = vec![skep_tickets::Dependency::Ticket(need)];
    let id = crate::suite::tickets::create_ticket(&*store, account, needs).await;
    let problems = || inspect(&database(&folder)).unwrap().problems;
    let raw = Connection::open(database(&folder)).unwrap();
    raw.execute("UPDATE tickets SET labels = '[\"a\"]' WHERE id = ?1", [id.to_string()]).unwrap();
    assert_eq!(problems(), Vec::<String>::new());
    for (sql, found) in [
        ("UPDATE ticket_labels SET stage = 1 WHERE ticket = ?1 AND label = 'a'", true),
        ("UPDATE ticket_labels SET stage = 0 WHERE ticket = ?1 AND label = 'a'", false),
        ("DELETE FROM ticket_labels WHERE ticket = ?1", true),
        ("UPDATE tickets SET labels = NULL WHERE id = ?1", false),
    ] {
        raw.execute(sql, [id.to_string()]).unwrap();
        let problems = problems();
        assert_eq!(problems.len(), usize::from(found), "{sql}: {problems:?}");
        let expected = format!("`{id}` is not in the index of label `a`");
        assert!(problems.iter().all(|problem| problem.contains(&expected)), "{problems:?}");
    }

    for (sql, found) in [
        ("UPDATE ticket_counts SET tickets = tickets + 1 WHERE stage = 0 AND account = ?1", true),
        ("UPDATE ticket_counts SET tickets = tickets - 1 WHERE stage = 0 AND account = ?1", false),
        ("UPDATE tickets SET ready_at = NULL WHERE account = ?1", true),
    ] {
        raw.execute(sql, [account.to_string()]).unwrap();
        let problems = problems();
        assert_eq!(problems.len(), usize::from(found), "{sql}: {problems:?}");
        let expected = format!("of account `{account}` are not those of its tickets");
        assert!(problems.iter().all(|problem| problem.contains(&expected)), "{problems:?}");
    }
}

#[tokio::test]
async fn a_store_whose_readers_do_not_answer_is_unavailable() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(settings(&folder)).await.unwrap();
    store.ping(Duration::from_secs(30)).await.unwrap();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let released = Arc::new(std::sync::Mutex::new(released));
    let mut busy: Vec<_> = (0..16)
        .map(|_| {
            let released = Arc::clone(&released);
            Box::pin(store.readers.run(move |_| Ok(released.lock().unwrap().recv().is_err())))
        })
        .collect();
    for query in &mut busy {
        assert!(futures_util::FutureExt::now_or_never(query).is_none());
    }
    let away = store.ping(Duration::from_millis(100)).await.unwrap_err();
    assert_eq!(away.code(), skep_api::ErrorCode::StoreUnavailable, "{away}");
    drop(release);
    for query in busy {
        query.await.unwrap();
    }
    store.ping(Duration::from_secs(30)).await.unwrap();
}
