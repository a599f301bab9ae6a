import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';
import { promisify } from 'node:util';

import type { Response } from 'playwright-core';

import { live } from './harness/browser.ts';
import { Suite } from './harness/suite.ts';
import { eventually } from './harness/wait.ts';

// Nothing answers at the address of the webhook.
const suite = new Suite('--webhook-allow', '127.0.0.1/32');
const run = promisify(execFile);

/** The status with which the API answers curl. */
async function curl(key: string): Promise<string> {
  const command = ['-s', '-o', '/dev/null', '-w', '%{http_code}', '-H', `Authorization: Bearer ${key}`];
  return (await run('curl', [...command, `${suite.skep.url}/api/whoami`])).stdout;
}

test('a key that is created in the dashboard works with curl, is shown once, and is revoked', async () => {
  const profile = await suite.profile();
  // The key is typed wrong once, which does not end the session.
  profile.expect({ status: 401, path: /^\/api\/keys$/ });
  const page = await profile.loggedIn(suite.skep.key, '/ui/keys');
  await live(page);
  await page.getByRole('button', { name: 'Create key' }).click();
  const form = page.getByRole('dialog', { name: 'Create a key' });
  await form.getByLabel('Name', { exact: true }).fill('made in a browser');
  const typed = form.getByLabel('Your key', { exact: true });
  const create = form.getByRole('button', { name: 'Create', exact: true });
  const { key: other } = await suite.newKey('not the one of the session');
  for (const wrong of ['', other]) {
    await typed.fill(wrong);
    await create.click();
    assert.equal(await typed.evaluate((field: HTMLInputElement) => field.validity.valid), false, 'a key is created without the own one');
  }
  await typed.fill(suite.skep.key.replace(/.$/, (digit) => (digit === '0' ? '1' : '0')));
  await create.click();
  await form.getByRole('alert').getByText('Invalid token').waitFor();
  const names = (await suite.skep.call('GET', '/api/keys')).keys.map(({ name }: { name: string }) => name);
  assert.ok(!names.includes('made in a browser'), 'a key was created without the own one');
  await typed.fill(suite.skep.key);
  await create.click();
  const shown = page.getByRole('dialog', { name: 'The key made in a browser' });
  const secret = shown.getByText(/^sk-skep-\S+$/);
  await secret.waitFor();
  const key = ((await secret.textContent()) ?? '').trim();
  assert.equal(await curl(key), '200');
  await shown.getByRole('button', { name: 'I have copied it' }).click();
  const row = page.getByRole('row').filter({ hasText: 'made in a browser' });
  await row.getByText('active').waitFor();
  assert.ok(!(await page.content()).includes(key), 'the key is still in the page');

  await row.getByRole('button', { name: 'Actions for the key made in a browser' }).click();
  await page.getByRole('menuitem', { name: 'Revoke' }).click();
  assert.equal(await curl(key), '200', 'the key was revoked before the question was answered');
  await page.getByRole('dialog', { name: 'Revoke the key made in a browser?' }).getByRole('button', { name: 'Revoke' }).click();
  await row.waitFor({ state: 'detached' });
  assert.equal(await curl(key), '403');
});

test('a key is rotated: the new one is shown once, and the old one stays valid', async () => {
  const old = await suite.newKey('to be rotated');
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/keys');
  await page.getByRole('button', { name: 'Actions for the key to be rotated' }).click();
  await page.getByRole('menuitem', { name: 'Rotate' }).click();
  const form = page.getByRole('dialog', { name: 'Rotate a key' });
  await form.getByLabel('Your key', { exact: true }).fill(suite.skep.key);
  await form.getByRole('button', { name: 'Rotate', exact: true }).click();
  const shown = page.getByRole('dialog', { name: 'The key to be rotated' });
  const secret = shown.getByText(/^sk-skep-\S+$/);
  await secret.waitFor();
  const key = ((await secret.textContent()) ?? '').trim();
  assert.notEqual(key, old.key);
  assert.deepEqual([await curl(key), await curl(old.key)], ['200', '200']);
  await shown.getByRole('button', { name: 'I have copied it' }).click();
  await page.getByRole('row').filter({ hasText: 'to be rotated' }).getByText('rotated', { exact: true }).waitFor();
});

