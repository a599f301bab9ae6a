import assert from 'node:assert/strict';
import { execFile, spawn, type ChildProcess } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import fs from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { promisify } from 'node:util';

const execute = promisify(execFile);

/** A start creates keys and a store, and loads a template. */
export const START_MS = 120_000;
const STOP_MS = 60_000;
/** The size of the VMs of tests: that of the template that `make test` bakes. */
const SMALL_VMS = { SKEP_BASE_MEMORY_MB: '128', SKEP_BASE_VCPUS: '1', SKEP_BASE_DISK_MB: '2048' };

/** The answer to a request. The fields of its JSON are checked by the tests that read them. */
export type Json = any;

/** A server of the binary under test, with a data directory of its own. */
export class Skep {
  /** Where programs reach it. */
  url = '';
  /** The origin at which the administrator's sessions exist. */
  dashboard = '';
  key = '';
  readonly dataDir = fs.mkdtempSync(path.join(os.tmpdir(), 'skep-dashboard-'));
  readonly #options: readonly string[];
  #child: ChildProcess | null = null;

  private constructor(options: readonly string[]) {
    this.#options = options;
  }

  /** Starts a server on a free port and waits until it serves. */
  static async start(...options: string[]): Promise<Skep> {
    const skep = new Skep(options);
    try {
      await skep.#start('127.0.0.1:0');
    } catch (error) {
      // Nobody else knows the server, so that nobody else would stop it.
      skep.#child?.kill('SIGINT');
      throw error;
    }
    return skep;
  }

  /** Stops the server, and starts it again on its data directory and its address. */
  async restart(whileItIsAway: () => Promise<void> = async () => {}): Promise<void> {
    await this.#end('SIGTERM');
    await whileItIsAway();
    await this.#start(new URL(this.url).host);
  }

  /** Stops the server and its VMs. Fails where it leaves anything behind. */
  async stop(): Promise<void> {
    await this.#end('SIGINT');
    const left = leftBy(this.dataDir);
    const log = this.log();
    assert.deepEqual(left, [], `left behind; the log of the server:\n${log}`);
    fs.rmSync(this.dataDir, { recursive: true });
    const faults = log.split('\n').filter((line) => /\bstatus=500\b|"status":500,|panicked at/.test(line));
    assert.deepEqual(faults, [], 'the server answered 500 or panicked');
  }

  log(): string {
    return fs.readFileSync(path.join(this.dataDir, 'test.log'), 'utf8');
  }

  /** Sends a request with the admin key, or with `key`. */
  async send(method: string, path: string, body?: unknown, key = this.key): Promise<Response> {
    const headers: Record<string, string> = { Authorization: `Bearer ${key}` };
    if (body !== undefined) headers['Content-Type'] = 'application/json';
    return fetch(this.url + path, { method, headers, body: body === undefined ? null : JSON.stringify(body) });
  }

  /** Like {@link send}; fails unless the answer is a success, and returns its JSON. */
  async call(method: string, path: string, body?: unknown, key = this.key): Promise<Json> {
    const answer = await this.send(method, path, body, key);
    const text = await answer.text();
    assert.ok(answer.ok, `${method} ${path}: ${answer.status} ${text}`);
    return JSON.parse(text);
  }

  /** The origin at which sessions of a key exist. */
  async dashboardOf(key: string): Promise<string> {
    return new URL((await this.call('POST', '/api/session/links', undefined, key)).url).origin;
  }

  /** Runs a line in a shell that finds skep and this server, with the admin key, and returns what it prints. */
  async shell(line: string): Promise<string> {
    const env = { PATH: `${path.dirname(binary())}:${process.env.PATH}`, HOME: this.dataDir, SKEP_URL: this.url, SKEP_API_KEY: this.key };
    const running = execute('/bin/sh', ['-c', line], { env });
    // A verb may wait for the end of its input.
    running.child.stdin?.end();
    return (await running).stdout;
  }

