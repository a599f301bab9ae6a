import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { Page } from 'playwright-core';

import { live, type Profile } from './harness/browser.ts';
import { Suite } from './harness/suite.ts';
import { eventually } from './harness/wait.ts';

const suite = new Suite();

/** A browser opens at most six connections to a server that speaks HTTP/1.1. */
const TABS = 10;

async function waiting(page: Page): Promise<void> {
  await page.getByRole('status').filter({ hasText: 'Connecting to the server' }).waitFor();
}

/** Asks the API from the page, as the page's own requests do. */
function ask(page: Page, path: string): Promise<number> {
  return page.evaluate(async (path) => (await fetch(path)).status, path);
}

test('ten tabs over plain HTTP stay live by one stream of events', async (context) => {
  const proxy = await suite.proxy();
  context.after(() => proxy.stop());
  const profile = await suite.profile({ baseURL: proxy.url });
  profile.allowOrigin(proxy.url);
  const first = await profile.loggedIn(suite.skep.key);
  await live(first);
  const pages = [first];
  while (pages.length < TABS) pages.push(await profile.newPage());
  await Promise.all(pages.map(live));
  // Each tab shows the overview, which follows the events and the samples of the VMs.
  const streams = '/api/events /api/swarm/metrics';
  await eventually('one stream of each kind for all tabs', () => [...proxy.open].sort().join(' ') === streams || undefined);
  // All tabs ask at once while the stream is open: with a stream each, the seventh would wait for ever.
  const statuses = await Promise.all(pages.map((page) => ask(page, '/api/whoami')));
  assert.deepEqual(statuses, Array<number>(TABS).fill(200));

  const control = await first.evaluate(async () => {
    const streams = Array.from({ length: 8 }, () => new AbortController());
    const opened: number[] = [];
    streams.forEach(({ signal }, index) => {
      void fetch('/api/events', { signal, cache: 'no-store' }).then(
        () => opened.push(index),
        () => {},
      );
    });
    const asked = await Promise.race([
      fetch('/api/whoami').then(() => 'answered'),
      new Promise((resolve) => setTimeout(resolve, 3_000, 'waits')),
    ]);
    for (const stream of streams) stream.abort();
    return asked;
  });
  assert.equal(control, 'waits', 'the browser has no limit of connections, so that this test shows nothing');
  await Promise.all(pages.slice(1).map((page) => page.close()));
  await live(first);
});

test('the stream ends when the last tab is closed', async (context) => {
  const proxy = await suite.proxy();
  context.after(() => proxy.stop());
  const profile = await suite.profile({ baseURL: proxy.url });
  profile.allowOrigin(proxy.url);
  // The overview would read the events before it by streams of its own, at some time after the page is live.
  const page = await profile.loggedIn(suite.skep.key, '/ui/none');
  const other = await profile.newPage('/ui/none');
  await Promise.all([live(page), live(other)]);
  const streams = (): number => proxy.open.filter((path) => path === '/api/events').length;
  await eventually('one stream', () => streams() === 1 || undefined);
  await page.close();
  await live(other);
  assert.equal(streams(), 1);
  await other.close();
  await eventually('the end of the stream', () => streams() === 0 || undefined);
});

/** Ends the process of a tab, in which no code of the page runs any more. */
async function crash(page: Page): Promise<void> {
  const crashed = page.waitForEvent('crash');
  const tools = await page.context().newCDPSession(page);
  tools.send('Page.crash').catch(() => {});
  await crashed;
}

/** A tab in which the browser has no locks, as over plain HTTP to another host than localhost. */
async function tabWithoutLocks(profile: Profile, path: string): Promise<Page> {
  const page = await profile.context.newPage();
  await page.addInitScript(() => Object.defineProperty(Navigator.prototype, 'locks', { value: undefined }));
  await page.goto(path);
  return page;
}

test('a tab that crashes does not keep the streams open that it alone followed', async (context) => {
  const proxy = await suite.proxy();
  context.after(() => proxy.stop());
  const profile = await suite.profile({ baseURL: proxy.url });
  profile.allowOrigin(proxy.url);
  const page = await profile.loggedIn(suite.skep.key, '/ui/none');
  await live(page);
  // The overview alone follows the samples of the VMs.
  const samples = (): boolean => proxy.open.includes('/api/swarm/metrics');
  const overview = await profile.newPage('/ui/');
  await eventually('the stream of samples', () => samples() || undefined);
  await crash(overview);
  await eventually('the end of the stream of samples', () => !samples() || undefined);
  assert.ok(proxy.open.includes('/api/events'), 'the stream of the other tab has ended');

  const control = await tabWithoutLocks(profile, '/ui/');
  await eventually('the stream of samples again', () => samples() || undefined);
  await crash(control);
  // The worker has heard of the end of a tab that was opened later.
  const later = await profile.newPage('/ui/');
  await live(later);
  await later.close();
  await suite.skep.call('POST', '/api/tickets', { title: 'After the crash' });
  await live(page);
  assert.ok(samples(), 'a crash is noticed without a lock, so that this test shows nothing');
});

