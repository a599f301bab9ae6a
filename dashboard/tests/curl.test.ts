import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { test } from 'node:test';
import { promisify } from 'node:util';

import type { Locator, Page } from 'playwright-core';

import { live, type Expected } from './harness/browser.ts';
import { FOR_CONTENT, open, pagesOf, populate } from './harness/pages.ts';
import { Suite } from './harness/suite.ts';
import { eventually } from './harness/wait.ts';

const suite = new Suite(...FOR_CONTENT);
const execute = promisify(execFile);

/** Text that a shell would change if a command did not quote it. */
const AWKWARD = `It's "quoted" \`id\` $HOME \\ !! {a,b} [0-9] ü`;

/** Runs a copied command as it is, in a shell that has the key under the name that the command uses. */
async function run(command: string): Promise<string> {
  const options = ['--fail-with-body', '--silent', '--show-error'].join(' ');
  // Options of the test alone: curl succeeds otherwise whatever the status is.
  const script = `curl() { command curl ${options} "$@"; }\n${command}`;
  const env = { PATH: process.env.PATH, HOME: '/nowhere', SKEP_API_KEY: suite.skep.key };
  const { stdout } = await execute('/bin/bash', ['-c', script], { env, maxBuffer: 64 << 20, encoding: 'latin1' });
  return stdout;
}

async function copied(page: Page): Promise<string> {
  return page.evaluate(() => navigator.clipboard.readText());
}

/** Clicks what copies a command, and returns it. */
async function commandOf(page: Page, button: Locator): Promise<string> {
  await page.evaluate(() => navigator.clipboard.writeText(''));
  await button.click();
  return eventually('a copied command', async () => (await copied(page)) || undefined);
}

async function readingPage(path: string, ...expected: Expected[]): Promise<Page> {
  const profile = await suite.profile();
  profile.expect(...expected);
  await profile.context.grantPermissions(['clipboard-read', 'clipboard-write']);
  const page = await profile.loggedIn(suite.skep.key, path);
  await live(page);
  return page;
}

const vmOf = (name: string): Promise<any> => suite.skep.call('GET', `/api/swarm/vm/${name}`);

test('each command that a page offers for what it shows is answered', async () => {
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', { name: 'shown' });
  const command = 'git init -q repository && cd repository && echo one > one && git add one';
  await suite.skep.call('POST', `/api/swarm/vm/${vms[0].pid}/exec`, { command });
  const content = await populate(suite.skep, AWKWARD, vms[0].pid);
  const page = await readingPage('/ui/');
  const paths = pagesOf(content).map(({ path }) => path);
  const text = encodeURIComponent(AWKWARD);
  paths.push(`/ui/tickets?q=${text}`, '/ui/tickets?q={a,b}[0-9]', '/ui/audit?action=boot');
  paths.push('/ui/swarm?state=paused&paused_to=disk', `/ui/swarm?metadata.a+b=${text}`);
  const failed: string[] = [];
  let answered = 0;
  for (const path of paths) {
    await open(page, path);
    const buttons = page.getByRole('main').getByRole('button', { name: 'Copy as curl', exact: true }).and(page.locator(':not([aria-haspopup])'));
    // A button has another name for two seconds after its click, and is then not counted: the ones before it keep their places.
    for (const button of (await buttons.all()).reverse()) {
      const command = await commandOf(page, button);
      if (/ -X /.test(command)) continue;
      try {
        const answer = await run(command);
        // curl makes several requests of an address with braces, unless it is told not to.
        if (path.includes('{')) JSON.parse(answer);
        answered += 1;
      } catch (error) {
        const { stdout, message } = error as { stdout?: string; message: string };
        failed.push(`${path}: ${command}: ${stdout || message}`);
      }
    }
  }
  assert.deepEqual(failed, []);
  assert.ok(answered >= 15, `only ${answered} commands were found`);
  await assert.rejects(run('curl -H "Authorization: Bearer $SKEP_API_KEY" ' + `${suite.skep.url}/api/none`), 'a refusal passes for an answer');
});

