import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { Page } from 'playwright-core';

import { live } from './harness/browser.ts';
import { findings, FOR_CONTENT, open, pagesOf, populate, type Content } from './harness/pages.ts';
import { Suite } from './harness/suite.ts';

const suite = new Suite(...FOR_CONTENT);

/** Each sets the canary if the page takes it for more than text. */
const HOSTILE = [
  '<script>globalThis.canary = 1</script>',
  '<img src=x onerror="globalThis.canary = 2">',
  '<svg onload="globalThis.canary = 3"><a xlink:href="javascript:globalThis.canary = 4">x</a></svg>',
  '[click](javascript:globalThis.canary=5) <javascript:globalThis.canary=6>',
  '\u202Egnp.exe\u2066 {{constructor.constructor("globalThis.canary = 7")()}} {@html x}',
  `"><iframe srcdoc="<script>parent.canary = 8</script>"></iframe>${'x'.repeat(10_000)}`,
];

async function canary(page: Page): Promise<unknown> {
  return page.evaluate(() => (globalThis as { canary?: unknown }).canary);
}

/** Elements and addresses that only a text could have brought. */
async function foreign(page: Page): Promise<string[]> {
  return page.evaluate(() =>
    [...document.querySelectorAll('*')]
      .filter((element) => {
        const handlers = [...element.attributes].some(({ name }) => name.startsWith('on'));
        const address = element.getAttribute('href') ?? element.getAttribute('xlink:href') ?? '';
        const added = element.matches('main :is(script, iframe, object, embed), main img[src="x"]');
        return handlers || added || /^\s*(javascript|vbscript|data):/i.test(address);
      })
      .map((element) => element.outerHTML.slice(0, 200)),
  );
}

test('the canary fires where a hostile text is taken for markup', async () => {
  const profile = await suite.profile();
  // A page without the policy, of the same address.
  await profile.context.route('**/control', (route) => route.fulfill({ contentType: 'text/html', body: HOSTILE.join('\n') }));
  await profile.context.route('**/x', (route) => route.fulfill({ status: 200, body: '' }));
  const page = await profile.newPage('/ui/control');
  await page.waitForFunction(() => (globalThis as { canary?: unknown }).canary !== undefined);
  assert.ok((await foreign(page)).length > 0);
});

/** What a page did with a text that it should only show. */
async function taken(page: Page): Promise<string[]> {
  const found = await foreign(page);
  const set = await canary(page);
  if (set !== undefined) found.push(`the canary was set to ${String(set)}`);
  const [content = 0, window = 0] = await page.evaluate(() => {
    const { scrollWidth, clientWidth } = document.documentElement;
    return [scrollWidth, clientWidth];
  });
  if (content > window) found.push(`the page is wider than the window: ${content} > ${window}`);
  return found;
}

test('hostile texts of callers are shown as text on each page', async () => {
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key);
  const contents: Content[] = [];
  for (const text of HOSTILE) contents.push(await populate(suite.skep, text));
  for (const [index, content] of contents.entries()) {
    // The lists show all texts at once; only these pages are of one text.
    const own = pagesOf(content).filter(({ path }) => path.includes(content.ticket) || path.includes(content.webhook));
    assert.deepEqual(await findings(page, index === 0 ? pagesOf(content) : own, () => taken(page)), [], `of the text ${index + 1}`);
    await open(page, `/ui/tickets/${content.ticket}`);
    const shown = (await page.getByRole('main').textContent()) ?? '';
    assert.ok(shown.includes(HOSTILE[index]?.slice(0, 40) ?? ''), `the text ${index + 1} is not shown`);
  }
});

test('hostile names of files and branches, and a hostile console, are shown as text', async () => {
  const name = '<img src=x onerror="globalThis.canary = 9">';
  const branch = '<img/src=x/onerror=globalThis.canary=10>';
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', { name: 'hostile' });
  const [{ pid }] = vms;
  const command = [
    'touch "$NAME" "$(printf "\\342\\200\\256gpj.exe")"',
    'git init -q -b "$BRANCH" repository && cd repository && cp "../$NAME" .',
    'git add . && git -c user.name="$NAME" -c user.email=x@y.z commit -qm "$NAME"',
    'printf "%s\\n\\033]0;x\\007" "$NAME" > /dev/console',
  ].join(' && ');
  const exec = { command, env: { NAME: name, BRANCH: branch } };
  const { exit_code, stderr } = await suite.skep.call('POST', `/api/swarm/vm/${pid}/exec`, exec);
  assert.equal(exit_code, 0, stderr);
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key);
  await open(page, `/ui/swarm/${pid}`);
  const tabs = await page.getByRole('main').getByRole('navigation').getByRole('link').all();
  const paths = await Promise.all(tabs.map(async (tab) => (await tab.getAttribute('href')) ?? ''));
  assert.ok(paths.length > 3, `the page of a VM has the tabs ${paths.join(', ')}`);
  const shown: string[] = [];
  const look = async (): Promise<string[]> => {
    shown.push((await page.getByRole('main').textContent()) ?? '');
    return taken(page);
  };
  assert.deepEqual(await findings(page, paths.map((path) => ({ name: path, path })), look), []);
  assert.ok(shown.some((text) => text.includes(name)), 'no page shows the name of the file');
});

test('a hostile name of a key and of an account is text in the navigation', async () => {
  for (const text of HOSTILE) {
    const { key } = await suite.newKey(`k${text.slice(0, 90)}`);
    const profile = await suite.profile({}, key);
    const page = await profile.loggedIn(key, '/ui/none');
    await live(page);
    const shown = await page.getByRole('banner').locator('bdi').first().textContent();
    assert.equal(shown, `k${text.slice(0, 90)}`);
    assert.equal(await canary(page), undefined);
    assert.deepEqual(await foreign(page), []);
  }
});

test('hostile contents of files and hostile names of hosts are shown as text', async () => {
  const markup = '<svg xmlns="http://www.w3.org/2000/svg" onload="parent.canary = 11"><script>parent.canary = 12</script></svg>';
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', { egress: { allow: ['a.test'] } });
  const [{ pid }] = vms;
  const command = 'for name in page.html picture.svg page.txt; do printf %s "$MARKUP" > $name; done';
  const { exit_code, stderr } = await suite.skep.call('POST', `/api/swarm/vm/${pid}/exec`, { command, env: { MARKUP: markup } });
  assert.equal(exit_code, 0, stderr);
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key);
  await open(page, `/ui/swarm/${pid}?tab=files`);
  for (const name of ['page.html', 'page.txt', 'picture.svg']) {
    await page.getByRole('button', { name, exact: true }).click();
    if (name.endsWith('.svg')) await page.getByRole('img', { name: `Content of ${name}` }).waitFor();
    else await page.getByLabel(`Content of ${name}`).getByText('canary = 12').first().waitFor();
    assert.deepEqual(await taken(page), [], name);
  }
  // The server records no name that is not one of a host; a page must not rely on that.
  const report = await suite.skep.call('GET', `/api/swarm/vm/${pid}/egress`);
  const tries = HOSTILE.map((name) => ({ at: new Date().toISOString(), name, address: null, port: null, verdict: 'refused', reason: name }));
  await page.route(`**/api/swarm/vm/${pid}/egress`, (route) => route.fulfill({ json: { ...report, tries } }));
  await open(page, `/ui/swarm/${pid}?tab=egress`);
  await page.getByRole('row').nth(HOSTILE.length).waitFor();
  assert.deepEqual(await taken(page), []);
});
