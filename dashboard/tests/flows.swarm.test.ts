import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { Page } from 'playwright-core';

import { live } from './harness/browser.ts';
import { Suite } from './harness/suite.ts';
import { eventually } from './harness/wait.ts';

// Addresses of documentation, which nothing answers, taken for public ones.
const suite = new Suite('--egress-public', '203.0.113.0/24', '--egress-resolver', '203.0.113.53:53');

test('two VMs are booted by the form, and one runs a command whose output is shown', async () => {
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/swarm');
  await live(page);
  await page.getByRole('button', { name: /^Boot/ }).first().click();
  const form = page.getByRole('dialog');
  await form.getByLabel(/^(Count|Number)/).fill('2');
  await form.getByRole('button', { name: /^Boot/ }).click();
  const pids = await eventually('two VMs in the table', async () => {
    const { vms } = await suite.skep.call('GET', '/api/swarm/status');
    return vms.length === 2 ? vms.map(({ pid }: { pid: number }) => pid) : undefined;
  });
  for (const pid of pids) await page.getByRole('link', { name: new RegExp(`\\b${pid}\\b`) }).waitFor();

  await page.goto(`/ui/swarm/${pids[0]}?tab=command`);
  const command = page.getByLabel('Command', { exact: true });
  await command.fill('uname -a');
  await command.press('Enter');
  const { stdout } = await suite.skep.call('POST', `/api/swarm/vm/${pids[0]}/exec`, { command: 'uname -a' });
  assert.match(stdout, /^Linux /);
  await page.getByRole('main').getByText(stdout.trim()).waitFor();
});

test('the page of a VM counts the processes of programs, and nothing of the system', async () => {
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', {});
  const { pid } = vms[0];
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, `/ui/swarm/${pid}?tab=figures`);
  const shown = page.getByRole('main').locator('div').filter({ has: page.locator('dt', { hasText: 'Running programs' }) }).locator('dd');
  await shown.getByText('none', { exact: true }).waitFor();
  const run = (command: string) => suite.skep.call('POST', `/api/swarm/vm/${pid}/exec`, { command });
  await run('sleep 1000 < /dev/null > /dev/null 2>&1 &');
  await shown.getByText('1 process', { exact: true }).waitFor();
  await run('sleep 1001 < /dev/null > /dev/null 2>&1 &');
  await shown.getByText('2 processes', { exact: true }).waitFor();
});

test('a host that egress refused is listed, and a click allows it', async () => {
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', { egress: { allow: ['a.test'] } });
  const { pid } = vms[0];
  const command = 'exec 3<>/dev/tcp/203.0.113.9/80';
  await suite.skep.call('POST', `/api/swarm/vm/${pid}/exec`, { command: `bash -c '${command}'` });
  // The guest's connection is accepted before it is refused, so that the command may end before that.
  await eventually('the refusal', async () => (await suite.skep.call('GET', `/api/swarm/vm/${pid}/egress`)).refused > 0 || undefined);
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, `/ui/swarm/${pid}?tab=egress`);
  const row = page.getByRole('row').filter({ hasText: '203.0.113.9' });
  await row.getByRole('button', { name: /^Allow/ }).click();
  const policy = await eventually('the permission', async () => {
    const { egress } = await suite.skep.call('GET', `/api/swarm/vm/${pid}`);
    return JSON.stringify(egress).includes('203.0.113.9') ? egress : undefined;
  });
  assert.ok(policy.allow.includes('a.test'), 'the click took another permission away');
});

test('refused look-ups are listed, and two hosts that are allowed at once are both allowed', async () => {
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', { egress: { allow: ['a.test'], ports: [80] } });
  const { pid } = vms[0];
  // A look-up asks for addresses of both kinds, and both questions are refused in the same millisecond.
  const command = 'for n in 1 2 3 4 5; do getent ahosts evil.test; done; getent ahosts other.test; true';
  await suite.skep.call('POST', `/api/swarm/vm/${pid}/exec`, { command });
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, `/ui/swarm/${pid}?tab=egress`);
  const row = (name: string) => page.getByRole('row').filter({ hasText: name });
  const lookUps = async (wanted: string): Promise<number> => {
    const { tries } = await suite.skep.call('GET', `/api/swarm/vm/${pid}/egress`);
    return tries.filter(({ name }: { name: string }) => name === wanted).length;
  };
  // A row that comes later moves the others, and with them the buttons that are clicked below.
  for (const [name, least] of [['evil.test', 10], ['other.test', 2]] as const) {
    await eventually(`all look-ups of ${name}`, async () => (await lookUps(name)) >= least || undefined);
    await eventually('a row for each look-up', async () => (await row(name).count()) === (await lookUps(name)) || undefined);
  }

  let held = 0;
  await page.route(`**/api/swarm/vm/${pid}`, async (route) => {
    if (route.request().method() === 'PATCH') held += 1;
    // The second click comes before the answer to the first one.
    if (held === 1) await new Promise((resolve) => setTimeout(resolve, 1_000));
    await route.continue();
  });
  await row('evil.test').first().getByRole('button', { name: /^Allow/ }).click();
  await row('other.test').first().getByRole('button', { name: /^Allow/ }).click();
  const policy = await eventually('both permissions', async () => {
    const { egress } = await suite.skep.call('GET', `/api/swarm/vm/${pid}`);
    return egress.allow.includes('other.test') ? egress : undefined;
  });
  assert.deepEqual([policy.allow, policy.ports], [['a.test', 'evil.test', 'other.test'], [80]]);
});

