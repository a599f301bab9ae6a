//! Prepared shells behave exactly like newly started ones.

use std::{
    collections::BTreeMap,
    path::Path,
    time::{Duration, Instant},
};

use skep_api::exec::{ExecOutcome, RunCommand, Stdin};

use crate::fixture::{Fixture, request};

/// Commands that print each property which is set before a shell starts.
const QUESTIONS: &[&str] = &[
    "",
    " ",
    "#",
    "echo out; echo err >&2; exit 3",
    "echo $0 $# \"$@\" $-",
    "-x",
    "-c 'echo'",
    "--",
    "nosuchcommand",
    "/no/such",
    "/etc",
    ". /no/such",
    "if",
    "echo 'unterminated",
    "echo )",
    "foo bar(",
    "echo ${x?unset}; echo not reached",
    "exec nosuchcommand",
    "exec echo replaced",
    "kill -9 $$",
    "kill -TERM $$; echo not reached",
    "kill -SEGV $$",
    "true; sh -c 'kill -9 $$'",
    "sh -c 'kill -9 $$'",
    "sh -c 'kill -9 $$'; true",
    "ulimit -c 0; sh -c 'kill -ABRT $$'",
    "trap 'echo trapped' USR1; kill -USR1 $$; echo after",
    "trap 'echo bye' EXIT; false",
    "(exit 3); echo $?; false & wait $!; echo $?",
    "echo a | tr a b; echo $(echo c)",
    "echo $PPID; [ $$ -gt 1 ] && [ -d /proc/$$ ] && echo a process",
    // A shell that waits for a processor is running on record, and not sleeping.
    "set -- $(sed 's/.*) //' /proc/$$/stat); [ $3 = $$ ] && [ $4 = $$ ] && echo $1 $2 $5 $6 | tr RD SS",
    // A child has the name of its program only after its `exec`.
    "sleep 1000 & until pgrep -P $$ sleep > /dev/null; do :; done; pgrep -P $$ -c sleep; exec 2> /dev/null; \
        kill $!; wait $!; echo $?",
    "umask; ulimit -a; nice; cat /proc/$$/oom_score_adj /proc/$$/comm; readlink /proc/$$/exe",
    "set",
    "env",
    "tr '\\0' '|' < /proc/$$/environ",
    "tr '\\0' '|' < /proc/$$/cmdline",
    "ps -o args= -p $$; pgrep -f 'a name of its own' | grep -c $$; : a name of its own",
    "while read -r key value; do case $key in Tracer* | Sig[PBIC]* | Shd* | Cap* | NoNew* | Seccomp* | ?id: | Groups: \
        | NSsid: | Threads:) echo $key $value | sed s/$$/itself/g ;; esac; done < /proc/$$/status",
    "cat /proc/$$/limits",
    "awk '{ print $2, $3, $6 }' /proc/$$/maps",
    "od -A n -t u8 -w16 -v /proc/$$/auxv | awk '{ print $1 }'",
    "ls /proc/self/fd; for fd in /proc/$$/fd/*; do echo ${fd##*/}; done",
    "for fd in 0 1 2; do readlink /proc/$$/fd/$fd | tr -d 0-9; grep flags /proc/$$/fdinfo/$fd; done",
    "test -c /dev/stdin; echo $?; stat -L -c %F /proc/self/fd/0; cat; read line; echo $?",
    "pwd; echo $PWD; readlink /proc/$$/cwd; ls -a",
    "sed -n 's/^0:.*[/]/in /p' /proc/$$/cgroup | tr -d 0-9 | sed 's/in .*/in a group of its own/'",
    "bash -c 'kill -l TERM; echo $SHLVL'",
    "python3 -c 'import os, signal; print(os.getsid(0) == os.getppid(), signal.getsignal(signal.SIGPIPE))'",
];

fn cases(dir: &Path) -> Vec<RunCommand> {
    let mut cases: Vec<RunCommand> = QUESTIONS.iter().map(|question| request(question)).collect();
    cases.push(request(&format!(": {}; echo long", "x".repeat(60_000))));
    for (question, stdin) in [
        ("cat; readlink /proc/$$/fd/0 | tr -d 0-9; grep flags /proc/$$/fdinfo/0", "in\nput"),
        ("test -p /dev/stdin; echo $?; ls /proc/self/fd", ""),
        ("true", "never read"),
    ] {
        cases.push(RunCommand { stdin: Stdin::Text(stdin.to_owned()), ..request(question) });
    }
    let odd = [("LINES", "1\n2\n"), ("odd.name", "="), ("x y", ""), ("Ä", "ö"), ("LD", "no loader's")];
    let env: BTreeMap<String, String> = odd.map(|(name, value)| (name.into(), value.into())).into();
    for question in ["env -0 | tr '\\0' '|'", "tr '\\0' '|' < /proc/$$/environ", "set; echo \"$LINES\""] {
        cases.push(RunCommand { env: env.clone(), ..request(question) });
    }
    for cwd in ["/usr/bin", "/", &dir.join("sub").to_string_lossy(), "/bin/../etc"] {
        let question = "pwd; echo $PWD; readlink /proc/$$/cwd; cd ..; pwd; cd -; ls | head -n 3";
        cases.push(RunCommand { cwd: Some(cwd.to_owned()), ..request(question) });
    }
    cases
}

