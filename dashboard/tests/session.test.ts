import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';

import type { Page } from 'playwright-core';

import { live, logIn, type Profile } from './harness/browser.ts';
import { leftBy, serveCommand, serverEnvironment, START_MS } from './harness/server.ts';
import { Suite } from './harness/suite.ts';
import { Terminal } from './harness/terminal.ts';
import { eventually } from './harness/wait.ts';

const suite = new Suite();

/** All that the page could have stored, as one text. */
async function stored(page: Page): Promise<string> {
  return page.evaluate(async () => {
    const texts = [JSON.stringify(localStorage), JSON.stringify(sessionStorage), document.cookie, location.href];
    for (const { name = '' } of await indexedDB.databases()) {
      const database = await new Promise<IDBDatabase>((resolve, reject) => {
        const opening = indexedDB.open(name);
        opening.onsuccess = () => resolve(opening.result);
        opening.onerror = () => reject(opening.error);
      });
      for (const store of database.objectStoreNames) {
        const reading = database.transaction(store).objectStore(store).getAll();
        texts.push(await new Promise((resolve) => (reading.onsuccess = () => resolve(JSON.stringify(reading.result)))));
      }
      database.close();
    }
    for (const name of await caches.keys()) {
      for (const { url } of await (await caches.open(name)).keys()) texts.push(url);
    }
    return texts.join('\n');
  });
}

test('a key logs in, and the browser stores neither it nor the token of the session', async () => {
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key);
  await live(page);
  const cookies = await profile.context.cookies();
  const session = cookies.find(({ name }) => name === 'skep_session');
  assert.ok(session?.httpOnly, JSON.stringify(cookies));
  assert.equal(session.sameSite, 'Strict');
  await page.evaluate(() => localStorage.setItem('control', 'a canary in the storage'));
  const text = await stored(page);
  assert.ok(text.includes('a canary in the storage'), 'the test does not see what is stored');
  for (const secret of [suite.skep.key, suite.skep.key.slice(-32), session.value]) {
    assert.ok(!text.includes(secret), 'a secret is in the storage of the browser');
    assert.ok(!(await page.content()).includes(secret), 'a secret is in the page');
  }
});

test('a key that is not valid is refused with the message of the API, and another one may follow', async () => {
  const profile = await suite.profile();
  profile.expect({ status: 401, path: /^\/api\/session$/ });
  const page = await profile.newPage();
  const key = page.getByLabel('Key', { exact: true });
  await key.fill(`${suite.skep.key.slice(0, -4)}0000`);
  await page.getByRole('button', { name: 'Log in' }).click();
  const alert = page.getByRole('alert');
  await alert.waitFor();
  const refusal = await suite.skep.send('GET', '/api/whoami', undefined, `${suite.skep.key.slice(0, -4)}0000`);
  const { message } = (await refusal.json()) as { message: string };
  assert.equal(refusal.status, 401);
  assert.equal(await alert.textContent(), message);
  assert.equal(await key.getAttribute('aria-invalid'), 'true');
  await logIn(page, suite.skep.key);
});

test('a link logs in once, and its token stays neither in the address nor in the history', async () => {
  const { url } = await suite.skep.call('POST', '/api/session/links');
  const token: string = url.split('#login=')[1];
  assert.match(token, /^[0-9a-f]{64}$/);
  const first = await suite.profile();
  const page = await first.newPage(url);
  await page.getByRole('navigation', { name: 'Pages' }).waitFor();
  assert.equal(page.url(), `${suite.skep.url}/ui/`);
  assert.ok(!(await stored(page)).includes(token));
  const states = await page.evaluate(() => JSON.stringify(history.state) + location.href);
  assert.ok(!states.includes(token));

  const second = await suite.profile();
  const again = await second.newPage(url);
  await again.getByLabel('Key', { exact: true }).waitFor();
  const status = again.getByRole('status').first();
  await status.waitFor();
  assert.match((await status.textContent()) ?? '', /^The link was used before, or has expired/);
  assert.equal((await second.context.cookies()).length, 0);
});

test('the link that `skep open` prints logs in with the rights of its key', async () => {
  const url = (await suite.skep.shell('skep open')).trim();
  assert.equal(new URL(url).origin, suite.skep.url);
  const profile = await suite.profile();
  const page = await profile.newPage(url);
  await page.getByRole('banner').locator('bdi').first().getByText('admin', { exact: true }).waitFor();
  await live(page);
});

test('a server that is started on a terminal prints a link, which opens the dashboard logged in as its administrator', async () => {
  const dataDir = await mkdtemp(path.join(tmpdir(), 'skep-dashboard-'));
  const terminal = new Terminal(serveCommand(dataDir, '127.0.0.1:0'), serverEnvironment());
  try {
    const url = await terminal.shows(/Log a browser in once, within 10 minutes: (\S+)\r?\n/, START_MS);
    const { origin } = new URL(url);
    assert.equal(origin, await terminal.shows(/skep serves at (\S+?)\/?\r?\n/, START_MS));
    const profile = await suite.profile();
    profile.allowOrigin(url);
    const page = await profile.newPage(url);
    await page.getByRole('banner').locator('bdi').first().getByText('admin', { exact: true }).waitFor();
    assert.equal(page.url(), `${origin}/ui/`);
    await page.getByRole('link', { name: 'Keys', exact: true }).first().click();
    await page.getByRole('row').filter({ hasText: 'admin' }).first().waitFor();
    await page.close();
  } finally {
    assert.equal(await terminal.interrupt(), 0, terminal.shown);
  }
  assert.deepEqual(leftBy(dataDir), []);
  await rm(dataDir, { recursive: true });
  // What is printed elsewhere is kept, such as by a journal.
  assert.ok(!suite.skep.log().includes('#login='), 'a link is in the log');
  assert.match(suite.skep.log(), /skep serves at/);
});