test('the end of a long log is shown', async () => {
  const ticket = await suite.skep.call('POST', '/api/tickets', { title: 'Write a long log' });
  const command = 'seq 1 200000; echo this is the end';
  await suite.skep.call('POST', '/api/swarm/boot', { ticket: ticket.id, command });
  await eventually('the end of the command', async () => {
    const log = await suite.skep.send('GET', `/api/tickets/${ticket.id}/log`);
    return (log.ok && !((await log.json()) as { running: boolean }).running) || undefined;
  });
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, `/ui/tickets/${ticket.id}`);
  await page.getByText('Output of the command of an attempt').click();
  const output = page.getByLabel('Output', { exact: true });
  await output.filter({ hasText: 'this is the end' }).waitFor();
  assert.ok(!((await output.textContent()) ?? '').startsWith('1\n'), 'the whole log is shown, so that the test shows nothing');
  await page.getByRole('combobox', { name: /^Attempt/ }).selectOption('1');
  await output.filter({ hasText: 'this is the end' }).waitFor();
});

test('a VM is paused, resumed and ended, and the swarm is cleaned up', async () => {
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', { name: 'steered' });
  const { id } = vms[0];
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/swarm');
  await live(page);
  const row = page.getByRole('row').filter({ hasText: 'steered' });
  const act = async (name: string): Promise<void> => {
    await row.getByRole('button', { name: /^Actions for the VM steered/ }).click();
    await page.getByRole('menuitem', { name, exact: true }).click();
  };
  const stateIs = (wanted: string): Promise<unknown> =>
    eventually(`the state ${wanted}`, async () => (await suite.skep.call('GET', `/api/swarm/vm/${id}`)).state === wanted || undefined);
  await act('Pause');
  await row.getByText('paused').waitFor();
  await stateIs('paused');
  await act('Resume');
  await row.getByText('running').waitFor();
  await stateIs('running');
  await act('End');
  await page.getByRole('dialog', { name: /^End the VM steered/ }).getByRole('button', { name: 'End', exact: true }).click();
  await row.waitFor({ state: 'detached' });
  const ended = await suite.skep.call('GET', '/api/vms?state=ended');
  assert.ok(ended.vms.some((vm: { id: string }) => vm.id === id), 'the VM has not ended');

  await suite.skep.call('POST', '/api/swarm/boot', {});
  await page.getByRole('button', { name: 'Clean up' }).click();
  const question = page.getByRole('dialog', { name: 'Clean up the swarm?' });
  await question.getByRole('button', { name: 'Cancel' }).click();
  assert.ok((await suite.skep.call('GET', '/api/swarm/status')).count > 0, 'the VMs ended before the question was answered');
  await page.getByRole('button', { name: 'Clean up' }).click();
  await question.getByRole('button', { name: 'End all VMs' }).click();
  await page.getByText('No VM runs').waitFor();
  assert.equal((await suite.skep.call('GET', '/api/swarm/status')).count, 0);
});

test('the page of a VM that was ended there tells that it has ended, and leads to the reason', async () => {
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', { name: 'finished' });
  const profile = await suite.profile();
  // The page reads the VM after its end, and the figures may be asked for while it ends.
  profile.expect({ status: 404, path: /^\/api\/swarm\/vm\/[^/]+(\/metrics)?$/ }, { status: 409, path: /^\/api\/swarm\/vm\/[^/]+\/metrics$/ });
  const page = await profile.loggedIn(suite.skep.key, `/ui/swarm/${vms[0].pid}?tab=figures`);
  const main = page.getByRole('main');
  await live(page);
  await main.getByRole('button', { name: 'End', exact: true }).click();
  await page.getByRole('dialog', { name: /^End the VM finished/ }).getByRole('button', { name: 'End', exact: true }).click();
  await main.getByText('The VM has ended.').waitFor();
  await main.getByRole('heading', { level: 1, name: 'finished' }).waitFor();
  assert.equal(await main.getByRole('alert').count(), 0, 'the page shows a refusal');
  await main.getByRole('link', { name: 'The list of VMs that ended' }).click();
  await page.getByRole('row').filter({ hasText: 'finished' }).getByText(/^as deleted/).waitFor();
});

