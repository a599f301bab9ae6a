import assert from 'node:assert/strict';
import { test } from 'node:test';

import { live } from './harness/browser.ts';
import { Suite } from './harness/suite.ts';
import { eventually } from './harness/wait.ts';

const suite = new Suite();

const POLICY =
  "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-R'; style-src-attr 'unsafe-inline'; " +
  "img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; worker-src 'self'; base-uri 'none'; " +
  "form-action 'none'; frame-ancestors 'none'";

test('each page has the policy, with a nonce of its own that the page carries', async () => {
  const nonces = new Set<string>();
  for (const path of ['/ui/', '/ui/swarm/4242', '/ui/none']) {
    const answer = await fetch(suite.skep.url + path);
    assert.equal(answer.status, 200, path);
    const policy = answer.headers.get('content-security-policy') ?? '';
    const nonce = /'nonce-([^']+)'/.exec(policy)?.[1] ?? '';
    assert.equal(policy.replace(`nonce-${nonce}`, 'nonce-R'), POLICY);
    assert.ok((await answer.text()).includes(`nonce="${nonce}"`), 'the page lacks the nonce of its policy');
    nonces.add(nonce);
  }
  assert.equal(nonces.size, 3);
});

test('the browser enforces the policy, and the guard of these tests sees it', async () => {
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key);
  await page.evaluate(() => {
    const script = document.createElement('script');
    script.textContent = 'globalThis.canary = true';
    document.body.append(script);
    const button = document.createElement('button');
    button.setAttribute('onclick', 'globalThis.canary = true');
    document.body.append(button);
    button.click();
    return fetch('http://127.0.0.2:9/').catch(() => {});
  });
  assert.equal(await page.evaluate(() => (globalThis as { canary?: boolean }).canary), undefined);
  let faults = '';
  for (const expected of ['policy: script-src-elem refused inline', 'policy: script-src-attr', 'policy: connect-src', 'console: ']) {
    // The browser reports a violation after it has refused something.
    await eventually(`the fault "${expected}"`, () => {
      for (const fault of profile.takeFaults()) faults += `${fault}\n`;
      return faults.includes(expected) || undefined;
    });
  }
  // The reports that are still under way come before the page is closed.
  await page.close();
  profile.takeFaults();
});

test('files are kept by the browser for ever, under names that contain a hash of their content', async () => {
  const page = await (await fetch(`${suite.skep.url}/ui/`)).text();
  const files = [...page.matchAll(/(?:src|href)="(\/ui\/files\/[^"]+)"/g)].map(([, file]) => file ?? '');
  assert.ok(files.some((file) => file.endsWith('.js')) && files.some((file) => file.endsWith('.css')), page);
  for (const file of files) {
    assert.match(file, /-[\w-]{8}\.\w+$/);
    const answer = await fetch(suite.skep.url + file, { headers: { 'Accept-Encoding': 'br, gzip' } });
    assert.equal(answer.status, 200, file);
    assert.match(answer.headers.get('cache-control') ?? '', /immutable/, file);
    assert.match(answer.headers.get('cache-control') ?? '', /max-age=31536000/, file);
    if (file.endsWith('.js')) assert.match(answer.headers.get('content-type') ?? '', /^text\/javascript/);
  }
});

test('what the first page loads has at most 120 KB', async () => {
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key);
  await live(page);
  const files = await page.evaluate(() =>
    [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
      .map((entry) => entry as PerformanceResourceTiming)
      .filter(({ name }) => new URL(name).pathname.startsWith('/ui/'))
      .map(({ name, encodedBodySize }) => ({ name, size: encodedBodySize })),
  );
  const sum = files.reduce((all, { size }) => all + size, 0);
  assert.ok(files.length >= 3, JSON.stringify(files));
  assert.ok(sum > 10_000 && sum <= 120_000, `${sum} bytes: ${JSON.stringify(files)}`);
});

test('paths below /ui/ are the page, every other unknown path is a refusal in JSON', async () => {
  for (const path of ['/ui/swarm', '/ui/tickets/tkt_x?tab=log', '/ui/keys', '/ui/no/such/page']) {
    const answer = await fetch(suite.skep.url + path, { headers: { Accept: 'text/html' } });
    assert.equal(answer.status, 200, path);
    assert.match(answer.headers.get('content-type') ?? '', /^text\/html/, path);
  }
  for (const path of ['/uix', '/swarm', '/ui/files/none-00000000.js', '/api/none', '/index.html', '/favicon.ico']) {
    const answer = await suite.skep.send('GET', path);
    assert.equal(answer.status, 404, path);
    assert.match(answer.headers.get('content-type') ?? '', /^application\/json/, path);
    assert.equal(((await answer.json()) as { error: string }).error, 'Not Found', path);
  }
});

