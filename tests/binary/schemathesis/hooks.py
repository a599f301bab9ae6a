"""Supplies what only this very server knows: living VMs, ids of keys and accounts, and what no schema can say.

Valid input is made to mean something (a process id that lives, an end in the future); invalid input stays as it is, but
for what would cut the branch that the run sits on: its own key, and its own account.
"""

import atexit
import collections
import json
import os
import secrets
import threading
import urllib.parse

import requests
import schemathesis

URL = os.environ["SKEP_URL"]
KEY = os.environ["SKEP_API_KEY"]
REPORT = os.environ["SKEP_FUZZ_REPORT"]

# VMs that are booted for the run's own needs, and boots that the run itself may make: each takes a second or more.
MOST_SUPPLIED = 12
MOST_BOOTED = 8
FUTURE = "2126-05-01T12:00:00Z"

session = requests.Session()
session.trust_env = False
session.headers["Authorization"] = f"Bearer {KEY}"
lock = threading.RLock()
statuses = collections.defaultdict(collections.Counter)


def call(method, path, **options):
    answer = session.request(method, URL + path, timeout=120, **options)
    answer.raise_for_status()
    return answer.json()


OWN = call("GET", "/api/whoami")
# A session is created only at the host of its key.
SESSION_HOST = urllib.parse.urlsplit(call("POST", "/api/session/links", json={})["url"]).netloc


def fresh(prefix):
    """A name that nothing has yet, of this run or of another."""
    return f"{prefix}-{secrets.token_hex(6)}"


def new_account():
    return call("POST", "/api/accounts", json={"name": fresh("spare")})["id"]


def new_key():
    return call("POST", "/api/keys", json={"name": fresh("spare"), "scopes": ["swarm:read"]})["id"]


def new_entry():
    email = f"{fresh('spare')}@example.com"
    call("POST", "/api/waitlist", json={"email": email})
    return email


def new_webhook():
    # Leads to this machine: what is sent is refused here, and nobody else is asked for anything.
    body = {"url": "https://localhost/skep", "types": ["vm.booted"]}
    return call("POST", "/api/webhooks", json=body)["id"]


class Vms:
    """One VM for all that only looks at it, and others for what ends them."""

    def __init__(self):
        self.pid = None
        self.command = None
        self.supplied = 0
        self.booted = 0

    def boot(self):
        if self.supplied >= MOST_SUPPLIED:
            return None
        self.supplied += 1
        body = {"ttl_ms": 600_000}
        try:
            booted = call("POST", "/api/swarm/boot", json=body)
        except requests.HTTPError as error:
            if error.response.status_code != 503:
                raise
            # Requests of the run hold all VMs that the server may have.
            call("POST", "/api/swarm/cleanup", json={})
            booted = call("POST", "/api/swarm/boot", json=body)
        return str(booted["vms"][0]["pid"])

    def living(self):
        with lock:
            if self.pid is not None:
                known = session.get(f"{URL}/api/swarm/vm/{self.pid}", timeout=120)
                if known.status_code != 200:
                    self.pid = self.command = None
            if self.pid is None:
                self.pid = self.boot()
            return self.pid

    def streamed(self):
        """A command to come back to."""
        with lock:
            pid = self.living()
            if pid is not None and self.command is None:
                body = {"command": "echo fuzz", "stream": True}
                answer = session.post(f"{URL}/api/swarm/vm/{pid}/exec", json=body, timeout=120)
                self.command = answer.headers["skep-exec-id"]
            return pid, self.command