test('the command of a boot boots what the form says, and those of a VM do what its buttons do', async () => {
  // The page may ask for the VM and its figures after a command and before the event that tells of it.
  const path = /^\/api\/swarm\/vm\/[^/]+(\/metrics)?$/;
  const page = await readingPage('/ui/swarm?boot=true', { status: 409, path }, { status: 404, path });
  const form = page.getByRole('dialog', { name: 'Boot VMs' });
  await form.getByLabel('Name', { exact: true }).fill('by-curl');
  await form.getByLabel('Ends after minutes').fill('60');
  await form.getByLabel('Idle after seconds').fill('3600');
  await form.getByLabel('When idle').selectOption('end');
  await form.getByLabel('May connect outside to').selectOption('list');
  await form.getByLabel('Hosts and networks').fill('*.example.org');
  await run(await commandOf(page, form.getByRole('button', { name: 'Copy as curl' })));
  const booted = await vmOf('by-curl');
  assert.deepEqual([booted.idle_timeout_ms, booted.on_idle, booted.egress.allow], [3_600_000, 'end', ['*.example.org']]);
  assert.equal(Date.parse(booted.expires_at) - Date.parse(booted.started_at) >= 3_600_000, true);

  await page.goto(`/ui/swarm/${booted.pid}?tab=command`);
  await live(page);
  const line = `printf %s '${AWKWARD.replaceAll("'", `'\\''`)}'`;
  await page.getByLabel('Command', { exact: true }).fill(line);
  const answer = await run(await commandOf(page, page.getByRole('main').locator('form').getByRole('button', { name: 'Copy as curl' })));
  assert.equal(JSON.parse(Buffer.from(answer, 'latin1').toString()).stdout, AWKWARD);

  const choose = async (item: string): Promise<any> => {
    await page.getByRole('button', { name: 'Copy as curl', expanded: false }).and(page.locator('[aria-haspopup]')).click();
    const answer = await run(await commandOf(page, page.getByRole('menuitem', { name: item, exact: true })));
    return JSON.parse(answer);
  };
  const main = page.getByRole('main');
  assert.equal((await choose('Show the VM')).id, booted.id);
  const { vms } = await choose('Fork it');
  assert.equal((await vmOf(vms[0].id)).parent, booted.id);
  assert.equal((await choose('Snapshot it')).name, 'installed');
  await choose('Pause it');
  await main.getByText('in memory, by a request').waitFor();
  await choose('Resume it');
  await main.getByText('running', { exact: true }).waitFor();
  await choose('Pause it to disk');
  await main.getByText('on disk, by a request').waitFor();
  await choose('Resume it');
  await main.getByText('running', { exact: true }).waitFor();
  await choose('End it');
  assert.equal((await suite.skep.send('GET', `/api/swarm/vm/${booted.id}`)).status, 404);
});

test('the commands of forms create and change what the forms say', async () => {
  const page = await readingPage('/ui/tickets/new');
  const main = page.getByRole('main');
  await main.getByLabel('Title').fill(AWKWARD);
  await main.getByLabel('Description').fill(`${AWKWARD}\nsecond line`);
  const ticket = JSON.parse(Buffer.from(await run(await commandOf(page, main.getByRole('button', { name: 'Copy as curl' }))), 'latin1').toString());
  const stored = await suite.skep.call('GET', `/api/tickets/${ticket.id}`);
  assert.deepEqual([stored.title, stored.description], [AWKWARD, `${AWKWARD}\nsecond line`]);

  await page.goto('/ui/keys');
  await page.getByRole('button', { name: 'Create key' }).click();
  const form = page.getByRole('dialog', { name: 'Create a key' });
  await form.getByLabel('Name', { exact: true }).fill(`a key: ${AWKWARD}`);
  await run(await commandOf(page, form.getByRole('button', { name: 'Copy as curl' })));
  const { keys } = await suite.skep.call('GET', '/api/keys?limit=1000');
  assert.ok(keys.some(({ name }: { name: string }) => name === `a key: ${AWKWARD}`), 'the key does not have the name of the form');

  const { account } = await suite.skep.call('GET', '/api/whoami');
  await page.goto(`/ui/accounts/${account.id}`);
  await page.getByLabel('VMs at most', { exact: true }).fill('77');
  await run(await commandOf(page, main.locator('form').getByRole('button', { name: 'Copy as curl' })));
  assert.equal((await suite.skep.call('GET', `/api/accounts/${account.id}`)).max_vms, 77);
});
