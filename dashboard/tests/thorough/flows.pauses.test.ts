import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';

import type { Page } from 'playwright-core';

import { live, type Profile } from '../harness/browser.ts';
import { Suite } from '../harness/suite.ts';
import { eventually } from '../harness/wait.ts';

const suite = new Suite();

/** Waiting for the boot of a guest, which machines without KVM emulate. */
const GUEST_BOOT_MS = 120_000;
/** Writes a file, and starts a program. */
const WORK = 'echo kept > /root/mark; (sleep 100000 >/dev/null 2>&1 &)';
/** Prints the file, and the name of the program if it runs. */
const FOUND = "cat /root/mark; pgrep -x -l sleep | cut -d ' ' -f 2";

const vmOf = (name: string): Promise<any> => suite.skep.call('GET', `/api/swarm/vm/${name}`);

/** What a command in a VM prints. */
async function printed(name: string, command: string): Promise<string> {
  return (await suite.skep.call('POST', `/api/swarm/vm/${name}/exec`, { command })).stdout;
}

/** A page whose figures may be asked for while the VM is being paused to disk, before its event comes. */
async function pageOf(path: string): Promise<{ profile: Profile; page: Page }> {
  const profile = await suite.profile();
  profile.expect({ status: 409, path: /^\/api\/swarm\/vm\/[^/]+\/(metrics|egress)$/ });
  const page = await profile.loggedIn(suite.skep.key, path);
  await live(page);
  return { profile, page };
}

/** Waits until the overview lists an event of the VM with this cause. */
async function eventIs(page: Page, type: string, name: string, cause: string): Promise<void> {
  await page.goto('/ui/');
  const events = page.getByRole('region', { name: 'Recent events' }).getByRole('listitem');
  await events.filter({ hasText: type }).filter({ hasText: name }).filter({ hasText: cause }).first().waitFor();
}

test('a VM is paused to disk from its page, and resumed there under another process id', async () => {
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', { name: 'kept' });
  const { pid, id } = vms[0];
  await suite.skep.call('POST', `/api/swarm/vm/${pid}/exec`, { command: 'echo kept > /root/mark' });
  const { page } = await pageOf(`/ui/swarm/${pid}?tab=figures`);
  const main = page.getByRole('main');
  await main.getByText(`pid ${pid}`).waitFor();
  await page.getByRole('button', { name: 'Pause to disk' }).click();
  await main.getByText('on disk, by a request').waitFor();
  await main.getByText('paused', { exact: true }).waitFor();
  const stored = await vmOf('kept');
  assert.deepEqual([stored.state, stored.paused_to, stored.paused_by, stored.pid], ['paused', 'disk', 'request', null]);
  for (const name of ['Pause', 'Pause to disk']) assert.equal(await page.getByRole('button', { name, exact: true }).count(), 0, name);

  const part = (name: string): Promise<void> => page.getByRole('link', { name, exact: true }).click();
  await part('Files');
  await main.getByText('The VM is paused. Resume it to see its files.').waitFor();
  await part('Egress');
  await main.getByText('The VM is on disk. Resume it to see its connections.').waitFor();
  await part('Console');
  await main.getByLabel('Console', { exact: true }).waitFor();

  await page.getByRole('button', { name: 'Resume', exact: true }).click();
  await main.getByText('running', { exact: true }).waitFor();
  const resumed = await vmOf('kept');
  assert.notEqual(resumed.pid, pid);
  assert.equal(resumed.id, id);
  await main.getByText(`pid ${resumed.pid}`).waitFor();
  await page.getByRole('heading', { level: 1, name: 'kept' }).waitFor();
  await main.getByText('Resumed from disk').waitFor();
  const { stdout } = await suite.skep.call('POST', `/api/swarm/vm/${id}/exec`, { command: 'cat /root/mark' });
  assert.equal(stdout, 'kept\n');

  await eventIs(page, 'vm.paused', 'kept', 'on disk, by a request');
  await eventIs(page, 'vm.resumed', 'kept', 'by a request');
});