  async #start(listen: string): Promise<void> {
    const logFile = path.join(this.dataDir, 'test.log');
    fs.rmSync(logFile, { force: true });
    const log = fs.openSync(logFile, 'a');
    const serve = serveCommand(this.dataDir, listen, ...this.#options);
    // A shell's `&` and nohup make their children ignore these signals; a group of its own keeps Ctrl-C from it. A test that runs
    // out of time is killed, and its server is interrupted then, which ends its VMs as well.
    this.#child = spawn('env', ['--default-signal=INT,HUP,QUIT', 'setpriv', '--pdeathsig', 'INT', ...serve], {
      stdio: ['ignore', log, log],
      detached: true,
      env: serverEnvironment(),
    });
    fs.closeSync(log);
    const deadline = Date.now() + START_MS;
    for (;;) {
      const url = /skep serves at (http:[^\s"]+)[^\n]*\n/.exec(this.log())?.[1];
      if (url) {
        this.url = url.replace(/\/$/, '');
        break;
      }
      assert.equal(this.#child.exitCode, null, `the server did not start; its log:\n${this.log()}`);
      assert.ok(Date.now() < deadline, `the server does not start; its log:\n${this.log()}`);
      await pause(20);
    }
    this.key = fs.readFileSync(path.join(this.dataDir, 'admin.key'), 'utf8').trim();
    this.dashboard = await this.dashboardOf(this.key);
  }

  async #end(signal: NodeJS.Signals): Promise<void> {
    const child = this.#child;
    this.#child = null;
    if (!child?.pid) return;
    const ended = child.exitCode === null ? once(child, 'exit') : null;
    child.kill(signal);
    const timer = setTimeout(() => child.kill('SIGKILL'), STOP_MS);
    await ended;
    clearTimeout(timer);
    assert.equal(child.exitCode, 0, `the server ended with ${child.exitCode ?? child.signalCode}; its log:\n${this.log()}`);
  }
}

/** The command that serves a data directory. */
export function serveCommand(dataDir: string, listen: string, ...options: string[]): string[] {
  return [binary(), 'serve', '--data-dir', dataDir, '--listen', listen, ...options];
}

export function serverEnvironment(): NodeJS.ProcessEnv {
  return { ...process.env, ...SMALL_VMS, SKEP_IMAGE_DIR: images(), SKEP_POOL_SIZE: '0', SKEP_FAILED_AUTH_LIMIT: '100000/s' };
}

function binary(): string {
  const file = process.env.SKEP_BINARY ?? path.join(import.meta.dirname, '../../../target/release/skep');
  assert.ok(fs.existsSync(file), `${file} is missing: run \`make build\`, or \`make test-dashboard\``);
  return file;
}

function images(): string {
  const dir = process.env.SKEP_TEST_IMAGES;
  assert.ok(dir, 'SKEP_TEST_IMAGES is not set: run `make test-dashboard`');
  return dir;
}

/** What a server of this data directory left: processes, a network namespace, sockets. */
export function leftBy(dataDir: string): string[] {
  const name = createHash('sha256').update(fs.realpathSync(dataDir)).digest('hex').slice(0, 12);
  const left = [`/run/netns/skep-${name}`, `/run/skep/${name}`].filter((file) => fs.existsSync(file));
  for (const pid of fs.readdirSync('/proc').filter((entry) => /^\d+$/.test(entry))) {
    const [command, groups, status] = ['cmdline', 'cgroup', 'status'].map((file) => readProc(pid, file));
    // An orphan that has ended is reaped by init at some later time.
    if (!status || (status.includes('State:\tZ') && status.includes('PPid:\t1\n'))) continue;
    if (command?.includes(dataDir) || groups?.includes(name)) left.push(`process ${pid}: ${command}`);
  }
  return left;
}

function readProc(pid: string, file: string): string {
  try {
    return fs.readFileSync(`/proc/${pid}/${file}`, 'utf8').replaceAll('\0', ' ');
  } catch {
    return '';
  }
}
