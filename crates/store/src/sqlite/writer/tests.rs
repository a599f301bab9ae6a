use std::time::Duration;

use skep_api::ErrorCode;

use super::*;

type Answer = oneshot::Receiver<Result<usize, Error>>;

struct Fixture {
    _folder: tempfile::TempDir,
    file: Arc<DatabaseFile>,
    connection: Connection,
}

impl Fixture {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("skep.db");
        let file = Arc::new(DatabaseFile::locate_or_create(&path, Duration::from_millis(20)).unwrap());
        let connection = file.writer().unwrap();
        connection.execute_batch("CREATE TABLE words (word TEXT UNIQUE)").unwrap();
        Self { _folder: folder, file, connection }
    }

    fn words(&self) -> Vec<String> {
        let mut statement = self.connection.prepare("SELECT word FROM words ORDER BY word").unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    fn commit(&mut self, batch: Vec<Box<dyn Job>>) -> Result<(), Error> {
        let mut batch = batch;
        let committed = commit_batch(&mut self.connection, &self.file, &mut batch);
        batch.into_iter().for_each(|job| job.answer(committed.clone()));
        committed
    }
}

fn job(
    command: impl Fn(&Connection) -> Result<usize, SqliteError> + Send + 'static,
) -> (Box<dyn Job>, Answer) {
    let (reply, answer) = oneshot::channel();
    (Box::new(Command { command, outcome: None, notify: |_: &usize| (), reply }), answer)
}

fn insert(connection: &Connection, word: &str) -> Result<usize, SqliteError> {
    Ok(connection.execute("INSERT INTO words VALUES (?1)", [word])?)
}

fn count(connection: &Connection) -> usize {
    let count = connection.query_row("SELECT count(*) FROM words", [], |row| row.get::<_, u32>(0));
    count.unwrap() as usize
}

#[test]
fn a_command_that_fails_leaves_nothing_and_harms_no_other_of_its_batch() {
    let mut bench = Fixture::new();
    let (a, mut a_answer) = job(|c| insert(c, "a"));
    let (twice, mut twice_answer) = job(|c| insert(c, "half").and_then(|_| insert(c, "a")));
    let (refused, mut refused_answer) = job(|c| {
        insert(c, "refused")?;
        Err(Error::NameTaken { name: "refused".to_owned() }.into())
    });
    let (panics, mut panics_answer) = job(|c| {
        insert(c, "panicked").unwrap();
        panic!("on purpose")
    });
    let (b, mut b_answer) = job(|c| insert(c, "b"));
    bench.commit(vec![a, twice, refused, panics, b]).unwrap();
    assert_eq!(bench.words(), ["a", "b"]);
    assert_eq!(a_answer.try_recv().unwrap().unwrap(), 1);
    assert_eq!(b_answer.try_recv().unwrap().unwrap(), 1);
    for (answer, code) in [
        (&mut twice_answer, ErrorCode::Internal),
        (&mut refused_answer, ErrorCode::NameTaken),
        (&mut panics_answer, ErrorCode::Internal),
    ] {
        assert_eq!(answer.try_recv().unwrap().unwrap_err().code(), code);
    }
}

#[test]
fn a_rolled_back_transaction_fails_all_its_commands() {
    let mut bench = Fixture::new();
    let (lost, mut lost_answer) = job(|c| {
        // SQLite does the same when the disk is full.
        c.execute_batch("ROLLBACK")?;
        Err(SqliteError::Unavailable(Cause::new("disk full")))
    });
    let (a, mut a_answer) = job(|c| insert(c, "a"));
    let (b, mut b_answer) = job(|c| insert(c, "b"));
    bench.commit(vec![a, lost, b]).unwrap_err();
    assert!(bench.words().is_empty());
    for answer in [&mut a_answer, &mut lost_answer, &mut b_answer] {
        assert_eq!(answer.try_recv().unwrap().unwrap_err().code(), ErrorCode::StoreUnavailable);
    }
}

#[test]
fn a_database_that_was_deleted_takes_no_commands() {
    let mut bench = Fixture::new();
    std::fs::remove_file(bench.file.path()).unwrap();
    let (a, mut answer) = job(|c| insert(c, "a"));
    bench.commit(vec![a]).unwrap_err();
    assert_eq!(answer.try_recv().unwrap().unwrap_err().code(), ErrorCode::StoreUnavailable);
}

#[test]
fn waiting_commands_share_one_commit() {
    let Fixture { _folder, file, connection } = Fixture::new();
    let reader = Arc::new(std::sync::Mutex::new(file.reader().unwrap()));
    let (queue, commands) = mpsc::channel(QUEUE_CAPACITY);
    let thread = thread::spawn(move || write(connection, &file, commands, &()));

    let ((started, running), (open, gate)) = (std::sync::mpsc::channel(), std::sync::mpsc::channel());
    let (first, _answer) = job(move |_| {
        started.send(()).unwrap();
        gate.recv().unwrap();
        Ok(0)
    });
    queue.blocking_send(first).ok().unwrap();
    running.recv().unwrap();
    let mut answers = Vec::new();
    for i in 0..10 {
        let reader = Arc::clone(&reader);
        let (next, answer) = job(move |c| {
            insert(c, &format!("{i}"))?;
            Ok(count(&reader.lock().unwrap()))
        });
        queue.blocking_send(next).ok().unwrap();
        answers.push(answer);
    }
    open.send(()).unwrap();
    for answer in answers {
        assert_eq!(answer.blocking_recv().unwrap().unwrap(), 0, "an earlier command was committed alone");
    }
    assert_eq!(count(&reader.lock().unwrap()), 10);
    drop(queue);
    thread.join().unwrap();
}

#[test]
fn the_log_does_not_grow_with_what_is_written() {
    let Fixture { _folder, file, connection } = Fixture::new();
    connection.execute_batch("CREATE TABLE pages (page BLOB)").unwrap();
    let page: i64 = connection.query_row("PRAGMA page_size", [], |row| row.get(0)).unwrap();
    let log = file.path().with_extension("db-wal");
    let (queue, commands) = mpsc::channel(QUEUE_CAPACITY);
    let thread = thread::spawn(move || write(connection, &file, commands, &()));
    // Each command writes a third of LOG_PAGES, all together several times as much.
    let share = i64::from(CHECKPOINT_PAGES) / 3;
    for _ in 0..20 {
        let (next, answer) =
            job(move |c| Ok(c.execute("INSERT INTO pages VALUES (zeroblob(?1))", [share * page])?));
        queue.blocking_send(next).ok().unwrap();
        answer.blocking_recv().unwrap().unwrap();
    }
    let pages = std::fs::metadata(log).unwrap().len() / u64::try_from(page).unwrap();
    assert!(pages < 2 * u64::try_from(CHECKPOINT_PAGES).unwrap(), "the log has {pages} pages");
    drop(queue);
    thread.join().unwrap();
}