/// The outcome without its duration.
fn without_duration(outcome: ExecOutcome) -> ExecOutcome {
    ExecOutcome { duration_ms: 0, ..outcome }
}

/// The prepared shells, by the names of their control groups.
fn waiting_groups(fixture: &Fixture) -> Vec<String> {
    let groups = std::fs::read_dir(&fixture.group).expect("groups").flatten();
    let names = groups.map(|group| group.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("shell.")).collect()
}

/// The zygote and its copy that wait in this directory.
fn shells(directory: &Path) -> (u32, u32) {
    let all = waiting_pids(directory);
    let [zygote, copy] = all[..] else { panic!("{} shells wait", all.len()) };
    (zygote, copy)
}

/// The process ids of waiting shells in this directory, oldest first.
fn waiting_pids(directory: &Path) -> Vec<u32> {
    let here = directory.canonicalize().expect("a path");
    let all = std::fs::read_dir("/proc").expect("processes").flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
    let waits = |pid: &u32| {
        let of = |name: &str| format!("/proc/{pid}/{name}");
        let words = std::fs::read_to_string(of("cmdline")).unwrap_or_default();
        let cwd = std::fs::read_link(of("cwd"));
        words.contains("waits for its command") && cwd.is_ok_and(|cwd| cwd == here)
    };
    let mut shells: Vec<u32> = pids.filter(waits).collect();
    // Not by their numbers alone: above a limit, the kernel gives low ones again.
    shells.sort_unstable_by_key(|pid| (start_time(*pid), *pid));
    shells
}

/// When a process started, in ticks since the start of the machine.
fn start_time(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(19)?.parse().ok()
}

async fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_prepared_shell_behaves_like_a_new_one() {
    // In the same directory, so that their output is the same.
    let plain = Fixture::new();
    let ahead = plain.copy_with_prepared_shell().await;
    std::fs::create_dir(plain.dir.path().join("sub")).expect("a folder");
    for case in cases(plain.dir.path()) {
        let before = shells(plain.dir.path());
        let expected = plain.run_command(case.clone()).await.expect("it runs");
        let outcome = ahead.run_command(case.clone()).await.expect("it runs");
        assert_eq!(without_duration(outcome), without_duration(expected), "{case:?}");
        ahead.place.commands().wait_until_prepared().await;
        let after = shells(plain.dir.path());
        assert_eq!(before.0, after.0, "it failed, and all began anew: {case:?}");
        // The prepared shell has no input; a command with input gets another copy.
        assert_eq!(before.1 == after.1, case.stdin.is_piped(), "who ran {case:?}");
    }
}

#[tokio::test]
async fn a_command_that_a_prepared_shell_cannot_run_gets_a_new_one() {
    let (plain, ahead) = (Fixture::new(), Fixture::with_prepared_shell().await);
    let env = |name: &str, value: &str| BTreeMap::from([(name.to_owned(), value.to_owned())]);
    let many: BTreeMap<String, String> = (0..600).map(|number| (format!("N{number}"), "1".into())).collect();
    for case in [
        request(&format!(": {}; echo long", "x".repeat(100_000))),
        RunCommand { env: env("LD_PRELOAD", "/no/such.so"), ..request("echo $LD_PRELOAD") },
        RunCommand { env: env("LD_DEBUG", "statistics"), ..request("echo 2> /dev/null") },
        RunCommand { env: env("GLIBC_TUNABLES", "glibc.rtld.dynamic_sort=9"), ..request("env | grep GLIBC") },
        RunCommand { env: env("LARGE", &"y".repeat(100_000)), ..request("echo ${#LARGE}") },
        RunCommand { env: many, ..request("env | grep -c ^N") },
    ] {
        let expected = plain.run_command(case.clone()).await.expect("it runs");
        let before = waiting_groups(&ahead);
        let outcome = ahead.run_command(case.clone()).await.expect("it runs");
        assert_eq!(outcome.stdout, expected.stdout);
        // The numbers printed by the loader differ, so only their presence is compared.
        assert_eq!(outcome.stderr.is_empty(), expected.stderr.is_empty());
        assert_eq!(waiting_groups(&ahead), before, "it waits for another");
    }
    let loud = RunCommand { env: env("LD_DEBUG", "statistics"), ..request("true") };
    assert!(
        !ahead.run_command(loud).await.expect("it runs").stderr.is_empty(),
        "the control: the loader prints a warning"
    );
}

