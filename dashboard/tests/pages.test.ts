import assert from 'node:assert/strict';
import { test } from 'node:test';

import axe from 'axe-core';
import type { Page } from 'playwright-core';

import { live } from './harness/browser.ts';
import { findings, FOR_CONTENT, pagesOf, populate } from './harness/pages.ts';
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
