//! Tests of backups of a store in use, of restores, and of refused copies.

use std::{fs, io::Seek, os::unix::fs::PermissionsExt, sync::Arc};

use rusqlite::Connection;
use skep_api::{ErrorCode, Scope};
use tempfile::TempDir;

use super::*;
use crate::{
    EventScope, EventStore, KeyStore, SqliteSettings, SqliteStore, TicketStore,
    sqlite::{inspect::inspect, migrations::LATEST},
    suite::{
        admin_key, all_events, default_account, moment, new_key,
        tickets::{change, claim, create_ticket},
    },
};

struct Fixture {
    folder: TempDir,
}

impl Fixture {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    fn database(&self) -> PathBuf {
        self.folder.path().join("skep.db")
    }

    async fn open(&self) -> SqliteStore {
        SqliteStore::open(SqliteSettings::at(self.database())).await.unwrap()
    }

    /// Creates a store with an account and a key, and closes it.
    async fn filled(self) -> Self {
        let store = self.open().await;
        default_account(&store).await;
        store.ensure_admin_key(admin_key(1)).await.unwrap();
        drop(store);
        self
    }

    /// Names of the files in the directory.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn restore(&self, mut copy: &File) -> Result<Restored> {
        copy.rewind().unwrap();
        restore(&self.database(), &mut copy, Path::new("copy.db"))
    }

    /// A backup with modifications.
    fn copy_with(&self, alter: impl FnOnce(&Connection)) -> File {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let mut made = backup(&self.database()).unwrap();
        io::copy(&mut made.file, &mut File::create(&path).unwrap()).unwrap();
        alter(&Connection::open(&path).unwrap());
        File::open(&path).unwrap()
    }
}

async fn keys_of(store: &SqliteStore) -> Vec<String> {
    let account = default_account(store).await.id;
    let query = crate::ListKeys { account, scopes: Scope::ALL.to_vec(), before: None, limit: 1000 };
    let mut names: Vec<String> =
        store.list_keys(query).await.unwrap().keys.into_iter().map(|record| record.key.name).collect();
    names.sort();
    names
}

#[tokio::test]
async fn a_backup_of_a_store_in_use_has_all_that_was_answered() {
    let fixture = Fixture::new().filled().await;
    let store = Arc::new(fixture.open().await);
    let account = default_account(&*store).await.id;
    let writer = {
        let store = Arc::clone(&store);
        tokio::spawn(async move {
            for i in 0..200_u8 {
                store.create_key(new_key(account, &format!("key-{i:03}"), i.wrapping_add(10))).await.unwrap();
                if i == 50 {
                    break;
                }
            }
        })
    };
    for _ in 0..3 {
        let before = keys_of(&store).await;
        let database = fixture.database();
        let made = tokio::task::spawn_blocking(move || backup(&database)).await.unwrap().unwrap();
        let other = Fixture::new();
        other.restore(&made.file).unwrap();
        let kept = keys_of(&other.open().await).await;
        assert!(before.iter().all(|name| kept.contains(name)), "{before:?} {kept:?}");
        // The backup is consistent: it contains a prefix of the written keys.
        let written: Vec<_> = kept.iter().filter(|name| name.starts_with("key-")).collect();
        assert!(written.iter().enumerate().all(|(i, name)| **name == format!("key-{i:03}")), "{kept:?}");
    }
    writer.await.unwrap();
    assert!(!fixture.names().iter().any(|name| name.contains("backup")), "{:?}", fixture.names());
}

