import assert from 'node:assert/strict';
import { test } from 'node:test';

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

test('a host that egress refused is listed, and a click allows it', async () => {
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', { egress: { allow: ['a.test'] } });
  const { pid } = vms[0];
  const command = 'exec 3<>/dev/tcp/203.0.113.9/80';
  await suite.skep.call('POST', `/api/swarm/vm/${pid}/exec`, { command: `bash -c '${command}'` });
  const report = await suite.skep.call('GET', `/api/swarm/vm/${pid}/egress`);
  assert.ok(report.refused > 0, JSON.stringify(report));
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
