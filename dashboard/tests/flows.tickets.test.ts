import assert from 'node:assert/strict';
import { test } from 'node:test';

import { live } from './harness/browser.ts';
import { Suite } from './harness/suite.ts';
import { eventually } from './harness/wait.ts';

const suite = new Suite();

test('a pasted list becomes tickets that depend on their parts', async () => {
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/tickets/batch');
  await page.getByLabel('List', { exact: true }).fill('- [ ] Port the parser\n  - Port the lexer\n  - Port the tests\n\n* Write the notes');
  await page.getByLabel('Labels').fill('port, parser');
  await page.getByText('4 tickets', { exact: true }).waitFor();
  await page.getByRole('button', { name: 'Create 4 tickets' }).click();
  await page.getByRole('link', { name: 'Port the parser' }).waitFor();
  const { tickets } = await suite.skep.call('GET', '/api/tickets?label=port');
  const by = (title: string) => tickets.find((ticket: { title: string }) => ticket.title === title);
  assert.equal(tickets.length, 4);
  assert.deepEqual(new Set(by('Port the parser').dependencies), new Set([by('Port the lexer').id, by('Port the tests').id]));
  assert.deepEqual(by('Write the notes').dependencies, []);
});

test('several tickets are marked as failed at once, and tried again', async () => {
  for (const title of ['Bulk one', 'Bulk two', 'Bulk three']) await suite.skep.call('POST', '/api/tickets', { title, labels: ['bulk'] });
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/tickets?label=bulk');
  // The list is read again by events.
  await live(page);
  const act = async (name: string): Promise<void> => {
    await page.getByRole('button', { name: 'Actions', exact: true }).click();
    await page.getByRole('menuitem', { name, exact: true }).click();
    await page.getByRole('dialog').getByRole('button', { name, exact: true }).click();
  };
  await page.getByRole('checkbox', { name: 'Choose Bulk one' }).check();
  await page.getByRole('checkbox', { name: 'Choose Bulk two' }).check();
  await page.getByText('2 chosen').waitFor();
  await act('Mark as failed');
  const failed = () => suite.skep.call('GET', '/api/tickets?label=bulk&status=failed');
  await eventually('two failed tickets', async () => (await failed()).tickets.length === 2 || undefined);
  await page.getByText('2 chosen').waitFor({ state: 'detached' });
  // An action applies to the tickets as the list shows them, which may be read between the two changes.
  const shown = page.getByRole('row').getByText('failed', { exact: true });
  await eventually('two failed tickets in the list', async () => (await shown.count()) === 2 || undefined);
  await page.getByRole('checkbox', { name: /^Choose all 3/ }).check();
  await act('Try again');
  await eventually('no failed ticket', async () => (await failed()).tickets.length === 0 || undefined);
});

