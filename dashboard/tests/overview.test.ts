import assert from 'node:assert/strict';
import { test } from 'node:test';

import { live } from './harness/browser.ts';
import { Suite } from './harness/suite.ts';
import { eventually } from './harness/wait.ts';

const suite = new Suite();

test('the overview of an empty installation names three things to do, whose commands work', async () => {
  const profile = await suite.profile();
  await profile.context.grantPermissions(['clipboard-read', 'clipboard-write']);
  const page = await profile.loggedIn(suite.skep.key);
  await live(page);
  const first = page.getByRole('region', { name: 'First steps' });
  const steps = first.getByRole('listitem');
  await steps.first().waitFor();
  assert.equal(await steps.count(), 3);
  const commands: string[] = [];
  for (const step of await steps.all()) {
    await step.getByRole('button', { name: 'Copy' }).click();
    const shown = (await step.locator('code').textContent()) ?? '';
    await eventually('the command', async () => (await page.evaluate(() => navigator.clipboard.readText())) === shown || undefined);
    commands.push(shown);
  }
  const outputs = await Promise.all(commands.map((command) => suite.skep.shell(command)));
  assert.match(outputs[0] ?? '', /^Linux /);
  const { tickets } = await suite.skep.call('GET', '/api/tickets');
  assert.equal(tickets.length, 1);
  const { keys } = await suite.skep.call('GET', '/api/keys');
  assert.ok(keys.some(({ name, role }: { name: string; role: string }) => name === 'worker' && role === 'agent'), JSON.stringify(keys));
  await first.waitFor({ state: 'detached' });
});

test('the overview names what needs attention, and leads to it', async () => {
  const { id } = await suite.skep.call('POST', '/api/tickets', { title: 'Will fail' });
  await suite.skep.call('PATCH', `/api/tickets/${id}`, { status: 'failed', result: {} });
  const system = await suite.skep.call('GET', '/api/system');
  const { disk, memory } = system;
  const profile = await suite.profile();
  /** What the server says of a machine of which this share is free; the real one may be short of it. */
  const answer = async (free: number, damaged: object[]): Promise<void> => {
    const json = {
      ...system,
      disk: { ...disk, free_bytes: Math.floor(disk.size_bytes * free) },
      memory: { ...memory, available_mb: Math.floor(memory.total_mb * free) },
      swarm: { ...system.swarm, damaged_templates: damaged },
    };
    await profile.context.route('**/api/system', (route) => route.fulfill({ json }));
  };
  await answer(0.11, []);
  const page = await profile.loggedIn(suite.skep.key);
  const attention = page.getByRole('region', { name: 'Needs attention' });
  const link = attention.getByRole('link', { name: 'A ticket has failed' });
  await link.waitFor();
  await page.getByText(/ free of /).waitFor();
  assert.equal(await attention.getByRole('listitem').count(), 1, 'a healthy server needs attention, so that this test shows nothing');

  await answer(0.09, [{ template: 'torn', message: 'disk.qcow2 is missing' }]);
  await page.reload();
  for (const text of ['The disk of the server is nearly full', 'The memory of the server is nearly used up']) await attention.getByText(text).waitFor();
  const torn = attention.getByRole('link', { name: 'The template torn is damaged: disk.qcow2 is missing' });
  assert.equal(await torn.getAttribute('href'), '/ui/templates');
  await link.click();
  await page.getByRole('link', { name: 'Will fail' }).waitFor();
});

test('the overview shows what happened before it was opened, also where the first event takes long', async (context) => {
  await suite.skep.call('POST', '/api/tickets', { title: 'Of the past' });
  const proxy = await suite.proxy();
  context.after(() => proxy.stop());
  proxy.eventDelayMs = 2_000;
  const profile = await suite.profile({ baseURL: proxy.url });
  profile.allowOrigin(proxy.url);
  const page = await profile.loggedIn(suite.skep.key);
  const events = page.getByRole('region', { name: 'Recent events' }).getByRole('listitem');
  await events.filter({ hasText: 'ticket.created' }).getByRole('link', { name: 'Of the past' }).waitFor();
});
