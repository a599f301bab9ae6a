//! The end of a boot's command, and the end of its ticket.

use futures_util::future::join_all;
use serde_json::{Value, json};

use super::{attempts, reason, record, ticket};
use crate::harness::{Skep, eventually};

/// A command, the status of the ticket after it, the outcome of the attempt, and fields of its result.
type Row = (&'static str, &'static str, &'static str, Value);

fn rows() -> [Row; 10] {
    let printed = json!({"exit_code": 0, "stdout_tail": "out\n", "stderr_tail": "err\n"});
    // `skep ticket work` would use this output as the result; a boot does not.
    let printed_object = json!({"exit_code": 0, "stdout_tail": "{\"a\": 1}\n", "stderr_tail": ""});
    let result = json!({"tests": 12});
    let missing = "/bin/sh: 1: no-such-agent: not found\n";
    [
        ("echo out; echo err >&2", "completed", "completed", printed),
        (r#"echo '{"a": 1}'"#, "completed", "completed", printed_object),
        (r#"echo out; echo '{"tests": 12}' > /run/skep/result.json"#, "completed", "completed", result),
        ("no-such-agent", "pending", "released", json!({"exit_code": 127, "stderr_tail": missing})),
        // The file exists but is not executable.
        ("/etc/passwd", "pending", "released", json!({"exit_code": 126})),
        ("echo out; exit 3", "failed", "command_ended", json!({"exit_code": 3, "stdout_tail": "out\n"})),
        ("kill -9 $$", "failed", "command_ended", json!({"exit_code": null, "signal": "SIGKILL"})),
        ("echo '[1]' > $SKEP_RESULT_FILE", "failed", "command_ended", json!({"error": "invalid_result"})),
        ("mkfifo $SKEP_RESULT_FILE", "failed", "command_ended", json!({"error": "invalid_result"})),
        (
            "head -c 1100000 /dev/zero > $SKEP_RESULT_FILE",
            "failed",
            "command_ended",
            json!({"message": "/run/skep/result.json has more than 1048576 bytes"}),
        ),
    ]
}

pub(super) async fn of_commands(skep: &Skep) {
    // Each command has a VM of its own, and all run at the same time.
    join_all(rows().map(async |(command, status, outcome, kept)| {
        let id = ticket(skep).await;
        let booted = skep.post("/api/swarm/boot", &json!({"ticket": id, "command": command})).await.ok(201);
        let vm = &booted["vms"][0];
        eventually("the end of the VM", async || reason(skep, vm).await == "ticket_ended").await;
        let (record, attempts) = (record(skep, &id).await, attempts(skep, &id).await);
        assert_eq!(record["status"], status, "{command}: {record}");
        assert_eq!(attempts.len(), 1, "{command}");
        assert_eq!(attempts[0]["outcome"], outcome, "{command}");
        for (field, value) in kept.as_object().unwrap() {
            assert_eq!(attempts[0]["result"][field], *value, "{command}: {attempts:?}");
        }
        if status == "completed" {
            assert_eq!(record["result"], kept, "{command}");
        }
    }))
    .await;
    // The end is recorded before the VM is removed from the server's list.
    eventually("no VM in the list", async || skep.count().await == 0).await;
}

/// Completes the ticket of the VM by the API, as an agent does.
const COMPLETE: &str = r#"curl -fsS -o /dev/null -X PATCH "$SKEP_URL/api/tickets/$SKEP_TICKET_ID" \
    -H "Authorization: Bearer $SKEP_API_KEY" -H 'Content-Type: application/json' \
    -d '{"status": "completed", "attempt": 1}'"#;

pub(super) async fn after_the_ticket(skep: &Skep) {
    // The rest of the command, and its complete output. The second one runs for longer than this test waits.
    let rows = [("sleep 1; echo after", "before\nafter\n"), ("sleep 600; echo after", "before\n")];
    join_all(rows.map(async |(rest, printed)| {
        let id = ticket(skep).await;
        let command = format!("echo before; {COMPLETE}; {rest}");
        let booted = skep.post("/api/swarm/boot", &json!({"ticket": id, "command": command})).await.ok(201);
        let vm = &booted["vms"][0];
        eventually("the end of the VM", async || reason(skep, vm).await == "ticket_ended").await;
        assert_eq!(record(skep, &id).await["status"], "completed", "{rest}");
        let log = skep.get(&format!("/api/tickets/{id}/log")).await.ok(200);
        assert_eq!(log["output"], printed, "{rest}: {log}");
    }))
    .await;
}