test('an account is created with a quota, and what is typed for it survives a change of somebody else', async () => {
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/accounts');
  await live(page);
  await page.getByRole('button', { name: 'Create account' }).click();
  const form = page.getByRole('dialog', { name: 'Create an account' });
  await form.getByLabel('Name', { exact: true }).fill('limited');
  await form.getByLabel('VMs at most', { exact: true }).fill('3');
  await form.getByRole('button', { name: 'Create', exact: true }).click();
  await page.getByRole('heading', { level: 1, name: 'limited' }).waitFor();
  const id = new URL(page.url()).pathname.split('/').at(-1) ?? '';
  assert.equal((await suite.skep.call('GET', `/api/accounts/${id}`)).max_vms, 3);

  const limit = page.getByLabel('VMs at most', { exact: true });
  await limit.fill('5');
  await page.getByLabel('Git on the server connects for VMs to').selectOption('any remote');
  // The page reads the account again when its stream of events comes back.
  const isOfAccount = (answer: Response): boolean => new URL(answer.url()).pathname === `/api/accounts/${id}`;
  // The test's own limit applies: a stop and a start may take long on a busy machine.
  const read = page.waitForResponse(isOfAccount, { timeout: 0 });
  await suite.skep.call('PATCH', `/api/accounts/${id}`, { max_memory_mb: 4096 });
  await profile.whileAway(async () => {
    await suite.skep.restart();
    await read;
    await live(page);
  });
  assert.equal(await limit.inputValue(), '5');
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByText('Saved the settings.').waitFor();
  const saved = await suite.skep.call('GET', `/api/accounts/${id}`);
  assert.deepEqual([saved.max_vms, saved.max_memory_mb, saved.git_relay], [5, 4096, 'any']);
});