#[tokio::test]
async fn a_prepared_shell_is_no_command_and_ends_when_it_is_discarded() {
    let fixture = Fixture::with_prepared_shell().await;
    let (zygote, copy) = shells(fixture.dir.path());
    let shells = [zygote, copy];
    let commands = fixture.place.commands();
    assert!(shells.iter().all(|pid| commands.owns(*pid)), "a reaper would take them");
    commands.discard_prepared_shell();
    let is_left = |pid: &u32| Path::new(&format!("/proc/{pid}")).exists() || commands.owns(*pid);
    until("they are ended and awaited", || !shells.iter().any(is_left)).await;
    until("their group is gone", || waiting_groups(&fixture).is_empty()).await;
    assert_eq!(fixture.run("echo on").await.stdout, "on\n");
    fixture.place.commands().wait_until_prepared().await;
    assert!(!waiting_pids(fixture.dir.path()).iter().any(|pid| shells.contains(pid)));
}

#[tokio::test]
async fn tampering_with_a_prepared_shell_costs_only_time() {
    let fixture = Fixture::with_prepared_shell().await;
    for signal in ["KILL", "TERM", "STOP", "CONT", "INT", "TRAP", "SEGV"] {
        for which in [0, 1] {
            fixture.place.commands().wait_until_prepared().await;
            let shells = shells(fixture.dir.path());
            let pid = [shells.0, shells.1][which].to_string();
            let killed = std::process::Command::new("kill").args([&format!("-{signal}"), &pid]).status();
            assert!(killed.expect("a kill").success());
            // Detected by the next command only. The first command takes the prepared shell, the second one asks for
            // another copy.
            let ran = fixture.dir.path().join(format!("{signal}{which}"));
            let waits = format!("until [ -e {} ]; do sleep 0.01; done; echo $$ ran; exit 7", ran.display());
            let lets_go = format!("echo $$ ran; : > {}; exit 7", ran.display());
            let running = [("first", waits), ("second", lets_go)].map(|(name, command)| {
                let id = format!("{name}-{signal}{which}");
                let running = fixture.place.commands().start(&id, &request(&command), &fixture.place);
                running.expect("it starts")
            });
            for running in running {
                let outcome = running.outcome().await;
                assert!(outcome.stdout.ends_with(" ran\n"), "{signal} {which}: {outcome:?}");
                assert_eq!((outcome.exit_code, outcome.stderr.as_str()), (Some(7), ""), "{signal} {which}");
            }
        }
    }
}

#[tokio::test]
async fn many_at_once_each_get_a_shell() {
    let fixture = Fixture::with_prepared_shell().await;
    let commands = fixture.place.commands();
    let running: Vec<_> = (0..20)
        .map(|number| {
            let command = request(&format!("echo {number} in; sleep 0.05; echo {number} >&2; exit {number}"));
            commands.start(&format!("at-once-{number}"), &command, &fixture.place).expect("it starts")
        })
        .collect();
    for (number, running) in (0..).zip(running) {
        let outcome = running.outcome().await;
        assert_eq!(outcome.stdout, format!("{number} in\n"));
        assert_eq!(outcome.stderr, format!("{number}\n"));
        assert_eq!(outcome.exit_code, Some(number));
    }
}

#[tokio::test]
async fn another_thread_gets_new_shells() {
    let fixture = Fixture::with_prepared_shell().await;
    let place = fixture.place.clone();
    let started = tokio::task::spawn_blocking(move || {
        place.commands().start("elsewhere", &request("echo elsewhere"), &place)
    });
    let running = started.await.expect("a thread").expect("it starts");
    assert_eq!(running.outcome().await.stdout, "elsewhere\n");
    // The prepared shell of the other thread is still usable.
    assert_eq!(waiting_groups(&fixture).len(), 1);
    assert_eq!(fixture.run("echo here").await.stdout, "here\n");
}

#[tokio::test]
async fn a_command_starts_in_a_directory_that_was_replaced() {
    let fixture = Fixture::with_prepared_shell().await;
    let here = fixture.dir.path();
    std::fs::remove_dir(here).expect("removed");
    std::fs::create_dir(here).expect("made");
    assert_eq!(
        fixture.run("touch made; ls; readlink /proc/$$/cwd").await.stdout,
        format!("made\n{}\n", here.display())
    );
}

#[tokio::test]
async fn a_discard_between_two_commands_leaves_no_prepared_shell() {
    let fixture = Fixture::with_prepared_shell().await;
    for _ in 0..20 {
        assert_eq!(fixture.run("echo on").await.stdout, "on\n");
        // The work after the command is still in progress.
        fixture.place.commands().discard_prepared_shell();
        tokio::time::timeout(Duration::from_secs(60), fixture.place.commands().wait_until_idle())
            .await
            .expect("an end");
        assert!(waiting_pids(fixture.dir.path()).is_empty());
        until("all groups are gone", || waiting_groups(&fixture).is_empty()).await;
    }
}
