import assert from 'node:assert/strict';
import { test } from 'node:test';

import axe from 'axe-core';
import type { Page } from 'playwright-core';

import { live } from './harness/browser.ts';
import { findings, FOR_CONTENT, open, pagesOf, populate } from './harness/pages.ts';
import { Suite } from './harness/suite.ts';

const suite = new Suite(...FOR_CONTENT);

/** What axe finds against WCAG 2.2 AA and good practice, a line each. */
async function violations(page: Page): Promise<string[]> {
  // By the protocol of the developer tools: the page's policy refuses scripts that are added to it.
  await page.evaluate(axe.source);
  return page.evaluate(async () => {
    const { axe } = globalThis as unknown as { axe: typeof import('axe-core') };
    const { violations } = await axe.run(document);
    return violations.flatMap(({ id, help, nodes }) =>
      nodes.map(({ target, failureSummary }) => `${id}: ${help}: ${target.join(' ')}: ${failureSummary}`),
    );
  });
}

for (const colorScheme of ['dark', 'light'] as const) {
  test(`axe finds nothing at the login and in the palette, ${colorScheme}`, async () => {
    const profile = await suite.profile({ colorScheme });
    const page = await profile.newPage();
    await page.getByLabel('Key', { exact: true }).waitFor();
    assert.deepEqual(await violations(page), []);
    await page.evaluate(() => document.querySelector('label')?.remove());
    assert.match((await violations(page)).join('\n'), /^label: /m, 'axe does not find a field without a label');
    await page.reload();
    const inside = await profile.loggedIn(suite.skep.key, '/ui/none');
    await live(inside);
    assert.deepEqual(await violations(inside), []);
    await inside.keyboard.press('Control+k');
    await inside.getByRole('combobox', { name: 'Page, ticket, or VM by name or pid' }).waitFor();
    assert.deepEqual(await violations(inside), []);
  });
}

/** The pid of a VM with a file and a repository. */
async function vmWithFiles(): Promise<number> {
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', {});
  const [{ pid }] = vms;
  const command = 'git init -q repository && cd repository && echo one > one && git add one';
  await suite.skep.call('POST', `/api/swarm/vm/${pid}/exec`, { command });
  return pid;
}

for (const colorScheme of ['dark', 'light'] as const) {
  test(`axe finds nothing on any page, ${colorScheme}`, async () => {
    const content = await populate(suite.skep, `Repair the parser of dates, ${colorScheme}`, await vmWithFiles());
    const profile = await suite.profile({ colorScheme });
    const page = await profile.loggedIn(suite.skep.key);
    assert.deepEqual(await findings(page, pagesOf(content), () => violations(page)), []);
  });
}

test('no page is wider than a narrow screen', async () => {
  const content = await populate(suite.skep, 'Repair the parser of dates on narrow screens', await vmWithFiles());
  const profile = await suite.profile({ viewport: { width: 400, height: 800 } });
  const page = await profile.loggedIn(suite.skep.key);
  const wider = async (): Promise<string[]> => {
    const [content = 0, window = 0] = await page.evaluate(() => {
      const { scrollWidth, clientWidth } = document.documentElement;
      return [scrollWidth, clientWidth];
    });
    return content > window ? [`${content} > ${window}`] : [];
  };
  assert.deepEqual(await findings(page, pagesOf(content), wider), []);
  await page.evaluate(() => {
    const wide = Object.assign(document.createElement('p'), { textContent: 'wide' });
    wide.style.width = '1000px';
    document.body.append(wide);
  });
  assert.notDeepEqual(await wider(), [], 'the test does not see a page that is too wide');
});

test('axe finds nothing in dialogs', async () => {
  const { ticket } = await populate(suite.skep, 'Repair the dialogs');
  await suite.skep.call('POST', '/api/swarm/boot', { name: 'changed' });
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key);
  for (const [path, button, title] of [
    ['/ui/keys', 'Create key', 'Create a key'],
    ['/ui/swarm', 'Boot VMs', 'Boot VMs'],
    ['/ui/swarm/changed?tab=figures', 'Change…', /^Change the VM changed/],
    [`/ui/tickets/${ticket}`, 'Edit', 'Edit the ticket'],
    [`/ui/tickets/${ticket}`, 'Delete', 'Delete the ticket?'],
  ] as const) {
    await open(page, path);
    await page.getByRole('main').getByRole('button', { name: button, exact: true }).click();
    await page.getByRole('dialog', { name: title }).waitFor();
    assert.deepEqual(await violations(page), [], String(title));
  }
});

test('axe finds nothing in the list and on the page of a VM on disk', async () => {
  await suite.skep.call('POST', '/api/swarm/boot', { name: 'asleep', idle_timeout_ms: 3_600_000 });
  await suite.skep.call('POST', '/api/swarm/vm/asleep/pause', { to: 'disk' });
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key);
  const paths = ['/ui/swarm?state=paused&paused_to=disk', '/ui/swarm?state=ended', '/ui/swarm?name=nobody'];
  paths.push(...['command', 'files', 'git', 'figures', 'console', 'egress'].map((tab) => `/ui/swarm/asleep?tab=${tab}`));
  const pages = paths.map((path) => ({ name: path, path }));
  assert.deepEqual(await findings(page, pages, () => violations(page)), []);
});

test('the palette boots, creates, changes the colours and logs out', async () => {
  const profile = await suite.profile({ colorScheme: 'light' });
  const page = await profile.loggedIn(suite.skep.key);
  const run = async (text: string): Promise<void> => {
    await page.keyboard.press('Control+k');
    const field = page.getByRole('combobox', { name: 'Page, ticket, or VM by name or pid' });
    await field.fill(text);
    await page.getByRole('option', { name: text }).first().waitFor();
    await field.press('Enter');
  };
  await live(page);
  await run('Boot VMs');
  await page.getByRole('dialog', { name: 'Boot VMs' }).getByRole('button', { name: 'Cancel' }).click();
  await run('Create a ticket');
  await page.getByRole('heading', { level: 1, name: 'New ticket' }).waitFor();
  await run('Colours: dark');
  await page.waitForFunction(() => document.documentElement.dataset.theme === 'dark');
  await run('Log out');
  await page.getByLabel('Key', { exact: true }).waitFor();
});
