import assert from 'node:assert/strict';
import { test } from 'node:test';

import { live } from './harness/browser.ts';
import { Suite } from './harness/suite.ts';

const suite = new Suite();

test('a graph of tickets changes live while agents claim and complete by the API', async () => {
  const first = await suite.skep.call('POST', '/api/tickets', { title: 'Design it' });
  const dependencies = [first.id];
  await suite.skep.call('POST', '/api/tickets', { title: 'Build it', dependencies });
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, `/ui/tickets/graph?related_to=${first.id}`);
  await live(page);
  const node = (title: string) => page.getByRole('main').locator('.svelte-flow__node').filter({ hasText: title });
  await node('Design it').getByText('ready').waitFor();
  await node('Build it').waitFor();
  const loaded = await page.evaluate(() => performance.timeOrigin);

  const { tickets } = await suite.skep.call('POST', '/api/tickets/claim', { assignee: 'agent-1' });
  assert.equal(tickets[0].id, first.id);
  await node('Design it').getByText('in progress').waitFor();
  await suite.skep.call('PATCH', `/api/tickets/${first.id}`, {
    status: 'completed',
    assignee: 'agent-1',
    attempt: tickets[0].attempt,
    result: {},
  });
  await node('Design it').getByText('completed').waitFor();
  const next = await suite.skep.call('POST', '/api/tickets/claim', { assignee: 'agent-2' });
  assert.equal(next.tickets[0].title, 'Build it');
  await node('Build it').getByText('in progress').waitFor();
  assert.equal(await page.evaluate(() => performance.timeOrigin), loaded, 'the page was loaded again');
});
