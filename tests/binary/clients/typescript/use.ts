// Calls operations with the types that openapi-typescript generated: whatever the document has otherwise does not compile.

import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, paths } from "./schema.js";

const { SKEP_URL: baseUrl, SKEP_API_KEY: key, SKEP_TEST_FOLDER: folder } = process.env;
assert(baseUrl && key && folder);
const client = createClient<paths>({ baseUrl, headers: { authorization: `Bearer ${key}` } });

type Outcome<T> = { data?: T; error?: components["schemas"]["ErrorBody"]; response: Response };

/** The answer of an operation; a refusal ends the program. */
async function call<T>(name: string, outcome: Promise<Outcome<T>>): Promise<T> {
  const { data, error, response } = await outcome;
  if (data === undefined) {
    throw new Error(`${name}: ${response.status} ${error?.message}`);
  }
  console.log(name);
  return data;
}

assert.equal((await call("health", client.GET("/api/health"))).status, "ok");
assert((await call("whoami", client.GET("/api/whoami"))).scopes.includes("server:admin"));

const path = `${folder}/plan.md`;
await call("make_folder", client.POST("/api/mkdir", { body: { path: folder } }));
await call("write_file", client.POST("/api/files/write", { body: { path, content: "# Plan\n" } }));
const file = await call("read_file", client.GET("/api/files/read", { params: { query: { path } } }));
assert(typeof file === "object" && file.content === "# Plan\n");
const listed = await call("list_folder", client.GET("/api/ls", { params: { query: { path: folder } } }));
assert.deepEqual(listed.entries.map((entry) => entry.name), ["plan.md"]);

const ticket = await call("create_ticket", client.POST("/api/tickets", { body: { title: "Port the parser" } }));
const claim = client.POST("/api/tickets/claim", { body: { assignee: "typescript" } });
assert.deepEqual((await call("claim_tickets", claim)).tickets.map((other) => other.id), [ticket.id]);
const completion = { status: "completed", assignee: "typescript" } as const;
const change = client.PATCH("/api/tickets/{id}", { params: { path: { id: ticket.id } }, body: completion });
assert.equal((await call("change_ticket", change)).status, "completed");

const created = await call("create_key", client.POST("/api/keys", { body: { name: "typescript", role: "agent" } }));
const revoke = client.DELETE("/api/keys/{id}", { params: { path: { id: created.id } } });
assert((await call("revoke_key", revoke)).revoked_at);

const [vm] = (await call("boot", client.POST("/api/swarm/boot", { body: { count: 1 } }))).vms;
assert(vm);
const inVm = { params: { path: { pid: vm.id } } };
const exec = client.POST("/api/swarm/vm/{pid}/exec", { ...inVm, body: { command: "echo $((6 * 7))" } });
const outcome = await call("exec_in_vm", exec);
assert("stdout" in outcome && outcome.stdout === "42\n");
const vms = (await call("list_vms", client.GET("/api/vms"))).vms;
assert.deepEqual(vms.map((other) => other.id), [vm.id]);
await call("end_vm", client.DELETE("/api/swarm/vm/{pid}", { params: { path: { pid: vm.id } } }));