class Workspace:
    """Files, a repository and one that it was cloned from, below the first root of the run's account."""

    def __init__(self):
        self.root = f"{OWN['roots'][0]}/{fresh('fuzz')}"
        self.notes = self.file()
        for repository in ("origin", "own"):
            path = f"{self.root}/{repository}"
            if repository == "origin":
                call("POST", "/api/git/init", json={"path": path})
                self.commit(path)
                call("POST", "/api/git/checkout", json={"path": path, "ref": "aside", "create": True})
            else:
                call("POST", "/api/git/clone", json={"url": f"{self.root}/origin", "path": path, "branch": "main"})
        self.repository = f"{self.root}/own"

    def new(self):
        return f"{self.root}/{fresh('new')}"

    def file(self):
        path = self.new()
        call("POST", "/api/files/write", json={"path": path, "content": "# Notes\n"})
        return path

    def commit(self, path):
        call("POST", "/api/files/write", json={"path": f"{path}/{fresh('new')}", "content": "new\n"})
        call("POST", "/api/git/add", json={"path": path})
        return call("POST", "/api/git/commit", json={"path": path, "message": "Go on"})

    def change(self):
        """So that there is something to commit, or to put away."""
        call("POST", "/api/files/write", json={"path": f"{self.repository}/{fresh('new')}", "content": "new\n"})
        call("POST", "/api/git/add", json={"path": self.repository})


def new_ticket():
    return call("POST", "/api/tickets", json={"title": fresh("spare")})


def held_ticket():
    ticket = new_ticket()["id"]
    call("PATCH", f"/api/tickets/{ticket}", json={"assignee": "agent"})
    return ticket


vms = Vms()
spare_account = new_account()
spare_key = new_key()
workspace = Workspace()
spare_ticket = new_ticket()["id"]
spare_webhook = new_webhook()
spare_delivery = call("POST", f"/api/webhooks/{spare_webhook}/test")["id"]
turns = collections.Counter()


def turn(operation):
    with lock:
        turns[operation] += 1
        return turns[operation]


def supply(operation, case):
    """Path parameters that exist, for most of the valid cases."""
    path = case.path_parameters
    nth = turn(operation)
    if not path or nth % 4 == 0:
        return
    if operation in ("read_vm", "console", "change_vm", "resume_vm", "exec_in_vm", "fork_vm", "snapshot_vm"):
        path["pid"] = vms.living() or path["pid"]
    elif operation == "exec_again":
        pid, command = vms.streamed()
        if command is not None:
            path.update(pid=pid, exec_id=command)
    elif operation in ("end_vm", "pause_vm") and nth <= 3:
        with lock:
            path["pid"] = vms.boot() or path["pid"]
    elif operation == "read_key":
        path["id"] = spare_key
    elif operation in ("revoke_key", "rotate_key"):
        path["id"] = new_key()
    elif operation in ("read_account", "change_account"):
        path["id"] = spare_account
    elif operation == "delete_account":
        path["id"] = new_account()
    elif operation == "delete_webhook":
        path["id"] = new_webhook()
    elif operation in ("read_webhook", "change_webhook", "rotate_webhook", "list_deliveries", "test_webhook"):
        path["id"] = spare_webhook
    elif operation == "redeliver":
        path.update(id=spare_webhook, delivery=spare_delivery)
    elif operation == "remove_from_waitlist":
        path["entry"] = new_entry()
    elif operation in ("read_ticket", "why_ticket", "ticket_history"):
        path["id"] = spare_ticket
    elif operation in ("change_ticket", "delete_ticket"):
        path["id"] = new_ticket()["id"]
    elif operation == "beat_ticket":
        path["id"] = held_ticket()
    elif operation == "docs_file":
        path["file"] = ["start.js", "swagger-ui.css", "swagger-ui-bundle.js"][nth % 3]