#[tokio::test]
async fn a_restore_begins_a_new_epoch_and_keeps_the_old_store() {
    let fixture = Fixture::new().filled().await;
    let made = backup(&fixture.database()).unwrap();
    assert_eq!((made.version, made.size_bytes), (LATEST, made.file.metadata().unwrap().len()));
    let store = fixture.open().await;
    let account = default_account(&store).await.id;
    store.create_key(new_key(account, "later", 7)).await.unwrap();
    let epoch = all_events(&store).await[0].epoch.clone();
    drop(store);

    let first = fixture.restore(&made.file).unwrap();
    let old = first.old.unwrap();
    let second = fixture.restore(&made.file).unwrap();
    assert!(first.epoch != epoch && second.epoch != first.epoch, "{epoch} {} {}", first.epoch, second.epoch);
    assert_ne!(second.old.as_ref(), Some(&old), "what was kept is never replaced");
    let mode = fs::metadata(fixture.database()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let store = fixture.open().await;
    assert_eq!(keys_of(&store).await, ["admin"]);
    store.create_key(new_key(account, "afterwards", 8)).await.unwrap();
    let events = all_events(&store).await;
    assert_eq!(events.last().unwrap().epoch, second.epoch);
    drop(store);
    let kept = SqliteStore::open(SqliteSettings::at(old)).await.unwrap();
    assert_eq!(keys_of(&kept).await, ["admin", "later"]);
}

#[tokio::test]
async fn a_restore_gives_back_what_was_held_once() {
    let fixture = Fixture::new().filled().await;
    let store = fixture.open().await;
    let account = default_account(&store).await.id;
    let held = create_ticket(&store, account, Vec::new()).await;
    store.change_ticket(change(account, held, claim("agent-7", None))).await.unwrap();
    let before = all_events(&store).await.last().unwrap().sequence;
    drop(store);
    let made = backup(&fixture.database()).unwrap();
    let Restored { epoch, .. } = fixture.restore(&made.file).unwrap();
    let store = fixture.open().await;
    let ticket = store.ticket(account, held, moment(5)).await.unwrap();
    assert_eq!((ticket.status.as_str(), ticket.attempt, ticket.ready), ("pending", 1, true));
    let span = store.event_span(EventScope::All).await.unwrap();
    assert_eq!((&span.epoch, span.epoch_start), (&epoch, before));
    let after: Vec<_> = store.events_after(before, 100).await.unwrap();
    let events: Vec<_> = after.iter().map(|event| (event.kind.as_str(), event.epoch.as_str())).collect();
    assert_eq!(events, [("ticket.released", epoch.as_str()), ("ticket.ready", epoch.as_str())]);
    let history = crate::ReadTicketHistory { account, id: held, limit: 100, after: None };
    let attempts = store.ticket_history(history).await.unwrap().attempts;
    assert_eq!(attempts[0].outcome.map(|outcome| outcome.as_str()), Some("released"));
    // Opening the store a second time does not release tickets again.
    store.change_ticket(change(account, held, claim("agent-8", None))).await.unwrap();
    drop(store);
    let store = fixture.open().await;
    assert_eq!(store.ticket(account, held, moment(5)).await.unwrap().status.as_str(), "in_progress");
    assert!(problems_of(&fixture).is_empty());
}

fn problems_of(fixture: &Fixture) -> Vec<String> {
    inspect(&fixture.database()).unwrap().problems
}

#[tokio::test]
async fn a_log_that_was_not_written_back_is_kept_with_its_store() {
    let fixture = Fixture::new().filled().await;
    let made = backup(&fixture.database()).unwrap();
    // Copies the database and WAL while they are open, as after a crash.
    let (crashed, store) = (Fixture::new(), fixture.open().await);
    let account = default_account(&store).await.id;
    store.create_key(new_key(account, "in-the-log", 7)).await.unwrap();
    for suffix in ["", "-wal"] {
        fs::copy(with_suffix(&fixture.database(), suffix), with_suffix(&crashed.database(), suffix)).unwrap();
    }
    drop(store);
    let old = crashed.restore(&made.file).unwrap().old.unwrap();
    assert_eq!(keys_of(&crashed.open().await).await, ["admin"]);
    let kept = SqliteStore::open(SqliteSettings::at(old)).await.unwrap();
    assert_eq!(keys_of(&kept).await, ["admin", "in-the-log"]);
}

#[tokio::test]
async fn an_invalid_copy_is_refused_and_changes_nothing() {
    let fixture = Fixture::new().filled().await;
    let newer = LATEST + 7;
    let none = File::open("/dev/null").unwrap();
    let letter = {
        let path = fixture.folder.path().join("letter");
        fs::write(&path, "a letter, not a database. ".repeat(500)).unwrap();
        File::open(path).unwrap()
    };
    let cut = fixture.copy_with(|_| {});
    let cut_short = tempfile::tempfile().unwrap();
    io::copy(&mut (&cut).take(9000), &mut &cut_short).unwrap();
    let copies = [
        (none, ErrorCode::InvalidValue, "no version"),
        (letter, ErrorCode::InvalidValue, "not a database"),
        (cut_short, ErrorCode::InvalidValue, ""),
        (
            fixture.copy_with(|c| c.pragma_update(None, "user_version", newer).unwrap()),
            ErrorCode::StoreUnavailable,
            "version",
        ),
        (fixture.copy_with(|c| c.execute_batch("DROP TABLE keys").unwrap()), ErrorCode::InvalidValue, "keys"),
        (
            fixture.copy_with(|c| {
                let sql = "CREATE TRIGGER evil AFTER INSERT ON keys BEGIN DELETE FROM events; END";
                c.execute_batch(sql).unwrap();
            }),
            ErrorCode::InvalidValue,
            "evil",
        ),
        (
            fixture.copy_with(|c| c.execute_batch("PRAGMA foreign_keys = 0; DELETE FROM accounts").unwrap()),
            ErrorCode::InvalidValue,
            "accounts",
        ),
    ];
    let before = (fixture.names(), fs::read(fixture.database()).unwrap());
    for (copy, code, word) in copies {
        let error = fixture.restore(&copy).unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        assert!(error.to_string().contains("copy.db") && error.to_string().contains(word), "{word}: {error}");
        if code == ErrorCode::StoreUnavailable {
            assert!(error.to_string().contains(&format!("version {newer}")), "{error}");
        }
        assert_eq!((fixture.names(), fs::read(fixture.database()).unwrap()), before);
    }
    // Control: the unmodified copy is accepted.
    fixture.restore(&cut).unwrap();
}

#[tokio::test]
async fn a_copy_with_a_trigger_view_or_table_that_is_not_ours_is_refused() {
    let fixture = Fixture::new().filled().await;
    let evil = "AFTER DELETE ON keys BEGIN DELETE FROM events; END";
    let changed = format!("DROP TRIGGER keys_go; CREATE TRIGGER keys_go {evil}");
    // SQLite refuses a name that begins with `sqlite_`, but not a file that has it.
    let hidden = format!(
        "CREATE TRIGGER evil {evil};
         PRAGMA writable_schema = ON;
         UPDATE sqlite_schema SET name = 'sqlite_evil', sql = replace(sql, 'evil', 'sqlite_evil') WHERE name = 'evil'"
    );
    let [view, table] =
        ["VIEW evil AS SELECT * FROM keys", "TABLE evil (x)"].map(|sql| format!("CREATE {sql}"));
    for (sql, name) in [(changed, "keys_go"), (hidden, "sqlite_evil"), (view, "evil"), (table, "evil")] {
        let copy = fixture.copy_with(|c| c.execute_batch(&sql).unwrap());
        let error = fixture.restore(&copy).unwrap_err();
        assert_eq!(error.code(), ErrorCode::InvalidValue, "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
    // The control.
    fixture.restore(&fixture.copy_with(|_| {})).unwrap();
}

#[tokio::test]
async fn concurrent_restores_are_refused() {
    let fixture = Fixture::new().filled().await;
    let held = StagingFile::create_locked(beside(&fixture.database(), "restoring")).unwrap();
    let good = fixture.copy_with(|_| {});
    let error = fixture.restore(&good).unwrap_err();
    let Error::Unavailable { source, .. } = &error else { panic!("{error:?}") };
    assert!(source.to_string().contains("another process"), "{source}");
    drop(held);
    fixture.restore(&good).unwrap();
    // Files that a killed backup or restore left are overwritten.
    fs::write(beside(&fixture.database(), "restoring"), "half").unwrap();
    fs::write(beside(&fixture.database(), "backup"), "half").unwrap();
    let made = backup(&fixture.database()).unwrap();
    fixture.restore(&made.file).unwrap();
}

#[tokio::test]
async fn an_inspection_finds_damage() {
    let fixture = Fixture::new().filled().await;
    let found = inspect(&fixture.database()).unwrap();
    assert_eq!((found.version, found.problems.len()), (LATEST, 0), "{found:?}");
    let connection = Connection::open(fixture.database()).unwrap();
    connection.execute_batch("PRAGMA foreign_keys = 0; DELETE FROM accounts").unwrap();
    drop(connection);
    let found = inspect(&fixture.database()).unwrap();
    assert!(found.problems[0].contains("accounts"), "{found:?}");
    assert!(inspect(&fixture.folder.path().join("none.db")).is_err());
}
