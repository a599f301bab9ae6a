//! Runs the commands of the README and of the guide in their order by a shell, on a server for this test.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
    process::{Command, Output},
};

use skep_harness::{GUIDE, blocks_of_guide};

use crate::harness::{Skep, answer, binary, output_of};

/// Blocks that are not run, by a command in them, and why.
const OTHER_BLOCKS: [(&str, &str); 6] = [
    ("agents, SDKs", "it is a picture"),
    ("make run", "it builds skep and serves until Ctrl-C; all tests begin with its build"),
    (
        "systemctl disable --now skep",
        "it removes a service of the machine; `command::uninstall` does so in namespaces",
    ),
    (
        "skep template create big",
        "it needs 4 processors and builds for a minute; `templates` does so with a smaller one",
    ),
    ("cat token", "no test reaches a git server elsewhere"),
    ("auth=", "it is for a VM with a ticket; `vm_api` runs it there"),
];

/// Lines that are not run, by their beginning, and why.
const OTHER_LINES: [(&str, &str); 4] = [
    ("export SKEP_", "the test gives both, for its own server"),
    ("git pull", "it updates a clone of skep"),
    ("make build", "all tests begin with it"),
    ("systemctl restart", "it is about the machine's own service"),
];

/// Replacements in lines, for values that differ in this test.
const INSTEAD: [(&str, &str); 5] = [
    ("26669", "$PID"),
    ("/PID/", "/$PID/"),
    ("http://127.0.0.1:7700", "$SKEP_URL"),
    ("/var/lib/skep/", "$SKEP_DATA_DIR/"),
    ("/root/skep-before-update.db", "backup.db"),
];

/// Commands to run before a line, by the beginning of the line.
const FIRST: [(&str, &str); 3] = [
    ("skep exec -n $PID 'tar c results'", "skep exec -n $PID 'mkdir results; touch results/one'"),
    ("skep git clone server:hub.git", "skep boot --name web"),
    (
        "skep git push origin main",
        "skep exec web 'cd hub && git checkout -q -B main && echo one > one && git add one' && skep git commit -m One --vm web",
    ),
];

/// Lines that follow events without end, and a command that causes an event. They are ended after their first output.
const FOLLOWING: [(&str, &str); 2] = [
    ("skep events --type", "skep ticket create announced > created"),
    ("skep watch", "date | skep write project/changed"),
];

/// Exit codes other than 0, by the beginning of a line.
const CODES: [(&str, i32); 1] = [("skep attach job", 127)];

/// The blocks of shell lines, each without its prompts and without what the commands printed.
fn blocks() -> Vec<Vec<String>> {
    let mut blocks = Vec::new();
    for block in blocks_of_guide() {
        let prompted: Vec<String> = block
            .lines()
            .filter_map(|line| line.strip_prefix("# ").or_else(|| line.strip_prefix("$ ")))
            .map(str::to_owned)
            .collect();
        // A block without prompts is a script, whose lines may go on in the next.
        let script = || block.trim().replace("\\\n", " ").lines().map(str::to_owned).collect();
        blocks.push(if prompted.is_empty() { script() } else { prompted });
    }
    blocks
}

fn begins<T: Copy>(table: &[(&str, T)], line: &str) -> Option<T> {
    table.iter().find(|(beginning, _)| line.starts_with(beginning)).map(|(_, found)| *found)
}

/// A script that runs the lines in one shell, and prints the exit code of each.
fn script(lines: &[String]) -> String {
    let mut script =
        String::from("set -o pipefail\nPID=$(skep boot --json | sed 's/.*\"pid\":\\([0-9]*\\).*/\\1/')\n");
    for line in lines.iter().filter(|line| begins(&OTHER_LINES, line).is_none()) {
        let line = INSTEAD.iter().fold(line.clone(), |line, (from, to)| line.replace(from, to));
        if let Some(first) = begins(&FIRST, &line) {
            script.push_str(&format!("{first} || exit 99\n"));
        }
        let expected = begins(&CODES, &line).unwrap_or(0);
        if let Some(cause) = begins(&FOLLOWING, &line) {
            let command = line.split(" #").next().unwrap();
            script.push_str(&format!("rm -f followed; {command} > followed & FOLLOWER=$!\n"));
            // It is unknown when the line begins to follow.
            script.push_str(&format!(
                "until [ -s followed ]; do {cause}; sleep 0.1; done; kill $FOLLOWER; true\n"
            ));
        } else {
            script.push_str(&format!("{line}\n"));
        }
        let quoted = line.replace('\'', "'\\''");
        script.push_str(&format!(
            "code=$?; [ $code = {expected} ] || {{ echo \"exit code $code:\" '{quoted}' >&2; exit 99; }}\n"
        ));
    }
    script
}

fn run(server: &Skep, temp_dir: &Path, lines: &[String]) -> Output {
    let path = format!("{}:{}", temp_dir.join("bin").display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("bash");
    command
        .args(["-c", &script(lines)])
        .current_dir(temp_dir)
        .env("PATH", path)
        .env("SKEP_URL", &server.url)
        .env("SKEP_API_KEY", &server.key)
        .env("SKEP_DATA_DIR", server.data_dir.path());
    output_of(&mut command)
}

#[test]
fn the_presets_that_the_guide_lists_are_those_of_the_command() {
    let listed = GUIDE.iter().find_map(|(_, page)| page.split_once("code host or model API: ")).unwrap().1;
    let listed = listed.split('.').next().unwrap();
    let listed: Vec<&str> = listed.split(',').map(|name| name.trim().trim_matches('`')).collect();
    let printed = answer(&output_of(Command::new(binary()).args(["egress", "--presets", "--json"])));
    let presets = printed["presets"].as_array().unwrap();
    let names: Vec<&str> = presets.iter().map(|preset| preset["name"].as_str().unwrap()).collect();
    assert_eq!(names, listed);
    for preset in presets {
        let hosts = preset["hosts"].as_array().unwrap();
        let are_names = hosts.iter().all(|host| host.as_str().is_some_and(|host| host.contains('.')));
        assert!(!hosts.is_empty() && are_names, "{preset}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_guide_do_what_it_says() {
    let server = Skep::start().await;
    let temp_dir = tempfile::tempdir().unwrap();
    for folder in ["bin", "project", "project-on-this-machine"] {
        fs::create_dir(temp_dir.path().join(folder)).unwrap();
    }
    fs::write(temp_dir.path().join("project-on-this-machine/plan.md"), "# Plan\n").unwrap();
    symlink(binary(), temp_dir.path().join("bin/skep")).unwrap();
    let agent = temp_dir.path().join("agent");
    fs::write(&agent, "#!/bin/sh\nexit 0\n").unwrap();
    fs::set_permissions(&agent, fs::Permissions::from_mode(0o755)).unwrap();
    let mut left_out = vec![false; OTHER_BLOCKS.len()];
    let mut lines_run = 0;
    for block in blocks() {
        let is_in_it = |mark: &str| block.iter().any(|line| line.starts_with(mark));
        if let Some(at) = OTHER_BLOCKS.iter().position(|(mark, _)| is_in_it(mark)) {
            left_out[at] = true;
            continue;
        }
        let output = run(&server, temp_dir.path(), &block);
        assert!(output.status.success(), "{block:#?}\n{output:?}");
        lines_run += block.len();
        // The next block finds a server without VMs.
        server.post("/api/swarm/cleanup", &serde_json::json!({})).await.ok(200);
    }
    assert!(left_out.iter().all(|left_out| *left_out), "a block that is left out is not there: {left_out:?}");
    assert!(lines_run > 40, "{lines_run}");
}