test('limits of disk space and of VMs on disk are set and shown, and what exceeds them is refused with the numbers', async () => {
  const { account } = await suite.skep.call('GET', '/api/whoami');
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', { name: 'stored' });
  const command = 'head -c 16M /dev/urandom > /root/disk && sync';
  await suite.skep.call('POST', `/api/swarm/vm/${vms[0].pid}/exec`, { command });
  const used = await eventually('a sample of the disk', async () => {
    const status = await suite.skep.call('GET', '/api/swarm/status');
    return status.disk_used_mb >= 16 ? (status.disk_used_mb as number) : undefined;
  });
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, `/ui/accounts/${account.id}`);
  await live(page);
  const limit = used + 4;
  const set = async (label: string, value: string): Promise<void> => {
    await page.getByLabel(label, { exact: true }).fill(value);
    await page.getByRole('button', { name: 'Save' }).click();
    await page.getByText('Saved the settings.').first().waitFor();
  };
  const quota = (label: string) => page.getByRole('main').locator('.quota').filter({ hasText: label }).locator('strong');
  await quota('VMs on disk').filter({ hasText: '0 / 1,000' }).waitFor();
  await quota('Disk space').filter({ hasText: '/ no limit' }).waitFor();
  await page.getByLabel('VMs on disk at most', { exact: true }).fill('0');
  await set('Disk space at most, in MiB', String(limit));
  await quota('VMs on disk').filter({ hasText: '0 / 0' }).waitFor();
  await quota('Disk space').filter({ hasText: `/ ${limit} MiB` }).waitFor();
  const shown = (await quota('Disk space').textContent()) ?? '';
  assert.ok(Number(/^\d+/.exec(shown)?.[0]) >= 16, `the page shows that ${shown} are used`);
  const changed = await suite.skep.call('GET', `/api/accounts/${account.id}`);
  assert.deepEqual([changed.max_disk_mb, changed.max_paused_vms], [limit, 0]);

  const path = `/api/swarm/vm/${vms[0].id}`;
  profile.expect({ status: 409, path: /^\/api\/swarm\/vm\/[^/]+\/(snapshot|pause)$/ });
  await page.goto(`/ui/swarm/${vms[0].pid}?tab=figures`);
  await page.getByRole('button', { name: 'Snapshot…' }).click();
  const dialog = page.getByRole('dialog', { name: /^Snapshot of the VM stored/ });
  await dialog.getByLabel('Name', { exact: true }).fill('too-large');
  await dialog.getByRole('button', { name: 'Store', exact: true }).click();
  await dialog.getByRole('alert').getByText(/of this account's \d+ MiB \(`max_disk_mb`\) are used by .*; remove files, delete a template or end a VM first$/).waitFor();
  await dialog.getByRole('button', { name: 'Cancel' }).click();
  await page.getByRole('button', { name: 'Pause to disk' }).click();
  await page.getByRole('status').getByText('this account may have 0 VMs on disk (`max_paused_vms`)').waitFor();
  assert.equal((await suite.skep.call('GET', path)).state, 'running');

  // Empty fields take the limits away, and the same is possible then.
  await page.goto(`/ui/accounts/${account.id}`);
  await live(page);
  await page.getByLabel('VMs on disk at most', { exact: true }).fill('');
  await set('Disk space at most, in MiB', '');
  await quota('Disk space').filter({ hasText: '/ no limit' }).waitFor();
  await suite.skep.call('POST', `${path}/snapshot`, { name: 'fits' });
  await suite.skep.call('POST', `${path}/pause`, { to: 'disk' });
  await quota('VMs on disk').filter({ hasText: '1 / 1,000' }).waitFor();
});

test('the audit is filtered by action, outcome, time and key, and the waitlist is downloaded as CSV', async () => {
  await suite.newKey('audited');
  await suite.skep.call('POST', '/api/tickets', { title: 'Audited too' });
  await suite.skep.call('POST', '/api/waitlist', { email: 'ada@mail.example.org', name: 'Ada' });
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/audit');
  // Entries are written some time after their requests. Nobody was logged in when the page was opened.
  const written = (query: string, isWanted: (entry: any) => boolean): Promise<any> =>
    eventually(`an entry of ${query}`, async () => (await suite.skep.call('GET', `/api/audit?${query}`)).entries.find(isWanted));
  await written('outcome=refused', ({ outcome }) => outcome.code === 'missing_token');
  const { action } = await written('outcome=done', (entry) => /key/.test(entry.action));
  await page.getByRole('button', { name: 'Read again' }).click();
  const rows = page.getByRole('region', { name: 'Audit' }).locator('tbody tr');
  const actions = async (): Promise<string[]> => [...new Set(await rows.locator('td.action').allTextContents())];
  // With one kind of actions the filter would show nothing.
  await eventually('several kinds of actions', async () => (await actions()).length > 1 || undefined);
  await page.getByLabel('Action', { exact: true }).fill(action);
  await page.getByLabel('Action', { exact: true }).press('Enter');
  await eventually('the filtered list', async () => JSON.stringify(await actions()) === JSON.stringify([action]) || undefined);

  await page.getByRole('button', { name: 'Clear' }).click();
  await eventually('the whole list', async () => (await actions()).length > 1 || undefined);
  await page.getByLabel('Outcome', { exact: true }).fill('refused');
  await page.getByLabel('Outcome', { exact: true }).press('Enter');
  const outcomes = () => rows.locator('td:nth-child(6)').allTextContents();
  await eventually('the refused requests', async () => {
    const seen = await outcomes();
    return (seen.length > 0 && seen.every((outcome) => !/^\s*2\d\d\s*$/.test(outcome))) || undefined;
  });
  assert.ok((await outcomes()).some((outcome) => /missing.token/.test(outcome)), 'what nobody was allowed is missing');
  await page.getByLabel('Since', { exact: true }).fill('2099-01-01T00:00');
  await page.getByText('No entry matches.').waitFor();
  await page.getByRole('button', { name: 'Clear' }).click();
  const { key } = await suite.skep.call('GET', '/api/whoami');
  await page.getByLabel('Key', { exact: true }).selectOption(key.id);
  await eventually('the requests of the key', async () => {
    const seen = await actions();
    return (seen.length > 1 && !seen.includes('whoami')) || undefined;
  });

  await page.goto('/ui/waitlist');
  await page.getByText('ada@mail.example.org').first().waitFor();
  const [download] = await Promise.all([page.waitForEvent('download'), page.getByRole('button', { name: 'Download CSV' }).click()]);
  assert.equal(download.suggestedFilename(), 'waitlist.csv');
  assert.match(await readFile(await download.path(), 'utf8'), /ada@mail\.example\.org.*Ada/);
});

