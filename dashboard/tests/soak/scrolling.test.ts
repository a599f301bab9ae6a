import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { Page } from 'playwright-core';

import { live } from '../harness/browser.ts';
import { Suite } from '../harness/suite.ts';

const suite = new Suite();
/** The longest that a task may hold the page while somebody scrolls. */
const LONGEST_MS = 50;
const VMS = 1_000;
const TICKETS = 10_000;

/** Scrolls what scrolls on the page to its end, a step in each frame, and returns the tasks that were too long. */
async function scroll(page: Page): Promise<{ scrolled: number; long: number[] }> {
  return page.evaluate(async (longest) => {
    const long: number[] = [];
    const observer = new PerformanceObserver((list) => {
      for (const { duration } of list.getEntries()) if (duration > longest) long.push(duration);
    });
    const boxes = [...document.querySelectorAll('main *'), document.documentElement];
    const box = boxes.reduce((most, each) => (excess(each) > excess(most) ? each : most));
    function excess(element: Element): number {
      const scrolls = element === document.documentElement || /auto|scroll/.test(getComputedStyle(element).overflowY);
      return scrolls ? element.scrollHeight - element.clientHeight : 0;
    }
    // Steps of a fling: the whole list in some hundred frames.
    const step = Math.max(400, excess(box) / 300);
    observer.observe({ type: 'longtask' });
    const begin = box.scrollTop;
    for (let last = -1; box.scrollTop !== last; ) {
      last = box.scrollTop;
      box.scrollTop += step;
      await new Promise(requestAnimationFrame);
    }
    await new Promise((resolve) => setTimeout(resolve, 100));
    for (const { duration } of observer.takeRecords()) if (duration > longest) long.push(duration);
    observer.disconnect();
    return { scrolled: box.scrollTop - begin, long };
  }, LONGEST_MS);
}

test('a task that is too long is found', async () => {
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/none');
  await live(page);
  const { long } = await page.evaluate(() => {
    document.documentElement.addEventListener('control', () => {});
    const tall = document.createElement('div');
    tall.style.height = '5000px';
    document.querySelector('main')?.append(tall);
    window.addEventListener('scroll', () => {
      for (const begin = performance.now(); performance.now() - begin < 120; );
    });
  }).then(() => scroll(page));
  assert.ok(long.length > 0);
});

test('a table of 1,000 VMs scrolls without a long task', async () => {
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', { name: 'recorded' });
  const { boot_ms: _, ...status } = await suite.skep.call('GET', '/api/swarm/status');
  const recorded = Array.from({ length: VMS }, (_, index) => ({
    ...status.vms[0],
    pid: 10_000 + index,
    id: vms[0].id.slice(0, -4) + String(index).padStart(4, '0'),
    name: `worker-${index}`,
    ip: `10.7.${index >> 8}.${index & 255}`,
  }));
  const profile = await suite.profile();
  await profile.context.route('**/api/swarm/status', (route) => route.fulfill({ json: { ...status, vms: recorded } }));
  await profile.context.route(/\/api\/vms\?/, (route) => route.fulfill({ json: { vms: recorded, next_cursor: null } }));
  // The page reads the newest sample alone: those of 15 minutes would have 450,000 entries.
  const sampled = recorded.map(({ id, pid }) => ({ id, pid, cpu_ms: 5_000, cpu_percent: 40, memory_mb: 60 }));
  const sample = { at: new Date().toISOString(), totals: { vms: VMS, cpu_percent: 40 * VMS, memory_mb: 60 * VMS }, vms: sampled };
  const metrics: string[] = [];
  await profile.context.route(/\/api\/swarm\/metrics(\?(?!follow)|$)/, (route) => {
    metrics.push(new URL(route.request().url()).search);
    return route.fulfill({ json: { interval_ms: 2_000, samples: [sample], truncated: false } });
  });
  const page = await profile.loggedIn(suite.skep.key, '/ui/swarm');
  await page.getByText('worker-0', { exact: true }).waitFor();
  assert.ok(metrics.length > 0 && metrics.every((search) => search.startsWith('?since=')), JSON.stringify(metrics));
  const { scrolled, long } = await scroll(page);
  assert.ok(scrolled > 10_000, `it scrolled ${scrolled} pixels`);
  assert.deepEqual(long, []);
});

test('a list of 10,000 tickets scrolls without a long task', { timeout: 600_000 }, async () => {
  for (let created = 0; created < TICKETS; created += 1_000) {
    const tickets = Array.from({ length: 1_000 }, (_, index) => ({ title: `Task ${created + index}` }));
    await suite.skep.call('POST', '/api/tickets/batch', { tickets });
  }
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/tickets');
  await page.getByRole('link', { name: /^Task \d+$/ }).first().waitFor();
  for (;;) {
    const more = page.getByRole('button', { name: /more/i });
    if ((await more.count()) === 0) break;
    await more.first().click();
    await page.waitForFunction(() => !document.querySelector('main [aria-busy="true"]'));
  }
  const { scrolled, long } = await scroll(page);
  assert.ok(scrolled > 100_000, `it scrolled ${scrolled} pixels`);
  assert.deepEqual(long, []);
});