test('a VM is paused when it is idle, as the form of its boot says, and a command on its page resumes it', async () => {
  const { page } = await pageOf('/ui/swarm?boot=true');
  const main = page.getByRole('main');
  const form = page.getByRole('dialog', { name: 'Boot VMs' });
  assert.ok(await form.getByLabel('When idle').isDisabled(), 'an action without a time');
  await form.getByLabel('Name', { exact: true }).fill('sleeper');
  await form.getByLabel('Idle after seconds').fill('1.5');
  await form.getByLabel('When idle').selectOption('pause_to_disk');
  await form.getByRole('button', { name: 'Boot', exact: true }).click();
  const row = page.getByRole('row').filter({ hasText: 'sleeper' });
  await row.getByText('on disk, because it was idle').waitFor();
  const { id, idle_timeout_ms, on_idle } = await vmOf('sleeper');
  assert.deepEqual([idle_timeout_ms, on_idle], [1_500, 'pause_to_disk']);

  await row.getByRole('link', { name: 'sleeper' }).click();
  await main.getByText('paused to disk after 1 s').waitFor();
  await page.getByRole('button', { name: 'Change…' }).click();
  const change = page.getByRole('dialog', { name: /^Change the VM sleeper/ });
  await change.getByLabel('Idle after seconds').fill('3600');
  await change.getByLabel('When idle').selectOption('pause');
  await change.getByRole('button', { name: 'Change', exact: true }).click();
  await main.getByText('paused after 1 h 0 min').waitFor();

  const command = page.getByLabel('Command', { exact: true });
  await command.fill('echo awake again');
  await command.press('Enter');
  await page.getByRole('log').getByText('awake again', { exact: true }).waitFor();
  await page.getByRole('log').getByText('exit code 0').waitFor();
  await main.getByText('running', { exact: true }).waitFor();
  const awake = await vmOf('sleeper');
  assert.deepEqual([awake.id, awake.idle_timeout_ms, awake.on_idle], [id, 3_600_000, 'pause']);
  await main.getByText(`pid ${awake.pid}`).waitFor();

  await page.getByRole('button', { name: 'Change…' }).click();
  await change.getByLabel('Idle after seconds').fill('');
  await change.getByLabel('Name', { exact: true }).fill('renamed');
  await change.getByRole('button', { name: 'Change', exact: true }).click();
  await page.getByRole('heading', { level: 1, name: 'renamed' }).waitFor();
  await main.getByText('runs on').waitFor();
  assert.equal((await vmOf('renamed')).idle_timeout_ms, null);

  await eventIs(page, 'vm.paused', 'sleeper', 'on disk, because it was idle');
  await eventIs(page, 'vm.resumed', 'sleeper', 'by a call that needed it');
});

test('a time that the API does not take is refused in the form, with its message', async () => {
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', { name: 'restless' });
  const { profile, page } = await pageOf(`/ui/swarm/${vms[0].pid}?tab=figures`);
  profile.expect({ status: 409, path: /^\/api\/swarm\/vm\/vm_[^/]+$/ });
  await suite.skep.call('POST', '/api/swarm/boot', { name: 'taken' });
  await page.getByRole('button', { name: 'Change…' }).click();
  const change = page.getByRole('dialog', { name: /^Change the VM restless/ });
  await change.getByLabel('Name', { exact: true }).fill('taken');
  const seconds = change.getByLabel('Idle after seconds');
  await seconds.fill('0.5');
  const submit = change.getByRole('button', { name: 'Change', exact: true });
  await submit.click();
  assert.ok(await seconds.evaluate((field: HTMLInputElement) => field.validity.rangeUnderflow), 'the form takes less than a second');
  await seconds.fill('60');
  await submit.click();
  const refusal = await suite.skep.send('PATCH', `/api/swarm/vm/${vms[0].id}`, { name: 'taken' });
  const { message } = (await refusal.json()) as { message: string };
  await change.getByRole('alert').getByText(message).waitFor();
  assert.equal((await vmOf('restless')).idle_timeout_ms, null);
});

