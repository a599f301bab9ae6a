import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { Locator, Page } from 'playwright-core';

import { live } from './harness/browser.ts';
import { Suite } from './harness/suite.ts';
import { eventually } from './harness/wait.ts';

const suite = new Suite();

const vmOf = (name: string): Promise<any> => suite.skep.call('GET', `/api/swarm/vm/${name}`);

/** The row of a template, by its name. */
function rowOf(page: Page, name: string): Locator {
  return page.getByRole('row').filter({ has: page.getByText(name, { exact: true }) });
}

/** Fails unless these templates are listed in this order, on these levels, both as seen and as read aloud. */
async function isTree(page: Page, wanted: readonly (readonly [string, number])[]): Promise<void> {
  const rows = page.getByRole('row');
  const names = rows.locator('strong');
  assert.deepEqual(await names.allTextContents(), wanted.map(([name]) => name));
  const levels = wanted.map(([, level]) => level);
  assert.deepEqual(await rows.getByText(/^level \d+$/).allTextContents(), levels.map((level) => `level ${level}`));
  const lefts = await names.evaluateAll((all) => all.map((one) => one.getBoundingClientRect().left));
  const indents = [...new Set(lefts)].sort((one, other) => one - other);
  assert.deepEqual(lefts.map((left) => indents.indexOf(left) + 1), levels);
}

async function deletion(page: Page, name: string): Promise<Locator> {
  await page.getByRole('button', { name: `Actions for the template ${name}`, exact: true }).click();
  return page.getByRole('menuitem', { name: 'Delete', exact: true });
}

test('a VM is forked from its page, and the copy leads back to it', async () => {
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', { name: 'original' });
  await suite.skep.call('POST', `/api/swarm/vm/${vms[0].pid}/exec`, { command: 'echo kept > /root/mark' });
  const profile = await suite.profile();
  // The copy's page asks for the VM that it was forked from, also after that one's end.
  profile.expect({ status: 404, path: new RegExp(`^/api/swarm/vm/${vms[0].id}$`) });
  const page = await profile.loggedIn(suite.skep.key, `/ui/swarm/${vms[0].pid}?tab=figures`);
  await live(page);
  await page.getByRole('button', { name: 'Fork…' }).click();
  const dialog = page.getByRole('dialog', { name: /^Fork the VM original/ });
  await dialog.getByLabel('Name', { exact: true }).fill('copy');
  await dialog.getByRole('button', { name: 'Fork', exact: true }).click();
  await page.getByRole('status').getByRole('link', { name: /^copy / }).click();
  await page.getByRole('heading', { level: 1, name: 'copy' }).waitFor();
  const copy = await vmOf('copy');
  assert.equal(copy.parent, vms[0].id);
  const { stdout } = await suite.skep.call('POST', `/api/swarm/vm/${copy.pid}/exec`, { command: 'cat /root/mark' });
  assert.equal(stdout, 'kept\n');

  const parent = page.getByRole('main').getByRole('link', { name: /^original / });
  await parent.waitFor();
  await suite.skep.call('DELETE', `/api/swarm/vm/${vms[0].pid}`);
  await page.getByText('which has ended').waitFor();
  assert.equal(await parent.count(), 0, 'the page links to a VM that has ended');
});

test('two copies are made from the list, below which their parent is named', async () => {
  await suite.skep.call('POST', '/api/swarm/boot', { name: 'listed' });
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/swarm');
  await live(page);
  const actions = page.getByRole('button', { name: /^Actions for the VM listed/ });
  await actions.click();
  await page.getByRole('menuitem', { name: 'Fork…' }).click();
  const dialog = page.getByRole('dialog', { name: /^Fork the VM listed/ });
  await dialog.getByLabel('Number of copies').fill('2');
  assert.ok(await dialog.getByLabel('Name', { exact: true }).isDisabled(), 'several copies have one name');
  await dialog.getByRole('button', { name: 'Fork', exact: true }).click();
  const copies = page.getByRole('row').filter({ hasText: /copy of\s+listed/ });
  await eventually('two copies in the table', async () => (await copies.count()) === 2 || undefined);

  await suite.skep.call('POST', '/api/swarm/vm/listed/pause');
  await page.getByRole('row').filter({ has: actions }).getByText('paused').waitFor();
  await actions.click();
  for (const name of ['Fork…', 'Snapshot…']) {
    const item = page.getByRole('menuitem', { name });
    assert.equal(await item.getAttribute('aria-disabled'), 'true');
    assert.match((await item.getAttribute('title')) ?? '', /^The VM is paused/);
  }
});