QUERIES = {
    "read_file": lambda: {"path": workspace.notes, "encoding": "utf-8", "offset": 0},
    "list_folder": lambda: {"path": workspace.root},
    "search_files": lambda: {"path": workspace.root, "pattern": "*"},
    "grep_files": lambda: {"path": workspace.notes, "pattern": "Notes", "glob": None},
    "write_raw_file": lambda: {"path": workspace.new(), "mode": None},
    "remove_file": lambda: {"path": workspace.file()},
    "git_status": lambda: {"path": workspace.repository},
    "git_diff": lambda: {"path": workspace.repository, "from": None, "to": None},
    "git_log": lambda: {"path": workspace.repository, "ref": None},
    "git_branches": lambda: {"path": workspace.repository},
    "git_worktrees": lambda: {"path": workspace.repository},
    "git_repositories": lambda: {},
    "git_show": lambda: {"path": workspace.repository, "ref": None, "file": None},
    "git_tags": lambda: {"path": workspace.repository},
    "git_remotes": lambda: {"path": workspace.repository},
    "remove_git_credential": lambda: {"host": new_host()},
}
BODIES = {
    "write_file": lambda: {"path": workspace.new(), "encoding": "utf-8", "mode": None},
    "make_folder": lambda: {"path": workspace.new(), "mode": None},
    "make_link": lambda: {"path": workspace.new(), "target": "notes", "path_encoding": None},
    "move_file": lambda: {"from": workspace.file(), "to": workspace.new()},
    "copy_file": lambda: {"from": workspace.notes, "to": workspace.new()},
    "git_add": lambda: {"path": workspace.repository, "files": None},
    "git_commit": lambda: {"path": workspace.repository, "message": "Go on", "author": None, "amend": None},
    "git_push": lambda: {"path": workspace.repository, "remote": "origin", "branch": "main"},
    "git_pull": lambda: {"path": workspace.repository, "remote": "origin", "branch": "main"},
    "git_init": lambda: {"path": workspace.new()},
    "git_clone": lambda: {"url": f"{workspace.root}/origin", "path": workspace.new(), "branch": None, "from": None},
    "git_checkout": lambda: {"path": workspace.repository, "ref": "main", "create": None},
    "git_change_branch": lambda: {
        "path": workspace.repository, "name": fresh("topic"), "from": None, "delete": None, "force": None,
    },
    "git_change_worktree": lambda: {
        "path": workspace.repository, "worktree": workspace.new(), "ref": None, "remove": None,
    },
    "git_reset": lambda: {"path": workspace.repository, "to": None},
    "git_stash": lambda: {"path": workspace.repository, "action": "list", "message": None},
    "git_change_tag": lambda: {
        "path": workspace.repository, "name": fresh("tag"), "ref": None, "message": None, "delete": None,
    },
    "git_merge": lambda: {"path": workspace.repository, "ref": "main", "message": None},
    "git_change_remote": lambda: {
        "path": workspace.repository, "name": fresh("remote"), "url": f"{workspace.root}/origin", "replace": None, "remove": None,
    },
    "git_fetch": lambda: {"path": workspace.repository, "remote": "origin"},
}


def new_host():
    host = f"{fresh('git')}.example.com"
    call("POST", "/api/git/credentials", json={"host": host, "token": "spare"})
    return host


def at_work(operation, case):
    """Paths that are there, and nothing that would be refused for what it is: most of the valid cases are done."""
    if turn(f"work of {operation}") % 4 == 0:
        return
    given = None
    if operation in QUERIES:
        case.query = dict(case.query or {})
        given, wanted = case.query, QUERIES[operation]()
    elif operation in BODIES and isinstance(case.body, dict):
        given, wanted = case.body, BODIES[operation]()
    if given is None:
        return
    if operation == "git_commit":
        workspace.change()
    given.pop("vm", None)
    for name, value in wanted.items():
        if value is None:
            given.pop(name, None)
        else:
            given[name] = value


def policy_of(policy):
    """A list of the same kind, with hosts and networks that are right and at least one entry or preset."""
    sensible = {"ports": [443]} if policy.get("ports") else {}
    if policy.get("presets"):
        sensible["presets"] = policy["presets"]
    if policy.get("allow") or not policy.get("presets"):
        sensible["allow"] = ["api.example.com", "*.example.org", "203.0.113.0/24"]
    return sensible