test('VMs are listed by state, name, template and metadata, in pages', async () => {
  await suite.skep.call('POST', '/api/swarm/cleanup', {});
  const boot = (body: object): Promise<any> => suite.skep.call('POST', '/api/swarm/boot', body);
  await boot({ name: 'web', metadata: { job: '7', owner: 'ada = b' } });
  await suite.skep.call('POST', '/api/swarm/vm/web/snapshot', { name: 'made' });
  await boot({ name: 'derived', template: 'made', metadata: { job: 7 } });
  await boot({ name: 'held' });
  await suite.skep.call('POST', '/api/swarm/vm/held/pause');
  await suite.skep.call('POST', '/api/swarm/vm/web/snapshot', { name: 'on-disk-alone' });
  await boot({ name: 'stored', template: 'on-disk-alone' });
  await suite.skep.call('POST', '/api/swarm/vm/stored/pause', { to: 'disk' });
  await boot({ name: 'gone' });
  await suite.skep.call('DELETE', '/api/swarm/vm/gone');

  const { page } = await pageOf('/ui/swarm');
  const rows = page.getByRole('region', { name: 'VMs', exact: true }).locator('tbody tr');
  const shown = async (): Promise<string[]> => (await rows.locator('td.vm bdi:first-of-type').allTextContents()).sort();
  const listed = (...names: string[]): Promise<unknown> =>
    eventually(`the list ${names.join(', ')}`, async () => JSON.stringify(await shown()) === JSON.stringify(names) || undefined);
  const filters = page.getByRole('form', { name: 'Filters' });
  const state = filters.getByLabel('State');
  await listed('derived', 'held', 'stored', 'web');
  // One of them is on disk, where it counts for no limit.
  await page.getByText(/^4 VMs; at most \d+ can be in memory at a time\./).waitFor();
  for (const [value, names] of [
    ['running', ['derived', 'web']],
    ['paused', ['held', 'stored']],
    ['memory', ['held']],
    ['disk', ['stored']],
  ] as const) {
    await state.selectOption(value);
    await listed(...names);
  }
  assert.equal(new URL(page.url()).search, '?state=paused&paused_to=disk');
  await rows.getByText('on disk, by a request').waitFor();
  await page.reload();
  await listed('stored');
  assert.equal(await state.inputValue(), 'disk');
  await state.selectOption('ended');
  await rows.filter({ hasText: 'gone' }).getByText(/^as deleted/).waitFor();
  assert.equal(await rows.filter({ hasText: 'gone' }).getByRole('button').count(), 0, 'actions for a VM that has ended');

  await state.selectOption('');
  const fill = async (label: string, text: string): Promise<void> => {
    const field = filters.getByLabel(label, { exact: true });
    await field.fill(text);
    await field.blur();
  };
  await fill('Name', 'web');
  await listed('web');
  await filters.locator('datalist option[value="on-disk-alone"]').waitFor({ state: 'attached' });
  await fill('Template', 'made');
  await page.getByText('No VM matches').waitFor();
  await fill('Name', '');
  await listed('derived');
  await fill('Template', '');
  await fill('Metadata', 'job=7');
  await listed('derived', 'web');
  await fill('Metadata', 'job=7\nowner=ada = b');
  await listed('web');
  await fill('Metadata', 'job');
  await filters.getByRole('alert').getByText('Write it as KEY=VALUE').waitFor();
  await fill('Metadata', '');
  await listed('derived', 'held', 'stored', 'web');

  // The server makes pages of 1,000, which no test fills.
  await page.route(/\/api\/vms\?/, (route) => route.continue({ url: route.request().url().replace('limit=1000', 'limit=3') }));
  await state.selectOption('paused');
  await listed('held', 'stored');
  await state.selectOption('');
  await page.getByText('3 shown; there are more.').waitFor();
  assert.equal((await shown()).length, 3);
  await page.getByRole('button', { name: 'Show more' }).click();
  await listed('derived', 'held', 'stored', 'web');
});

test('what paused a VM is told, also where the server did it for memory', async () => {
  await suite.skep.call('POST', '/api/swarm/boot', { name: 'crowded' });
  await suite.skep.call('POST', '/api/swarm/vm/crowded/pause', { to: 'disk' });
  const { page } = await pageOf('/ui/none');
  // A machine that is short of memory takes more VMs than a test has.
  const list = await suite.skep.call('GET', '/api/vms?name=crowded');
  const vms = list.vms.map((vm: object) => ({ ...vm, paused_by: 'memory' }));
  await page.route(/\/api\/vms\?/, (route) => route.fulfill({ json: { ...list, vms } }));
  await page.getByRole('link', { name: 'VMs', exact: true }).first().click();
  await page.getByRole('row').filter({ hasText: 'crowded' }).getByText('on disk, because memory was short').waitFor();
});

test('the page of a VM on disk whose memory is outdated has the reason and what starts the VM again', async () => {
  await suite.skep.call('POST', '/api/swarm/boot', { name: 'stale' });
  await suite.skep.call('POST', '/api/swarm/vm/stale/pause', { to: 'disk' });
  const { page } = await pageOf('/ui/none');
  const main = page.getByRole('main');
  // A test has one version of QEMU, and one processor.
  const outdated = { snapshot_state: 'outdated', snapshot_error: 'its VM was booted with qemu 1.2.3' };
  const vm = { ...(await vmOf('stale')), ...outdated };
  await page.route(new RegExp(`/api/swarm/vm/${vm.id}$`), (route) => route.fulfill({ json: vm }));
  await page.route(/\/api\/vms\?/, (route) => route.fulfill({ json: { vms: [vm], next_cursor: null } }));
  await page.getByRole('link', { name: 'VMs', exact: true }).first().click();
  await page.getByRole('button', { name: /^Actions for the VM stale/ }).click();
  const item = (name: string) => page.getByRole('menuitem', { name, exact: true });
  for (const name of ['Resume', 'Fork…', 'Snapshot…']) {
    assert.match((await item(name).getAttribute('title')) ?? '', /^The memory of the VM is outdated/, name);
  }
  assert.notEqual(await item('Resume without memory…').getAttribute('aria-disabled'), 'true');
  await page.keyboard.press('Escape');
  await page.getByRole('row').filter({ hasText: 'stale' }).getByRole('link', { name: 'stale' }).click();
  await main.getByText('on disk, by a request; its memory is outdated').waitFor();
  await main.getByText('its VM was booted with qemu 1.2.3').first().waitFor();
  const resume = main.getByRole('button', { name: 'Resume', exact: true });
  assert.match((await resume.getAttribute('title')) ?? '', /^The memory of the VM is outdated/);
  await main.getByRole('button', { name: 'Resume without memory', exact: true }).waitFor();
});

