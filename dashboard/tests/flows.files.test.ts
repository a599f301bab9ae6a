import assert from 'node:assert/strict';
import { readFile } from 'node:fs/promises';
import { test } from 'node:test';

import { Suite } from './harness/suite.ts';
import { eventually } from './harness/wait.ts';

const suite = new Suite();

async function boot(command: string, request: object = {}): Promise<number> {
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', request);
  const [{ pid }] = vms;
  const { exit_code, stderr } = await suite.skep.call('POST', `/api/swarm/vm/${pid}/exec`, { command });
  assert.equal(exit_code, 0, stderr);
  return pid;
}

test('a file is uploaded to a VM, shown, downloaded and deleted', async () => {
  const pid = await boot('mkdir inner && echo deep > inner/deep.txt');
  const profile = await suite.profile();
  profile.expect({ status: 412, path: /^\/api\/files\/raw$/ });
  const page = await profile.loggedIn(suite.skep.key, `/ui/swarm/${pid}?tab=files`);
  const main = page.getByRole('main');
  await main.getByRole('button', { name: 'inner' }).click();
  await main.getByRole('button', { name: 'deep.txt' }).click();
  await main.getByText('deep', { exact: true }).waitFor();

  const content = Buffer.from('fn main() {\n    println!("uploaded");\n}\n');
  await main.getByLabel('Files to upload').setInputFiles({ name: 'main.rs', mimeType: 'text/plain', buffer: content });
  const file = main.getByRole('button', { name: 'main.rs' });
  await file.click();
  await main.getByLabel('Content of main.rs').getByText('println!').waitFor();
  const { stdout } = await suite.skep.call('POST', `/api/swarm/vm/${pid}/exec`, { command: 'cat inner/main.rs' });
  assert.equal(stdout, content.toString(), 'it goes to the folder that was chosen last');

  // Another file of the name is replaced only after a question.
  const again = Buffer.from('replaced');
  const upload = (): Promise<void> => main.getByLabel('Files to upload').setInputFiles({ name: 'main.rs', mimeType: 'text/plain', buffer: again });
  const read = async (): Promise<string> =>
    (await suite.skep.call('POST', `/api/swarm/vm/${pid}/exec`, { command: 'cat inner/main.rs' })).stdout;
  const question = page.getByRole('dialog', { name: 'Replace /root/inner/main.rs?' });
  await upload();
  await question.getByRole('button', { name: 'Cancel' }).click();
  await question.waitFor({ state: 'detached' });
  assert.equal(await read(), content.toString());
  await upload();
  await question.getByRole('button', { name: 'Replace' }).click();
  await eventually('the other content', async () => (await read()) === 'replaced' || undefined);
  await suite.skep.call('POST', '/api/files/write', { vm: String(pid), path: '/root/inner/main.rs', content: content.toString() });
  await main.getByRole('button', { name: 'Read again' }).click();
  await main.getByLabel('Content of main.rs').getByText('println!').waitFor();

  const [download] = await Promise.all([page.waitForEvent('download'), main.getByRole('button', { name: 'Download' }).click()]);
  assert.equal(download.suggestedFilename(), 'main.rs');
  assert.deepEqual(await readFile(await download.path()), content);

  await main.getByRole('button', { name: 'Delete' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
  await file.waitFor({ state: 'detached' });
  const left = await suite.skep.call('POST', `/api/swarm/vm/${pid}/exec`, { command: 'ls inner' });
  assert.equal(left.stdout, 'deep.txt\n');
});

test('a repository of a VM shows its changes, its commits and what a commit changed', async () => {
  const identity = '-c user.name=Ada -c user.email=ada@example.com';
  const pid = await boot(
    `git init -q -b main work && cd work && echo first > notes.txt && git add . && git ${identity} commit -qm "Begin the notes" && ` +
      'echo second >> notes.txt && touch untracked.txt',
  );
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, `/ui/swarm/${pid}?tab=git`);
  const main = page.getByRole('main');
  await main.getByText('On main').waitFor();
  await main.getByText('untracked.txt').waitFor();
  await main.getByLabel('Difference').getByText('+second').waitFor();
  await main.getByText('Begin the notes').waitFor();
  await main.getByRole('button', { name: /^Show commit/ }).click();
  await main.getByLabel('Difference').getByText('+first').waitFor();
});

test('a template of another size is created by the form, and a VM boots from it for a ticket', async () => {
  const ticket = await suite.skep.call('POST', '/api/tickets', { title: 'Work in a larger VM' });
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/templates');
  await page.getByRole('button', { name: 'Create a template' }).click();
  const form = page.getByRole('dialog');
  await form.getByLabel('Name').fill('larger');
  await form.getByLabel('Memory in MiB').fill('192');
  await form.getByRole('button', { name: 'Create', exact: true }).click();
  await eventually('the template', async () => {
    const { state } = await suite.skep.call('GET', '/api/templates/larger');
    return state === 'ready' || undefined;
  });
  await page.goto('/ui/swarm');
  await page.getByRole('button', { name: /^Boot/ }).first().click();
  const order = page.getByRole('dialog');
  await order.getByLabel('Template').selectOption('larger');
  await order.getByLabel('Ticket to work on').fill('larger VM');
  await order.getByRole('button', { name: 'Add Work in a larger VM' }).click();
  await order.getByRole('button', { name: 'Boot', exact: true }).click();
  const vm = await eventually('the VM', async () => {
    const { vms } = await suite.skep.call('GET', '/api/swarm/status');
    return vms.find((one: { ticket: string }) => one.ticket === ticket.id);
  });
  assert.deepEqual([vm.template, vm.memory_mb], ['larger', 192]);
});