test('a command goes on while its VM cannot be read again', async () => {
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', { name: 'before' });
  const profile = await suite.profile();
  profile.expect({ status: 503, path: /^\/api\/swarm\/vm\/[^/]+$/ });
  const page = await profile.loggedIn(suite.skep.key, `/ui/swarm/${vms[0].pid}?tab=command`);
  const main = page.getByRole('main');
  await live(page);
  const command = page.getByLabel('Command', { exact: true });
  await command.fill('echo begun; sleep 1000');
  await command.press('Enter');
  const log = page.getByRole('log');
  await log.getByText('begun', { exact: true }).waitFor();
  const record = /\/api\/swarm\/vm\/[^/]+$/;
  await page.route(record, (route) => route.fulfill({ status: 503, json: { error: 'Service Unavailable', message: 'Too much is asked.' } }));
  await suite.skep.call('PATCH', `/api/swarm/vm/${vms[0].id}`, { name: 'after' });
  await main.getByRole('alert').getByText('Too much is asked.').waitFor();
  assert.equal(await log.getByText('running…').count(), 1, 'the command has ended');
  await page.unroute(record);
  await main.getByRole('button', { name: 'Try again' }).click();
  await main.getByRole('heading', { level: 1, name: 'after' }).waitFor();
  assert.equal(await main.getByRole('alert').count(), 0);
  await page.getByRole('button', { name: 'Cancel' }).click();
  await log.getByText('cancelled').waitFor();
});

test('a command is cancelled, and the arrow keys bring earlier ones back', async () => {
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', {});
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, `/ui/swarm/${vms[0].pid}?tab=command`);
  const command = page.getByLabel('Command', { exact: true });
  const log = page.getByRole('log');
  await command.fill('echo first');
  await command.press('Enter');
  await log.getByText('exit code 0').waitFor();
  // The command line takes the next command once the answer to the last one is complete, which is after its exit.
  await page.getByRole('main').getByRole('button', { name: 'Run', exact: true }).waitFor();
  await command.fill('echo begun; sleep 1000');
  await command.press('Enter');
  await log.getByText('begun', { exact: true }).waitFor();
  await page.getByRole('button', { name: 'Cancel' }).click();
  await log.getByText('cancelled').waitFor();
  for (const [press, shown] of [
    ['ArrowUp', 'echo begun; sleep 1000'],
    ['ArrowUp', 'echo first'],
    ['ArrowDown', 'echo begun; sleep 1000'],
    ['ArrowDown', ''],
  ] as const) {
    await command.press(press);
    assert.equal(await command.inputValue(), shown);
  }
});

/** Sends a form of this name, closes it before the request goes on, and waits until the page shows the message of the refusal. */
async function closeEarly(page: Page, form: string, button: string, message: string): Promise<void> {
  const dialog = page.getByRole('dialog', { name: form });
  let close = (): void => {};
  const closed = new Promise<void>((resolve) => (close = resolve));
  await page.route('**/api/**', async (route) => {
    if (route.request().method() !== 'GET') await closed;
    await route.continue();
  });
  const sent = page.waitForRequest((request) => request.method() !== 'GET');
  await dialog.getByRole('button', { name: button, exact: true }).click();
  await sent;
  await dialog.getByRole('button', { name: 'Cancel' }).click();
  await dialog.waitFor({ state: 'detached' });
  close();
  await page.getByRole('status').getByText(message).waitFor();
  await page.unrouteAll({ behavior: 'wait' });
}

test('what is refused after its form was closed is reported', async () => {
  await suite.skep.call('POST', '/api/swarm/boot', { name: 'first' });
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', { name: 'second' });
  const address = `/api/swarm/vm/${vms[0].id}`;
  const profile = await suite.profile();
  const refusal = async (method: string, path: string, body: object): Promise<string> => {
    const answer = await suite.skep.send(method, path, body);
    assert.ok(!answer.ok, path);
    profile.expect({ status: answer.status, path: new RegExp(`^${path}$`) });
    return ((await answer.json()) as { message: string }).message;
  };
  const taken = await refusal('POST', '/api/swarm/boot', { count: 1, template: 'base', name: 'first' });
  const renamed = await refusal('PATCH', address, { name: 'first' });
  const built = await refusal('POST', '/api/templates', { name: 'base', from: 'base' });
  const page = await profile.loggedIn(suite.skep.key, '/ui/swarm');
  const fill = (form: string, text: string): Promise<void> =>
    page.getByRole('dialog', { name: form }).getByLabel('Name', { exact: true }).fill(text);

  await page.getByRole('button', { name: 'Boot VMs', exact: true }).click();
  await fill('Boot VMs', 'first');
  await closeEarly(page, 'Boot VMs', 'Boot', taken);

  await page.goto(`/ui/swarm/${vms[0].id}?tab=figures`);
  await page.getByRole('button', { name: 'Change…' }).click();
  await fill('Change the VM second', 'first');
  await closeEarly(page, 'Change the VM second', 'Change', renamed);

  await page.goto('/ui/templates');
  await page.getByRole('button', { name: 'Create a template' }).click();
  await fill('Create a template', 'base');
  await closeEarly(page, 'Create a template', 'Create', built);
  await page.getByRole('button', { name: 'Close the message' }).click();
  await page.getByRole('button', { name: 'Actions for the template base', exact: true }).click();
  await page.getByRole('menuitem', { name: 'Boot VMs…' }).click();
  await fill('Boot VMs', 'first');
  await closeEarly(page, 'Boot VMs', 'Boot', taken);
});