test('a label that is added to chosen tickets keeps those that they got since the list was read', async () => {
  const { id } = await suite.skep.call('POST', '/api/tickets', { title: 'Labelled', labels: ['first'] });
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/tickets?label=first');
  await live(page);
  await page.getByRole('checkbox', { name: 'Choose Labelled' }).check();
  // The list stays as it is.
  await page.route('**/api/tickets?*', () => {});
  await suite.skep.call('PATCH', `/api/tickets/${id}`, { labels: ['first', 'theirs'] });
  const bar = page.getByRole('group', { name: 'Actions for the chosen tickets' });
  await bar.getByLabel('Label').fill('mine');
  await bar.getByRole('button', { name: 'Add' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Add the label mine' }).click();
  await page.getByText('Add the label mine: done for 1 ticket.').waitFor();
  assert.deepEqual((await suite.skep.call('GET', `/api/tickets/${id}`)).labels, ['first', 'theirs', 'mine']);
});

test('a failed ticket that an agent works on by now is not taken from it by another try', async () => {
  const { id } = await suite.skep.call('POST', '/api/tickets', { title: 'Tried twice' });
  const path = `/api/tickets/${id}`;
  const change = (body: object) => suite.skep.call('PATCH', path, body);
  await change({ status: 'failed' });
  const profile = await suite.profile();
  profile.expect({ status: 412, path: /^\/api\/tickets\// });
  const page = await profile.loggedIn(suite.skep.key, `/ui/tickets/${id}`);
  await live(page);
  const again = page.getByRole('button', { name: 'Try again' });
  await again.waitFor();
  // The page stays as it is.
  await page.route(`**${path}`, (route) => (route.request().method() === 'GET' ? undefined : route.continue()));
  await change({ status: 'pending' });
  await change({ status: 'in_progress', assignee: 'agent-9' });
  await again.click();
  await page.getByRole('status').getByText('which does not match').waitFor();
  const { status, assignee } = await suite.skep.call('GET', path);
  assert.deepEqual([status, assignee], ['in_progress', 'agent-9']);
});

test('a ticket is edited, and a change of somebody else is not overwritten', async () => {
  const { id } = await suite.skep.call('POST', '/api/tickets', { title: 'Before', labels: ['kept'] });
  const profile = await suite.profile();
  profile.expect({ status: 412, path: /^\/api\/tickets\// });
  const page = await profile.loggedIn(suite.skep.key, `/ui/tickets/${id}`);
  const edit = async (title: string): Promise<void> => {
    await page.getByRole('button', { name: 'Edit' }).click();
    await page.getByRole('dialog').getByLabel('Title').fill(title);
  };
  const save = () => page.getByRole('dialog').getByRole('button', { name: 'Save' }).click();
  await edit('After');
  await save();
  await page.getByRole('heading', { level: 1, name: 'After' }).waitFor();
  const saved = await suite.skep.call('GET', `/api/tickets/${id}`);
  assert.deepEqual([saved.title, saved.labels], ['After', ['kept']]);
  await edit('Mine');
  await suite.skep.call('PATCH', `/api/tickets/${id}`, { title: 'Theirs' });
  await save();
  await page.getByRole('dialog').getByText(/^The ticket has changed/).waitFor();
  assert.equal((await suite.skep.call('GET', `/api/tickets/${id}`)).title, 'Theirs');
});

test('a graph of tickets changes live while agents claim and complete by the API', async () => {
  // The tickets of the other tests are ready too, and have a lower priority.
  const priority = 'critical';
  const first = await suite.skep.call('POST', '/api/tickets', { title: 'Design it', priority });
  const dependencies = [first.id];
  await suite.skep.call('POST', '/api/tickets', { title: 'Build it', priority, dependencies });
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

test('a graph of a label is zoomed, and the same is a list for the keyboard', async () => {
  const labels = ['drawn'];
  const first = await suite.skep.call('POST', '/api/tickets', { title: 'Draw it', labels });
  await suite.skep.call('POST', '/api/tickets', { title: 'Hang it up', labels, dependencies: [first.id] });
  await suite.skep.call('POST', '/api/tickets', { title: 'Of another label' });
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/tickets/graph?label=drawn');
  const nodes = page.getByRole('main').locator('.svelte-flow__node');
  await nodes.filter({ hasText: 'Hang it up' }).waitFor();
  assert.equal(await nodes.count(), 2);
  const width = async (): Promise<number> => (await nodes.first().boundingBox())?.width ?? 0;
  // The graph is fitted into its box a frame after its nodes are there, which may make them larger.
  await eventually('a smaller graph', async () => {
    const before = await width();
    await page.getByRole('button', { name: /^zoom out$/i }).click();
    return (await width()) < before || undefined;
  });

  const list = page.getByRole('region', { name: 'Tickets of the graph' });
  await list.focus();
  for (const name of ['Draw it', 'Hang it up', 'Draw it']) {
    await page.keyboard.press('Tab');
    assert.equal(await page.evaluate(() => document.activeElement?.textContent), name);
  }
  await page.keyboard.press('Enter');
  await page.getByRole('heading', { level: 1, name: 'Draw it' }).waitFor();
});

test('the tickets that a new one waits for are picked by search', async () => {
  const found = await suite.skep.call('POST', '/api/tickets', { title: 'Melt the wax' });
  await suite.skep.call('POST', '/api/tickets', { title: 'Collect the wax' });
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/tickets/new');
  await page.getByLabel('Title').fill('Pour the candles');
  await page.getByLabel('Depends on').fill('the wax');
  await page.getByRole('button', { name: 'Add Collect the wax' }).click();
  await page.getByLabel('Depends on').fill(found.id);
  await page.getByRole('button', { name: 'Add Melt the wax' }).evaluate((button: HTMLElement) => {
    button.click();
    button.click();
  });
  const removal = page.getByRole('button', { name: 'Remove Melt the wax' });
  await removal.first().waitFor();
  assert.equal(await removal.count(), 1);
  await page.getByRole('button', { name: 'Remove Collect the wax' }).click();
  await page.getByRole('button', { name: 'Create', exact: true }).click();
  await page.getByRole('heading', { level: 1, name: 'Pour the candles' }).waitFor();
  await page.getByRole('main').locator('.other').filter({ hasText: 'ready' }).getByRole('link', { name: 'Melt the wax' }).waitFor();
  const { tickets } = await suite.skep.call('GET', '/api/tickets?q=Pour');
  assert.deepEqual(tickets[0].dependencies, [found.id]);
});

test('times are those of the zone of the viewer', async () => {
  const { id, created_at: at } = await suite.skep.call('POST', '/api/tickets', { title: 'At a time' });
  const shown: string[] = [];
  for (const timezoneId of ['Asia/Kathmandu', 'America/St_Johns']) {
    const profile = await suite.profile({ timezoneId, locale: 'en-US' });
    const page = await profile.loggedIn(suite.skep.key, `/ui/tickets/${id}`);
    const time = page.getByRole('main').locator(`time[datetime="${at}"]`).first();
    const format = new Intl.DateTimeFormat('en-US', { hour: 'numeric', minute: '2-digit', second: '2-digit', timeZone: timezoneId });
    const title = (await time.getAttribute('title')) ?? '';
    assert.ok(title.includes(format.format(new Date(at))), `${title} in ${timezoneId}`);
    shown.push(title);
  }
  assert.notEqual(shown[0], shown[1]);
});

test('the overview shows what has happened before it was opened, a lapsed lease too', async () => {
  const { id } = await suite.skep.call('POST', '/api/tickets', { title: 'Left alone' });
  await suite.skep.call('PATCH', `/api/tickets/${id}`, { status: 'in_progress', assignee: 'agent-3', lease_ms: 5_000 });
  await eventually('the end of the lease', async () => (await suite.skep.call('GET', `/api/tickets/${id}`)).status === 'pending' || undefined);
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/none');
  await page.clock.install();
  const lapsed = page.getByRole('region', { name: 'Needs attention' }).getByRole('link', { name: /^A lease has run out/ });
  await page.goto('/ui/');
  assert.equal(await lapsed.getAttribute('href'), `/ui/tickets/${id}`);
  const event = page.getByRole('region', { name: 'Recent events' }).getByRole('listitem').filter({ hasText: 'ticket.lease_expired' });
  assert.equal(await event.getByRole('link', { name: 'Left alone' }).getAttribute('href'), `/ui/tickets/${id}`);

  // 16 minutes later the event is not a recent one any more; the lease still needs attention.
  await page.clock.fastForward(16 * 60_000);
  await event.waitFor({ state: 'detached' });
  await page.goto('/ui/');
  await lapsed.waitFor();
  await page.getByText('None in the last 15 minutes. They appear here as they happen.').waitFor();
});

test('further pages stay where they are while tickets change, and the search keeps what is typed', async () => {
  const count = 501;
  const titles = Array.from({ length: count }, (_, index) => ({ title: `Many ${index}`, labels: ['many'] }));
  const { tickets } = await suite.skep.call('POST', '/api/tickets/batch', { tickets: titles });
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/tickets?label=many&sort=-updated_at');
  await live(page);
  const more = page.getByRole('button', { name: 'Show more' });
  await more.click();
  await page.getByLabel(`Choose all ${count} of the list`).waitFor();
  // The first page of the API moves on by one ticket.
  await suite.skep.call('PATCH', `/api/tickets/${tickets[0].id}`, { title: 'Many and moved' });
  await page.getByRole('link', { name: 'Many and moved' }).waitFor();
  await page.getByLabel(`Choose all ${count} of the list`).waitFor();
  await page.getByLabel('Status').selectOption('failed');
  await page.getByText('No ticket matches').waitFor();
  await page.getByLabel('Status').selectOption('');
  await more.waitFor();

  const search = page.getByLabel('Search');
  await search.pressSequentially('Many ');
  await page.waitForURL(/q=Many/);
  await search.pressSequentially('and');
  await page.waitForURL(/q=Many\+and/);
  await page.getByLabel('Choose all 1 of the list').waitFor();
  assert.equal(await search.inputValue(), 'Many and');

  // Both fields are filled faster than either is searched.
  await search.evaluate((first: HTMLInputElement, label) => {
    const second = [...document.querySelectorAll('label')].find(({ textContent }) => textContent?.trim() === label)?.querySelector('input');
    for (const [field, value] of [[first, 'Many 7'], [second, 'none']] as const) {
      if (!field) throw new Error('a field is missing');
      field.value = value;
      field.dispatchEvent(new Event('input', { bubbles: true }));
    }
  }, 'Label');
  await page.waitForURL((url) => url.searchParams.get('label') === 'none');
  assert.equal(new URL(page.url()).searchParams.get('q'), 'Many 7');

  await page.clock.install();
  await search.fill('left before it is searched');
  await page.getByRole('button', { name: 'Create a ticket' }).click();
  await page.getByRole('heading', { level: 1, name: 'New ticket' }).waitFor();
  await page.clock.fastForward(5_000);
  assert.equal(new URL(page.url()).search, '');
});

test('a long list that was scrolled begins at its top after a filter that nothing matched', async () => {
  const titles = Array.from({ length: 300 }, (_, index) => ({ title: `Long ${index}`, labels: ['long'] }));
  await suite.skep.call('POST', '/api/tickets/batch', { tickets: titles });
  const { tickets } = await suite.skep.call('GET', '/api/tickets?label=long&view=summary&limit=500');
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/tickets?label=long');
  const first = page.getByRole('link', { name: tickets[0].title, exact: true });
  const last = page.getByRole('link', { name: tickets[299].title, exact: true });
  const box = page.getByRole('region', { name: 'Tickets', exact: true });
  await first.waitFor();
  assert.equal(await last.count(), 0, 'all rows are drawn, so that this test shows nothing');
  await box.evaluate((element) => (element.scrollTop = element.scrollHeight));
  await last.waitFor();
  await first.waitFor({ state: 'detached' });
  await page.getByLabel('Status').selectOption('failed');
  await page.getByText('No ticket matches').waitFor();
  await page.getByLabel('Status').selectOption('');
  await first.waitFor();
  assert.equal(await box.evaluate((element) => element.scrollTop), 0);
});

test('a card is dragged to where a person may move it, and nothing is claimed by dragging', async () => {
  const { id } = await suite.skep.call('POST', '/api/tickets', { title: 'Dragged', priority: 'critical' });
  const state = async (): Promise<string> => (await suite.skep.call('GET', `/api/tickets/${id}`)).status;
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/tickets/board');
  await live(page);
  const column = (name: string) => page.getByRole('region', { name, exact: true });
  const drag = (from: string, to: string): Promise<void> =>
    column(from).getByRole('listitem').filter({ hasText: 'Dragged' }).dragTo(column(to).getByRole('heading'));
  for (const to of ['In progress', 'Completed']) await drag('Pending', to);
  await drag('Pending', 'Failed');
  await column('Failed').getByRole('link', { name: 'Dragged' }).waitFor();
  assert.equal(await state(), 'failed');
  const { attempt } = await suite.skep.call('GET', `/api/tickets/${id}`);
  assert.equal(attempt, 0, 'the ticket was claimed by dragging');
  await drag('Failed', 'Pending');
  await column('Pending').getByRole('link', { name: 'Dragged' }).waitFor();
  assert.equal(await state(), 'pending');
});

test('the board counts all tickets, and its menu moves them', async () => {
  const others = Array.from({ length: 201 }, (_, index) => ({ title: `Beside it ${index}`, priority: 'low' }));
  await suite.skep.call('POST', '/api/tickets/batch', { tickets: others });
  const { id } = await suite.skep.call('POST', '/api/tickets', { title: 'Moved on the board', priority: 'critical' });
  const state = async (): Promise<string> => (await suite.skep.call('GET', `/api/tickets/${id}`)).status;
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/tickets/board');
  await live(page);
  // It is the latest one of hundreds of pending tickets, and the first to be claimed.
  const { pending } = await suite.skep.call('GET', '/api/tickets/summary');
  assert.ok(pending > 200, `only ${pending} tickets are pending`);
  const column = (name: string) => page.getByRole('region', { name, exact: true });
  await column('Pending').getByRole('heading', { name: `Pending ${pending.toLocaleString('en')}` }).waitFor();
  const move = async (from: string, to: string): Promise<void> => {
    await column(from).getByRole('button', { name: 'Move Moved on the board' }).click();
    await page.getByRole('menuitem', { name: `Move to ${to}` }).click();
  };
  await move('Pending', 'Failed');
  await column('Failed').getByRole('link', { name: 'Moved on the board' }).waitFor();
  assert.equal(await state(), 'failed');
  await move('Failed', 'Pending');
  await column('Pending').getByRole('link', { name: 'Moved on the board' }).waitFor();
  await suite.skep.call('PATCH', `/api/tickets/${id}`, { status: 'in_progress', assignee: 'agent-4' });
  await move('In progress', 'Pending');
  await page.getByRole('dialog').getByRole('button', { name: 'Cancel' }).click();
  assert.equal(await state(), 'in_progress', 'the ticket was taken from its holder before the question was answered');
  await move('In progress', 'Pending');
  await page.getByRole('dialog', { name: 'Take the ticket back?' }).getByRole('button', { name: 'Take it back' }).click();
  await column('Pending').getByRole('link', { name: 'Moved on the board' }).waitFor();
  assert.equal(await state(), 'pending');
});