test('tabs go on when the process of the shared worker has crashed with the tab that it belonged to', async () => {
  const profile = await suite.profile();
  const first = await profile.loggedIn(suite.skep.key, '/ui/none');
  await live(first);
  const list = '/ui/tickets?label=crash';
  const [page, control] = [await profile.newPage(list), await tabWithoutLocks(profile, list)];
  for (const tab of [page, control]) {
    await live(tab);
    await tab.getByText('No ticket matches').waitFor();
  }
  await crash(first);
  await suite.skep.call('POST', '/api/tickets', { title: 'Created after the crash', labels: ['crash'] });
  await page.getByRole('link', { name: 'Created after the crash' }).waitFor();
  await suite.skep.call('POST', '/api/tickets', { title: 'And one more', labels: ['crash'] });
  await page.getByRole('link', { name: 'And one more' }).waitFor();
  assert.equal(await control.getByRole('link', { name: 'Created after the crash' }).count(), 0, 'the worker has not crashed');
});

test('a page comes back by itself after a restart of the server', async () => {
  const profile = await suite.profile();
  const pages = [await profile.loggedIn(suite.skep.key)];
  pages.push(await profile.newPage('/ui/tickets'));
  await Promise.all(pages.map(live));
  const loads = await Promise.all(pages.map((page) => page.evaluate(() => performance.timeOrigin)));
  await profile.whileAway(async () => {
    await suite.skep.restart(async () => {
      await Promise.all(pages.map(waiting));
    });
    await Promise.all(pages.map(live));
  });
  // The pages were not loaded again, and the session goes on.
  assert.deepEqual(await Promise.all(pages.map((page) => page.evaluate(() => performance.timeOrigin))), loads);
  for (const page of pages) assert.equal(await ask(page, '/api/whoami'), 200);
});

test('what changes after a page was read and before its stream is open is shown', async (context) => {
  const proxy = await suite.proxy();
  context.after(() => proxy.stop());
  let open = (): void => {};
  proxy.eventRequests = new Promise((resolve) => (open = resolve));
  const profile = await suite.profile({ baseURL: proxy.url });
  profile.allowOrigin(proxy.url);
  const page = await profile.loggedIn(suite.skep.key, '/ui/tickets?label=early');
  await page.getByText('No ticket matches').waitFor();
  await suite.skep.call('POST', '/api/tickets', { title: 'Before the stream', labels: ['early'] });
  open();
  await page.getByRole('link', { name: 'Before the stream' }).waitFor();
});

test('a stream that ends after each opening is opened less and less often', async () => {
  const profile = await suite.profile();
  // Without a shared worker the page follows the stream by itself, where the test sees its timers and can run them at once.
  await profile.context.addInitScript(() => {
    const waits: number[] = [];
    Object.assign(globalThis, { SharedWorker: undefined, waits });
    const original = globalThis.setTimeout;
    const atOnce = (handler: () => void, ms = 0) => {
      waits.push(ms);
      return original(handler, 0);
    };
    globalThis.setTimeout = atOnce as unknown as typeof setTimeout;
  });
  const ended = { contentType: 'text/event-stream', body: ': none\n\n' };
  await profile.context.route('**/api/events', (route) => route.fulfill(ended).catch(() => {}));
  const page = await profile.loggedIn(suite.skep.key, '/ui/none');
  await eventually('a wait that is eight times as long as the first one', async () => {
    const waits = await page.evaluate(() => (globalThis as unknown as { waits: number[] }).waits);
    return waits.includes(8 * 500) || undefined;
  });
});

/** Counts the requests of the page for a path. */
function countOf(page: Page, path: string): () => number {
  let count = 0;
  page.on('request', (request) => (count += new URL(request.url()).pathname === path ? 1 : 0));
  return () => count;
}