test('a VM on disk is resumed without its memory from its page, with its files and without its programs', async () => {
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', { name: 'fresh' });
  const { pid, id } = vms[0];
  await printed('fresh', WORK);
  // The shell returns before the process that it forked has become the program.
  await eventually('the control', async () => (await printed('fresh', FOUND)) === 'kept\nsleep\n' || undefined);
  const { page } = await pageOf(`/ui/swarm/${pid}?tab=figures`);
  const main = page.getByRole('main');
  const action = main.getByRole('button', { name: 'Resume without memory', exact: true });
  await main.getByText(`pid ${pid}`).waitFor();
  assert.equal(await action.count(), 0, 'a VM that runs has no memory on disk');
  await main.getByRole('button', { name: 'Pause to disk' }).click();
  await main.getByText('on disk, by a request').waitFor();

  const question = page.getByRole('dialog', { name: /^Resume the VM fresh .*without its memory\?$/ });
  await action.click();
  await question.getByText('Its files are kept. Its programs').waitFor();
  await question.getByRole('button', { name: 'Cancel' }).click();
  await question.waitFor({ state: 'detached' });
  assert.equal((await vmOf('fresh')).paused_to, 'disk');
  await action.click();
  await question.getByRole('button', { name: 'Resume without memory', exact: true }).click();
  await main.getByText('running', { exact: true }).waitFor({ timeout: GUEST_BOOT_MS });
  assert.equal((await vmOf('fresh')).id, id);
  assert.equal(await printed('fresh', FOUND), 'kept\n');
});

test('VMs of a damaged snapshot are booted from the page of templates, with its files and without its programs', async () => {
  await suite.skep.call('POST', '/api/swarm/boot', { name: 'original' });
  await printed('original', WORK);
  const { id } = await suite.skep.call('POST', '/api/swarm/vm/original/snapshot', { name: 'worn' });
  await suite.skep.restart(async () => {
    const folder = path.join(suite.skep.dataDir, 'templates', id);
    const entries = fs.readdirSync(folder, { withFileTypes: true }).filter((entry) => entry.isDirectory());
    assert.equal(entries.length, 1);
    for (const { name } of entries) fs.appendFileSync(path.join(folder, name, 'state'), 'damage');
  });
  assert.equal((await suite.skep.send('POST', '/api/swarm/boot', { template: 'worn' })).status, 422);
  const isDamaged = async (): Promise<unknown> => (await suite.skep.call('GET', '/api/templates/worn')).state === 'damaged' || undefined;
  await eventually('the record of the damage', isDamaged);

  const { page } = await pageOf('/ui/templates');
  const choose = async (template: string): Promise<void> =>
    page.getByRole('button', { name: `Actions for the template ${template}`, exact: true }).click();
  const items = page.getByRole('menuitem');
  await choose('base');
  await items.first().waitFor();
  assert.deepEqual(await items.allTextContents(), ['Boot VMs…', 'Delete']);
  await page.keyboard.press('Escape');
  await choose('worn');
  const refused = items.filter({ hasText: /^Boot VMs…$/ });
  assert.equal(await refused.getAttribute('title'), 'The template is damaged');
  await items.filter({ hasText: 'Boot VMs without memory…' }).click();
  const form = page.getByRole('dialog', { name: 'Boot VMs without memory' });
  await form.getByText('from the disk of the snapshot alone').waitFor();
  await form.getByLabel('Name', { exact: true }).fill('revived');
  await form.getByRole('button', { name: 'Boot', exact: true }).click();
  await form.waitFor({ state: 'detached', timeout: GUEST_BOOT_MS });
  assert.equal((await vmOf('revived')).template, 'worn');
  assert.equal(await printed('revived', FOUND), 'kept\n');
});
