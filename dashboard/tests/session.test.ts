import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
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
  assert.equal(page.url(), `${suite.skep.dashboard}/ui/`);
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
  assert.equal(new URL(url).origin, suite.skep.dashboard);
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
    const { port } = new URL(await terminal.shows(/skep serves at (\S+?)\/?\r?\n/, START_MS));
    assert.match(origin, new RegExp(`^http://skep-[a-z2-7]{8}\\.localhost:${port}$`));
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

/** The status that the API answers to the cookies of a browser, which another program uses. */
async function statusOf(cookies: string): Promise<number> {
  return (await fetch(`${suite.skep.url}/api/whoami`, { headers: { Cookie: cookies, Origin: suite.skep.url } })).status;
}

test('a program at another port of this machine gets no session, and the login leads to a host that it does not know', async (context) => {
  const received: string[] = [];
  const program = http.createServer((request, response) => {
    if (request.headers.cookie) received.push(request.headers.cookie);
    response.setHeader('Content-Type', 'text/html').end('<p>a development server</p>');
  });
  program.listen(0, '127.0.0.1');
  await once(program, 'listening');
  context.after(() => program.close());
  const { port } = program.address() as AddressInfo;

  const profile = await suite.profile({ baseURL: suite.skep.url.replace('127.0.0.1', 'localhost') });
  for (const host of ['localhost', '127.0.0.1']) profile.allowOrigin(`http://${host}:${port}`);
  profile.allowOrigin(suite.skep.dashboard);
  profile.expect({ status: 403, path: /^\/api\/session$/ });
  const page = await profile.loggedIn(suite.skep.key, '/ui/tickets?status=failed');
  assert.equal(page.url(), `${suite.skep.dashboard}/ui/tickets?status=failed`, 'the login leads back to the page that was shown');
  await live(page);
  const [session] = await profile.context.cookies();
  assert.ok(session);
  assert.equal(`http://${session.domain}`, new URL(suite.skep.dashboard).origin.replace(/:\d+$/, ''));
  // Cookies of the hosts that the program shares, so that it receives something.
  for (const domain of ['localhost', '127.0.0.1']) await profile.context.addCookies([{ name: 'control', value: domain, domain, path: '/' }]);
  for (const host of ['localhost', '127.0.0.1']) {
    const tab = await profile.newPage(`http://${host}:${port}/`);
    // A page of that program, which the browser takes for the same site.
    await tab.evaluate(() => fetch('/again').then((answer) => answer.text()));
  }
  for (const name of ['control=localhost', 'control=127.0.0.1']) assert.ok(received.includes(name), `${name} was not received`);
  assert.ok(!received.some((cookies) => cookies.includes('skep_session')), received.join('\n'));
  // The control: a program that knows the name receives the session, which is all that it needs.
  const known = `http://${session.domain}:${port}`;
  profile.allowOrigin(known);
  const tab = await profile.newPage(known);
  await tab.evaluate(() => fetch('/again').then((answer) => answer.text()));
  assert.ok(received.some((cookies) => cookies.includes(`skep_session=${session.value}`)), received.join('\n'));
  assert.equal(await statusOf(`skep_session=${session.value}`), 200);
});

test('a key that has a session logs in once more at a loopback address', async () => {
  const profile = await suite.profile({ baseURL: suite.skep.url });
  profile.allowOrigin(suite.skep.dashboard);
  profile.expect({ status: 403, path: /^\/api\/session$/ });
  for (const path of ['/ui/', '/ui/keys']) {
    const page = await profile.loggedIn(suite.skep.key, path);
    await page.getByRole('banner').locator('bdi').first().getByText('admin', { exact: true }).waitFor();
    assert.equal(page.url(), `${suite.skep.dashboard}${path}`);
    assert.equal(await page.getByRole('dialog').count(), 0, 'nothing is asked');
  }
});

test('two keys are logged in side by side', async () => {
  const { key } = await suite.newKey('beside the administrator');
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key);
  profile.allowOrigin(await suite.skep.dashboardOf(key));
  const other = await profile.newPage((await suite.skep.call('POST', '/api/session/links', undefined, key)).url);
  const keyOf = (tab: Page) => tab.getByRole('banner').locator('bdi').first();
  await keyOf(other).getByText('beside the administrator').waitFor();
  await page.reload();
  await keyOf(page).getByText('admin', { exact: true }).waitFor();
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
    const { id, key } = await suite.newKey(`of the ${what}`);
    const profile = await suite.profile({}, key);
    profile.allowOrigin(suite.skep.dashboard);
    // The refusal comes by the stream, or by what the page asks next; and the key that logs in then has another host.
    profile.expect({ status: 401, path: /^\/api\// }, { status: 403, path: /^\/api\// });
    const page = await profile.loggedIn(key, '/ui/tickets?status=failed');
    const other = await profile.newPage('/ui/keys');
    await Promise.all([live(page), live(other)]);
    await end(profile, id);
    for (const tab of [page, other]) {
      await tab.getByLabel('Key', { exact: true }).waitFor();
      assert.match((await tab.getByRole('status').first().textContent()) ?? '', /session has ended/);
    }
    await logIn(page, suite.skep.key);
    assert.equal(page.url(), `${suite.skep.dashboard}/ui/tickets?status=failed`);
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