test('an event is sent to a webhook again', async () => {
  const { id } = await suite.skep.call('POST', '/api/webhooks', { url: 'http://127.0.0.1:9/hook' });
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, `/ui/webhooks/${id}`);
  await page.getByRole('button', { name: 'Send test event' }).click();
  const menu = page.getByRole('button', { name: /^Actions for the delivery/ }).first();
  await menu.click();
  const sent = page.waitForResponse((answer) => answer.url().endsWith('/redeliver'));
  await page.getByRole('menuitem', { name: 'Send again' }).click();
  assert.ok((await sent).ok());
  await page.getByText('The event is sent again.').waitFor();
});

test('a key with few scopes sees what it may not do, and why', async () => {
  const { key } = await suite.newKey('a reader', ['swarm:read', 'tickets:read', 'files:read']);
  const ticket = await suite.skep.call('POST', '/api/tickets', { title: 'Only read' });
  const profile = await suite.profile({}, key);
  const page = await profile.loggedIn(key, `/ui/tickets/${ticket.id}`);
  const reason = /a reader lacks the scope/;
  const refused = async (name: string): Promise<void> => {
    const button = page.getByRole('main').getByRole('button', { name, exact: true });
    await button.waitFor();
    assert.equal(await button.getAttribute('aria-disabled'), 'true', name);
    assert.match((await button.getAttribute('title')) ?? '', reason, name);
    // What a script or an assistive technology clicks does nothing either.
    await button.dispatchEvent('click');
  };
  for (const name of ['Edit', 'Mark as failed', 'Delete']) await refused(name);
  assert.equal(await page.getByRole('dialog').count(), 0);
  await page.goto('/ui/swarm');
  await refused('Boot VMs');
  assert.equal(await page.getByRole('dialog').count(), 0);
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', {});
  await page.goto(`/ui/swarm/${vms[0].pid}`);
  const parts = page.getByRole('navigation', { name: 'Parts of the VM' });
  await parts.getByRole('link', { name: 'Figures' }).waitFor();
  assert.equal(await parts.locator('[aria-current]').textContent(), 'Figures', 'the first part that the key may see');
  for (const name of ['Command line', 'Files', 'Git']) {
    const part = parts.getByRole('link', { name });
    assert.equal(await part.getAttribute('href'), null, name);
    assert.match((await part.getAttribute('title')) ?? '', reason, name);
  }
  await page.goto(`/ui/swarm/${vms[0].pid}?tab=files`);
  await page.getByText(/a reader lacks the scope swarm:exec/).waitFor();
  await page.goto('/ui/keys');
  await page.getByText('This key may not see this page').waitFor();
  assert.equal(await page.getByRole('navigation', { name: 'Pages' }).getByRole('link', { name: 'Keys' }).count(), 0);
});