test('a snapshot is in the tree of templates, and is deleted only when no VM and no template needs it', async () => {
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', { name: 'stored' });
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, `/ui/swarm/${vms[0].pid}?tab=figures`);
  await live(page);
  await page.getByRole('button', { name: 'Snapshot…' }).click();
  const dialog = page.getByRole('dialog', { name: /^Snapshot of the VM stored/ });
  const name = dialog.getByLabel('Name', { exact: true });
  await name.fill('Not-Valid');
  await dialog.getByRole('button', { name: 'Store', exact: true }).click();
  assert.ok(await name.evaluate((field: HTMLInputElement) => field.validity.patternMismatch), 'the form takes a wrong name');
  await name.fill('installed');
  await dialog.getByLabel('Description', { exact: true }).fill('after the installation');
  await dialog.getByRole('button', { name: 'Store', exact: true }).click();
  await page.getByRole('status').getByRole('link', { name: 'installed' }).click();
  const row = rowOf(page, 'installed');
  await row.getByText('after the installation').waitFor();
  await row.getByText(/snapshot of a VM, from\s+base/).waitFor();
  const names = await page.getByRole('row').locator('strong').allTextContents();
  assert.deepEqual(names, ['base', 'installed']);

  await page.getByRole('button', { name: 'Actions for the template installed', exact: true }).click();
  await page.getByRole('menuitem', { name: 'Boot VMs…' }).click();
  const form = page.getByRole('dialog', { name: 'Boot VMs' });
  await form.getByLabel('Name', { exact: true }).fill('from-snapshot');
  await form.getByRole('button', { name: 'Boot', exact: true }).click();
  await form.waitFor({ state: 'detached' });
  assert.equal((await vmOf('from-snapshot')).template, 'installed');

  // Events bring the figures, by which the page refuses; the server does too.
  const reasonIs = (wanted: RegExp): Promise<unknown> =>
    eventually(`the reason ${wanted}`, async () => {
      const item = await deletion(page, 'installed');
      const reason = (await item.getAttribute('title')) ?? '';
      await page.keyboard.press('Escape');
      return wanted.test(reason) || undefined;
    });
  await reasonIs(/^VMs run from it \(1\)/);
  assert.equal((await suite.skep.send('DELETE', '/api/templates/installed')).headers.get('skep-error'), 'template_in_use');
  // Neither the names nor the ages of the templates have the order of the tree.
  await suite.skep.call('POST', '/api/swarm/vm/stored/snapshot', { name: 'other' });
  await suite.skep.call('POST', '/api/swarm/vm/from-snapshot/snapshot', { name: 'deeper' });
  await rowOf(page, 'deeper').waitFor();
  await isTree(page, [
    ['base', 1],
    ['installed', 2],
    ['deeper', 3],
    ['other', 2],
  ]);
  await suite.skep.call('DELETE', '/api/templates/other');
  await suite.skep.call('DELETE', '/api/swarm/vm/from-snapshot');
  await reasonIs(/^Templates were made from it \(1\)/);
  for (const template of ['deeper', 'installed']) {
    if (template === 'installed') await reasonIs(/^$/);
    await (await deletion(page, template)).click();
    const question = page.getByRole('dialog', { name: `Delete the template ${template}?` });
    await question.getByText('It is refused while VMs run').waitFor();
    await question.getByRole('button', { name: 'Delete', exact: true }).click();
    await rowOf(page, template).waitFor({ state: 'detached' });
    assert.equal((await suite.skep.send('GET', `/api/templates/${template}`)).status, 404);
  }
});