test('a deep link opens its page after the login, and an unknown one says so', async () => {
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/no/such/page?x=1');
  await page.getByText('There is no such page').waitFor();
  // Each page links the licences of what it contains.
  const licences = (await page.getByRole('link', { name: 'Licences' }).getAttribute('href')) ?? '';
  assert.match(licences, /-[0-9a-f]{8}\.txt$/);
  assert.match(await (await fetch(suite.skep.url + licences)).text(), /svelte/);
  assert.equal(page.url(), `${suite.skep.dashboard}/ui/no/such/page?x=1`);
  await page.getByRole('link', { name: 'Go to the overview' }).click();
  assert.equal(new URL(page.url()).pathname, '/ui/');
  await page.goBack();
  await page.getByText('There is no such page').waitFor();
});

test('a browser that opens the address of the server gets the dashboard, a program the description of the service', async () => {
  const profile = await suite.profile();
  const page = await profile.newPage('/');
  assert.equal(page.url(), `${suite.skep.dashboard}/ui/`);
  const service = await fetch(`${suite.skep.url}/`);
  assert.equal(((await service.json()) as { name: string }).name, 'skep');
});

test('a page that is left for its list asks for nothing under the address of the list', async () => {
  const ticket = await suite.skep.call('POST', '/api/tickets', { title: 'left' });
  const profile = await suite.profile();
  // A request that is cancelled at once may never leave the browser: the calls count.
  await profile.context.addInitScript(() => {
    const original = globalThis.fetch;
    const paths: string[] = [];
    Object.assign(globalThis, { paths });
    globalThis.fetch = (input, init) => {
      paths.push(new URL(input instanceof Request ? input.url : input, location.href).pathname);
      return original(input, init);
    };
  });
  const page = await profile.loggedIn(suite.skep.key, `/ui/tickets/${ticket.id}`);
  const main = page.getByRole('main');
  await main.getByRole('heading', { level: 1, name: 'left', exact: true }).waitFor();
  await page.getByRole('navigation', { name: 'Pages' }).getByRole('link', { name: 'List', exact: true }).click();
  await main.getByRole('link', { name: 'left', exact: true }).waitFor();
  const paths = await page.evaluate(() => (globalThis as unknown as { paths: string[] }).paths);
  assert.ok(paths.includes(`/api/tickets/${ticket.id}`) && paths.includes('/api/tickets'), `the calls were not recorded: ${paths}`);
  assert.deepEqual(paths.filter((path) => path.endsWith('/')), []);
});

test('a question of a page is gone once the page is left', async () => {
  const { id } = await suite.skep.call('POST', '/api/tickets', { title: 'asked about' });
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/tickets');
  await page.getByRole('main').getByRole('link', { name: 'asked about' }).click();
  await page.getByRole('button', { name: 'Delete' }).click();
  const question = page.getByRole('dialog', { name: 'Delete the ticket?' });
  await question.waitFor();
  await page.goBack();
  await page.getByRole('heading', { level: 1, name: 'Tickets', exact: true, includeHidden: true }).waitFor();
  await question.waitFor({ state: 'detached' });
  assert.equal((await suite.skep.call('GET', `/api/tickets/${id}`)).status, 'pending');
});

test('the link to the content moves the focus there', async () => {
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/keys');
  await page.getByRole('heading', { level: 1, name: 'Keys' }).waitFor();
  const skip = page.getByRole('link', { name: 'Skip to the content' });
  await skip.focus();
  await skip.press('Enter');
  await page.waitForFunction(() => document.activeElement?.id === 'main');
  assert.equal(new URL(page.url()).hash, '#main');
  await page.getByRole('heading', { level: 1, name: 'Keys' }).waitFor();
});

test('a dialog gives the focus back to what opened it', async () => {
  const profile = await suite.profile();
  const { key } = await suite.newKey('of the focus');
  assert.ok(key);
  const page = await profile.loggedIn(suite.skep.key, '/ui/keys');
  const menu = page.getByRole('button', { name: 'Actions for the key of the focus' });
  const focused = (name: string): Promise<unknown> =>
    page.waitForFunction((name) => (document.activeElement?.getAttribute('aria-label') ?? document.activeElement?.textContent?.trim()) === name, name);
  for (const leave of ['Cancel', 'Escape']) {
    await menu.press('Enter');
    await page.getByRole('menuitem', { name: 'Revoke' }).press('Enter');
    const question = page.getByRole('dialog', { name: /^Revoke/ });
    await question.waitFor();
    if (leave === 'Escape') await page.keyboard.press('Escape');
    else await question.getByRole('button', { name: leave }).press('Enter');
    await question.waitFor({ state: 'detached' });
    await focused('Actions for the key of the focus');
  }
  await page.goto('/ui/templates');
  await page.getByRole('button', { name: 'Create a template' }).press('Enter');
  await page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).press('Enter');
  await focused('Create a template');
});
