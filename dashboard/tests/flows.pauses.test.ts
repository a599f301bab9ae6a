import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { Page } from 'playwright-core';

import { live, type Profile } from './harness/browser.ts';
import { Suite } from './harness/suite.ts';
import { eventually } from './harness/wait.ts';

const suite = new Suite();

const vmOf = (name: string): Promise<any> => suite.skep.call('GET', `/api/swarm/vm/${name}`);

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
  await boot({ name: 'stored' });
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