def make_sense(operation, body):
    """What is valid by its schema, and yet refused for a reason that a schema cannot know."""
    if not isinstance(body, dict):
        return
    if operation in ("create_key", "rotate_key") and isinstance(body.get("expires_at"), str):
        body["expires_at"] = FUTURE
    if operation in ("create_account", "change_account"):
        if body.get("roots"):
            body["roots"] = [f"/srv/{fresh('root')}"]
        if isinstance(body.get("egress"), dict):
            body["egress"] = policy_of(body["egress"])
        if body.get("allowed_ips"):
            body["allowed_ips"] = ["127.0.0.0/8", "::1", "192.0.2.7"][: len(body["allowed_ips"])]
    if operation == "change_vm" and isinstance(body.get("ttl_ms"), int):
        body["ttl_ms"] = max(body["ttl_ms"], 600_000)
    if operation in ("create_webhook", "change_webhook"):
        if "url" in body:
            body["url"] = f"https://localhost/{fresh('hook')}"
        # What is disabled refuses what others ask of it.
        body.pop("enabled", None)
    if operation == "snapshot_vm":
        body["name"] = fresh("snapshot")
    if operation == "fork_vm":
        body.pop("ticket", None)
        body.pop("keep_vm", None)
        body.pop("name", None)
        if isinstance(body.get("count"), (int, float)):
            body["count"] = 1
        body["ttl_ms"] = 20_000
    if operation == "boot":
        with lock:
            vms.booted += 1
            # What names no template is a real boot; the others are looked up and not found.
            if vms.booted > MOST_BOOTED:
                body["template"] = "none"
        if isinstance(body.get("count"), (int, float)):
            body["count"] = 1
        body["ttl_ms"] = 20_000
    if operation in ("exec", "exec_in_vm"):
        body["timeout"] = min(body.get("timeout") or 2_000, 2_000)
    if operation == "claim_tickets":
        body["wait_ms"] = min(body.get("wait_ms") or 0, 20)
    if operation == "exec" and turn("vm of exec") % 4 != 0:
        body["vm"] = vms.living() or body.get("vm")


def spare_own(operation, case):
    """Keeps the run's own key and account, in every case."""
    path = case.path_parameters or {}
    if operation == "revoke_key" and path.get("id") == OWN["key"]["id"]:
        path["id"] = new_key()
    if operation == "change_account" and path.get("id") == OWN["account"]["id"]:
        path["id"] = spare_account
    # A watch ends with its caller, and this one would wait for ever.
    if operation == "watch_files":
        case.query = {**(case.query or {}), "path": "/nowhere"}
    # A stream ends with its caller, and this one would wait for ever.
    if operation == "events":
        case.query = {**(case.query or {}), "ticket": "tkt_01jv0000000000000000000000"}
    # The log of a command that runs is followed until its end.
    if operation == "ticket_log" and "follow" in (case.query or {}):
        case.query = {**case.query, "follow": "false"}
    if operation == "revoke_all_keys":
        case.query = dict(case.query or {})
        case.query["account"] = spare_account


@schemathesis.hook
def before_call(context, case, kwargs):
    operation = case.operation.definition.raw.get("operationId")
    meta = case.meta
    valid = meta is not None and meta.generation.mode.is_positive
    stateful = meta is not None and meta.phase.name.value == "stateful"
    if valid:
        if not stateful:
            supply(operation, case)
            at_work(operation, case)
        if isinstance(case.body, dict) or operation in ("boot", "fork_vm"):
            make_sense(operation, case.body)
    if operation == "create_session":
        case.headers = {**(case.headers or {}), "Host": SESSION_HOST}
    spare_own(operation, case)


@schemathesis.hook
def after_call(context, case, response):
    operation = case.operation.definition.raw.get("operationId")
    unexpected = response.request.method.upper() != case.operation.method.upper()
    with lock:
        statuses["another method" if unexpected else operation][response.status_code] += 1
    if operation in ("boot", "fork_vm") and response.status_code == 201 and case.meta.phase.name.value != "stateful":
        for vm in response.json()["vms"]:
            session.delete(f"{URL}/api/swarm/vm/{vm['pid']}", timeout=120)
    if operation == "snapshot_vm" and response.status_code == 201:
        session.delete(f"{URL}/api/templates/{response.json()['id']}", timeout=120)
    # One account has a hundred at the most, and each is sent what happens.
    if operation == "create_webhook" and response.status_code == 201 and case.meta.phase.name.value != "stateful":
        session.delete(f"{URL}/api/webhooks/{response.json()['id']}", timeout=120)


@atexit.register
def report():
    with open(REPORT, "w") as out:
        json.dump({name: dict(counts) for name, counts in statuses.items()}, out, indent=1, sort_keys=True)