test('a list is shown while a stream of events goes on, and reading takes longer than the time between them', async () => {
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/none');
  await live(page);
  await page.route('**/api/tickets?*', async (route) => {
    await new Promise((resolve) => setTimeout(resolve, 2_000));
    await route.continue().catch(() => {});
  });
  let ends = false;
  const events = (async () => {
    for (let count = 0; !ends; count += 1) {
      await suite.skep.call('POST', '/api/tickets', { title: `One of a stream ${count}`, labels: ['stream'] });
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  })();
  try {
    await page.getByRole('navigation', { name: 'Pages' }).getByRole('link', { name: 'List', exact: true }).click();
    await page.getByRole('link', { name: 'One of a stream 0', exact: true }).waitFor();
    // What happened while it was read is read afterwards.
    await page.getByRole('link', { name: 'One of a stream 15', exact: true }).waitFor();
  } finally {
    ends = true;
    await events;
  }
  await page.unrouteAll({ behavior: 'wait' });
});

test('a graph becomes current while its tickets change all the time, and reading takes longer than the time between the changes', async () => {
  const create = (title: string, dependencies: string[] = []): Promise<{ id: string }> =>
    suite.skep.call('POST', '/api/tickets', { title, labels: ['grows'], dependencies });
  const root = await create('Grows 0');
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/none');
  await live(page);
  await page.route('**/api/tickets?*', async (route) => {
    await new Promise((resolve) => setTimeout(resolve, 2_000));
    await route.continue().catch(() => {});
  });
  let [ends, titles] = [false, 0];
  const changes = (async () => {
    let last = root.id;
    for (let count = 1; !ends; count += 1) {
      // Each ticket changes the shape of the graph, and each new title only what stands in it.
      if (count % 5 === 0) last = (await create(`Grows ${count}`, [last])).id;
      else await suite.skep.call('PATCH', `/api/tickets/${root.id}`, { title: `Title ${(titles = count)}` });
      await new Promise((resolve) => setTimeout(resolve, 100));
    }
  })();
  const node = (text: RegExp) => page.getByRole('main').locator('.svelte-flow__node').filter({ hasText: text });
  try {
    await page.goto(`/ui/tickets/graph?related_to=${root.id}`);
    await live(page);
    await node(/\bGrows 5\b/).waitFor();
    await node(/\bGrows 20\b/).waitFor();
    const now = titles;
    await eventually('a title of later', async () => {
      const shown = (await node(/\bTitle \d/).textContent()) ?? '';
      return Number(/\d+/.exec(shown)?.[0]) >= now || undefined;
    });
  } finally {
    ends = true;
    await changes;
  }
  await page.unrouteAll({ behavior: 'wait' });
  await node(new RegExp(`\\bTitle ${titles}\\b`)).waitFor();
});

test('a hidden tab reads nothing until it is shown, and a ticket reads nothing for the events of others', async () => {
  const own = await suite.skep.call('POST', '/api/tickets', { title: 'Shown by itself' });
  const other = await suite.skep.call('POST', '/api/tickets', { title: 'Another one' });
  const profile = await suite.profile();
  const seen = await profile.loggedIn(suite.skep.key, '/ui/tickets?sort=-updated_at');
  const hidden = await profile.newPage('/ui/tickets?sort=-updated_at');
  const single = await profile.newPage(`/ui/tickets/${own.id}`);
  await Promise.all([live(seen), live(hidden), live(single)]);
  await hidden.getByRole('link', { name: 'Another one' }).waitFor();
  await single.getByRole('heading', { level: 1, name: 'Shown by itself' }).waitFor();
  const hide = (value: boolean): Promise<void> =>
    hidden.evaluate((value) => {
      Object.defineProperty(document, 'hidden', { configurable: true, get: () => value });
      document.dispatchEvent(new Event('visibilitychange'));
    }, value);
  await hide(true);
  const [readByHidden, readBySingle] = [countOf(hidden, '/api/tickets'), countOf(single, `/api/tickets/${own.id}`)];
  for (const title of ['Another one, changed', 'Another one, changed again']) {
    await suite.skep.call('PATCH', `/api/tickets/${other.id}`, { title });
    await seen.getByRole('link', { name: title, exact: true }).waitFor();
  }
  assert.deepEqual([readByHidden(), readBySingle()], [0, 0]);
  await hide(false);
  await hidden.getByRole('link', { name: 'Another one, changed again' }).waitFor();
  await suite.skep.call('PATCH', `/api/tickets/${own.id}`, { title: 'Shown, and changed' });
  await single.getByRole('heading', { level: 1, name: 'Shown, and changed' }).waitFor();
});
