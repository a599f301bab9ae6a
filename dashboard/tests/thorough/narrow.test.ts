import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { Locator, Page } from 'playwright-core';

import { live } from '../harness/browser.ts';
import { findings, FOR_CONTENT, pagesOf, populate } from '../harness/pages.ts';
import { Suite } from '../harness/suite.ts';
import { eventually } from '../harness/wait.ts';

const suite = new Suite(...FOR_CONTENT);
const WIDTH = 390;

/** What of an element is outside the window; empty where all of it can be seen without scrolling sideways. */
async function outside(page: Page, element: Locator): Promise<string> {
  const box = await element.boundingBox();
  const { width, height } = page.viewportSize() ?? { width: 0, height: 0 };
  if (!box) return 'it is not shown';
  const inside = box.x >= 0 && box.x + box.width <= width && box.y >= 0 && box.y + box.height <= height;
  return inside ? '' : `${JSON.stringify(box)} is outside of ${width} × ${height}`;
}

for (const [shape, height] of [
  ['upright', 844],
  ['flat', 390],
] as const) {
  test(`all actions of a VM are reachable in the list on a narrow screen, ${shape}`, async () => {
    await suite.skep.call('POST', '/api/swarm/cleanup', {});
    const name = `worker-with-a-name-of-the-greatest-length-that-there-is-${'x'.repeat(7)}`;
    assert.equal(name.length, 63);
    // The menu of the last row has no room below it.
    for (const each of [name, 'second', 'third', 'fourth', 'fifth']) await suite.skep.call('POST', '/api/swarm/boot', { name: each });
    await suite.skep.call('POST', '/api/swarm/vm/second/pause', { to: 'disk' });
    const profile = await suite.profile({ viewport: { width: WIDTH, height }, hasTouch: true });
    const page = await profile.loggedIn(suite.skep.key, '/ui/swarm');
    const rows = page.getByRole('region', { name: 'VMs', exact: true }).locator('tbody tr');
    await eventually('all rows', async () => (await rows.count()) === 5 || undefined);
    const running = ['Pause', 'Fork…', 'Snapshot…', 'Pause to disk', 'End'];
    for (const [vm, items] of [
      [name, running],
      ['second', ['Resume', 'Fork…', 'Snapshot…', 'End']],
      ['third', running],
      ['fourth', running],
      ['fifth', running],
    ] as const) {
      const actions = rows.filter({ hasText: vm }).getByRole('button', { name: `Actions for the VM ${vm}` });
      // Only up and down: nobody looks for what is beyond the edge of a table.
      await actions.evaluate((button) => window.scrollBy(0, button.getBoundingClientRect().bottom - window.innerHeight / 2));
      assert.equal(await outside(page, actions), '', `the button of ${vm}`);
      const beyond = await rows.first().evaluate((row) => {
        const { scrollWidth = 0, clientWidth = 0 } = row.closest('[role=region]') ?? {};
        return scrollWidth - clientWidth;
      });
      assert.equal(beyond, 0, 'the table is wider than the screen');
      await actions.tap();
      const menu = page.getByRole('menu');
      await menu.getByRole('menuitem').first().waitFor();
      assert.deepEqual(await menu.getByRole('menuitem').allTextContents(), [...items], vm);
      for (const item of await menu.getByRole('menuitem').all()) assert.equal(await outside(page, item), '', `${vm}: ${await item.textContent()}`);
      await page.keyboard.press('Escape');
    }

    await rows.filter({ hasText: 'fifth' }).getByRole('button', { name: /^Actions/ }).tap();
    await page.getByRole('menuitem', { name: 'Pause to disk', exact: true }).tap();
    await rows.filter({ hasText: 'fifth' }).getByText('on disk, by a request').waitFor();
    await rows.filter({ hasText: 'third' }).getByRole('checkbox').tap();
    await page.getByRole('button', { name: 'End 1 selected' }).tap();
    await page.getByRole('dialog').getByRole('button', { name: 'End', exact: true }).tap();
    await rows.filter({ hasText: 'third' }).waitFor({ state: 'detached' });
  });
}

test('no table of a page has buttons beyond its edge on a narrow screen', async () => {
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', { name: 'listed', egress: { allow: ['a.test'] } });
  await suite.skep.call('POST', `/api/swarm/vm/${vms[0].pid}/exec`, { command: 'getent ahosts evil.test; true' });
  await suite.skep.call('POST', '/api/swarm/vm/listed/snapshot', { name: 'a-template-with-a-rather-long-name' });
  const content = await populate(suite.skep, 'Repair the parser of dates on narrow screens', vms[0].pid);
  const profile = await suite.profile({ viewport: { width: WIDTH, height: 844 } });
  const page = await profile.loggedIn(suite.skep.key);
  let seen = 0;
  const beyond = async (): Promise<string[]> => {
    const { count, found } = await page.evaluate(() => {
      const buttons = [...document.querySelectorAll('main table :is(button, input, a)')];
      const hidden = buttons.filter((button) => {
        const box = button.closest('[role=region]')?.getBoundingClientRect();
        const { right, width } = button.getBoundingClientRect();
        return box && width > 0 && right > box.right;
      });
      return { count: buttons.length, found: hidden.map((button) => button.getAttribute('aria-label') ?? button.textContent ?? '') };
    });
    seen += count;
    return found;
  };
  assert.deepEqual(await findings(page, pagesOf(content), beyond), []);
  assert.ok(seen > 20, `only ${seen} buttons and links were seen`);
});

test('all actions of the page of a VM are reachable on a narrow screen', async () => {
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', { name: 'narrow' });
  const profile = await suite.profile({ viewport: { width: WIDTH, height: 844 }, hasTouch: true });
  const page = await profile.loggedIn(suite.skep.key, `/ui/swarm/${vms[0].pid}?tab=figures`);
  await live(page);
  // On a narrow screen the figures take more lines once they are known, and move the tabs below them.
  await page.getByRole('main').getByText(/MiB on the server/).waitFor();
  for (const name of ['Copy as curl', 'Change…', 'Fork…', 'Snapshot…', 'Pause', 'Pause to disk', 'End']) {
    const button = page.getByRole('main').getByRole('button', { name, exact: true });
    await button.scrollIntoViewIfNeeded();
    assert.equal(await outside(page, button), '', name);
  }
  for (const name of ['Command line', 'Files', 'Git', 'Figures', 'Console', 'Egress']) {
    const part = page.getByRole('navigation', { name: 'Parts of the VM' }).getByRole('link', { name, exact: true });
    await part.scrollIntoViewIfNeeded();
    assert.equal(await outside(page, part), '', name);
  }
});