test('a link replaces a session only after a question, and all tabs get to know it', async () => {
  const { key } = await suite.newKey('was there before', ['admin', 'tickets:read']);
  const link = async (): Promise<string> => (await suite.skep.call('POST', '/api/session/links')).url;
  const profile = await suite.profile();
  const page = await profile.loggedIn(key, '/ui/keys');
  const keyOf = (tab: Page) => tab.getByRole('banner').locator('bdi').first();
  await keyOf(page).getByText('was there before').waitFor();
  const tab = await profile.newPage(await link());
  const question = tab.getByRole('dialog', { name: 'Log in by the link?' });
  await question.getByText('was there before').waitFor();
  await question.getByRole('button', { name: 'Cancel' }).click();
  await tab.reload();
  await keyOf(tab).getByText('was there before').waitFor();

  const used = await link();
  const second = await profile.newPage(used);
  await second.getByRole('dialog').getByRole('button', { name: 'Log in by the link' }).click();
  const { name } = (await suite.skep.call('GET', '/api/whoami')).key;
  for (const each of [second, page, tab]) await keyOf(each).getByText(name, { exact: true }).waitFor();

  // A link that is refused leaves the session as it is.
  const third = await profile.newPage(used);
  await third.getByRole('dialog').getByRole('button', { name: 'Log in by the link' }).click();
  await third.getByText(/^The link was used before, or has expired.* You are still logged in as before\.$/).waitFor();
  await keyOf(third).getByText(name, { exact: true }).waitFor();
});

test('a question of a session is gone once another one has replaced it', async () => {
  const { id } = await suite.newKey('to be kept');
  const { key } = await suite.newKey('asks', ['admin', 'tickets:read']);
  const profile = await suite.profile();
  const page = await profile.loggedIn(key, '/ui/keys');
  await page.getByRole('button', { name: 'Actions for the key to be kept' }).click();
  await page.getByRole('menuitem', { name: 'Revoke' }).click();
  const question = page.getByRole('dialog', { name: 'Revoke the key to be kept?' });
  await question.waitFor();
  const tab = await profile.newPage((await suite.skep.call('POST', '/api/session/links')).url);
  await tab.getByRole('dialog').getByRole('button', { name: 'Log in by the link' }).click();
  await question.waitFor({ state: 'detached' });
  assert.equal((await suite.skep.call('GET', `/api/keys/${id}`)).revoked_at ?? null, null);
});

test('a page that is opened while the server does not serve yet waits for it', async () => {
  const profile = await suite.profile();
  profile.expect({ status: 503, path: /^\/api\/whoami$/ });
  const page = await profile.loggedIn(suite.skep.key);
  let [refusals, serves] = [0, false];
  await page.route('**/api/whoami', async (route) => {
    if (serves) return route.continue();
    refusals += 1;
    await route.fulfill({ status: 503, json: { code: 'shutting_down', message: 'The server is restarting.' } });
  });
  await page.reload();
  await page.getByRole('status').filter({ hasText: 'The server is restarting.' }).waitFor();
  await eventually('another try', () => refusals > 1 || undefined);
  serves = true;
  await live(page);
});

/** Ends the session of the profile as another program would, by its cookie. */
async function endSession(profile: Profile): Promise<void> {
  const [cookie] = await profile.context.cookies();
  const headers = { Cookie: `skep_session=${cookie?.value}`, Origin: suite.skep.url };
  const answer = await fetch(`${suite.skep.url}/api/session`, { method: 'DELETE', headers });
  assert.deepEqual(await answer.json(), { ended: true });
}

for (const [what, end] of [
  ['session that the server ends', (profile: Profile) => endSession(profile)],
  ['key that is revoked', (_: Profile, id: string) => suite.skep.call('DELETE', `/api/keys/${id}`)],
] as const) {
  test(`a ${what} leads to the login in all tabs, and back to where it was`, async () => {
    const profile = await suite.profile();
    // The refusal comes by the stream, or by what the page asks next.
    profile.expect({ status: 401, path: /^\/api\// }, { status: 403, path: /^\/api\// });
    const { id, key } = await suite.newKey(`of the ${what}`);
    const page = await profile.loggedIn(key, '/ui/tickets?status=failed');
    const other = await profile.newPage('/ui/keys');
    await Promise.all([live(page), live(other)]);
    await end(profile, id);
    for (const tab of [page, other]) {
      await tab.getByLabel('Key', { exact: true }).waitFor();
      assert.match((await tab.getByRole('status').first().textContent()) ?? '', /session has ended/);
    }
    await logIn(page, suite.skep.key);
    assert.equal(page.url(), `${suite.skep.url}/ui/tickets?status=failed`);
    await live(page);
  });
}

test('logging out ends the session on the server', async () => {
  const profile = await suite.profile();
  profile.expect({ status: 401, path: /^\/api\// });
  const page = await profile.loggedIn(suite.skep.key);
  const [cookie] = await profile.context.cookies();
  assert.ok(cookie);
  const whoami = (): Promise<Response> =>
    fetch(`${suite.skep.url}/api/whoami`, {
      headers: { Cookie: `skep_session=${cookie.value}`, Origin: suite.skep.url },
    });
  assert.equal((await whoami()).status, 200);
  await page.getByRole('button', { name: 'Log out' }).click();
  await page.getByLabel('Key', { exact: true }).waitFor();
  assert.equal((await whoami()).status, 401);
});
