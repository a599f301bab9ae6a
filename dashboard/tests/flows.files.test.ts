import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdir, mkdtemp, readFile, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test, type TestContext } from 'node:test';

import type { Locator, Page } from 'playwright-core';

import { Suite } from './harness/suite.ts';
import { eventually } from './harness/wait.ts';

const suite = new Suite();

/** Waiting for a template, whose guest boots before its snapshot is taken. */
const BAKE_MS = 120_000;

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
  const code = main.getByLabel('Content of main.rs');
  await code.getByText('println!').waitFor();
  // The language is loaded after the text is shown.
  const colour = (of: Locator): Promise<string> => of.evaluate((element) => getComputedStyle(element).color);
  assert.notEqual(await colour(code.getByText('fn', { exact: true })), await colour(code), 'keywords are highlighted');
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

test('a file that a program has changed is shown as it is now', async () => {
  // A browser that keeps answers would keep the content of such an old file for years.
  const write = (text: string): string => `echo ${text} > notes.txt && touch -d 2001-01-01 notes.txt`;
  const pid = await boot(write('before'));
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, `/ui/swarm/${pid}?tab=files`);
  const main = page.getByRole('main');
  await main.getByRole('button', { name: 'notes.txt' }).click();
  await main.getByLabel('Content of notes.txt').getByText('before').waitFor();
  await suite.skep.call('POST', `/api/swarm/vm/${pid}/exec`, { command: write('after') });
  await main.getByRole('button', { name: 'Read again' }).click();
  await main.getByLabel('Content of notes.txt').getByText('after').waitFor();
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

test('another repository of a VM is shown from its own branch', async () => {
  const commit = (subject: string): string => `git -c user.name=Ada -c user.email=ada@example.com commit -q --allow-empty -m "${subject}"`;
  const pid = await boot(
    `git init -q -b main one && git init -q -b main two && cd two && ${commit('Begin the second one')} && ` +
      `cd ../one && ${commit('Begin the first one')} && git checkout -q -b aside && ${commit('Beside it')} && git checkout -q main`,
  );
  const { repositories } = await suite.skep.call('GET', `/api/git/repositories?vm=${pid}`);
  const paths: string[] = repositories.map(({ path }: { path: string }) => path).sort();
  assert.equal(paths.length, 2);
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, `/ui/swarm/${pid}?tab=git`);
  const main = page.getByRole('main');
  const [repository, branch] = [main.getByLabel('Repository', { exact: true }), main.getByLabel('Branch', { exact: true })];
  await repository.selectOption(paths[0] ?? '');
  await branch.selectOption('aside');
  await main.getByText('Beside it').waitFor();
  await repository.selectOption(paths[1] ?? '');
  await main.getByText('Begin the second one').waitFor();
  assert.equal(await branch.inputValue(), '');
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
  const isReady = async (): Promise<true | undefined> => {
    // The form may not have sent it yet.
    const answer = await suite.skep.send('GET', '/api/templates/larger');
    return (answer.ok && ((await answer.json()) as { state: string }).state === 'ready') || undefined;
  };
  await eventually('the template', isReady, BAKE_MS);
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

/**
 * A folder whose files include one with a name that is not UTF-8, and one with the sign that browsers write for such bytes. It
 * is removed after the test.
 */
async function folderOfNames(context: TestContext): Promise<string> {
  const parent = await mkdtemp(path.join(tmpdir(), 'skep-upload-'));
  // Not by Node, which finds no file whose name is not UTF-8.
  context.after(() => execFileSync('rm', ['-r', parent]));
  const folder = path.join(parent, 'project');
  await mkdir(path.join(folder, 'inner'), { recursive: true });
  await writeFile(path.join(folder, 'good.txt'), 'good\n');
  await writeFile(path.join(folder, 'inner', 'deep.txt'), 'deep\n');
  await writeFile(path.join(folder, 'sign-\uFFFD.txt'), 'sign\n');
  await writeFile(Buffer.concat([Buffer.from(`${folder}/bytes-`), Buffer.from([0xff]), Buffer.from('.txt')]), 'bytes\n');
  return folder;
}

/** Drops a file or a folder of this machine, as a file manager does. `meanwhile` runs between the look at the target's position and the drop. */
async function drop(page: Page, target: Locator, file: string, meanwhile: () => Promise<void>): Promise<void> {
  const { x, y, width, height } = (await target.boundingBox()) ?? { x: 0, y: 0, width: 0, height: 0 };
  await meanwhile();
  const devtools = await page.context().newCDPSession(page);
  for (const type of ['dragEnter', 'dragOver', 'drop'] as const) {
    const data = { items: [], files: [file], dragOperationsMask: 1 };
    await devtools.send('Input.dispatchDragEvent', { type, x: x + width / 2, y: y + height / 2, data });
  }
}

test('a folder is uploaded with its folders, and a file whose name is not UTF-8 is named', async (context) => {
  const pid = await boot('mkdir chosen dropped');
  const folder = await folderOfNames(context);
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, `/ui/swarm/${pid}?tab=files&path=/root/chosen`);
  const main = page.getByRole('main');
  const files = async (below: string): Promise<string> =>
    (await suite.skep.call('POST', `/api/swarm/vm/${pid}/exec`, { command: `cd ${below} && find . -type f | sort && cat project/inner/deep.txt` })).stdout;
  const wanted = './project/good.txt\n./project/inner/deep.txt\ndeep\n';
  // For a folder that is chosen, Chromium leaves out the file with other bytes; one that is dropped has it without a name.
  const refusal = /^project\/sign-\uFFFD\.txt was not uploaded: its name is not UTF-8/;
  await main.getByText('New files go to /root/chosen').waitFor();
  await main.getByLabel('Folder to upload').setInputFiles(folder);
  await page.getByRole('status').getByText('Uploaded 2 files.').waitFor();
  await page.getByRole('status').getByText(refusal).waitFor();
  assert.equal(await files('chosen'), wanted);
  await main.getByRole('button', { name: 'project' }).waitFor();

  // The target of the drop must not move when the figures of the VM arrive late.
  let figures = (): void => {};
  const late = new Promise<void>((resolve) => (figures = resolve));
  await page.route('**/metrics', async (route) => {
    await late;
    await route.continue();
  });
  await page.goto(`/ui/swarm/${pid}?tab=files&path=/root/dropped`);
  await main.getByText('New files go to /root/dropped').waitFor();
  await drop(page, main.getByRole('group', { name: 'Files', exact: true }), folder, async () => {
    figures();
    await main.getByText(/MiB on the server/).waitFor();
  });
  await page.getByRole('status').getByText('Uploaded 2 files.').waitFor();
  await page.getByRole('status').getByText(/^2 files failed\. The first: .* was not uploaded: its name is not UTF-8/).waitFor();
  assert.equal(await files('dropped'), wanted);
});

test('a folder of a VM whose name is not UTF-8 takes no new files, and the page tells where they go', async () => {
  const pid = await boot(`mkdir "$(printf 'odd-\\377')"`);
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, `/ui/swarm/${pid}?tab=files`);
  const main = page.getByRole('main');
  await main.getByRole('button', { name: /odd-.*\(not UTF-8\)/ }).click();
  await main.getByText('New files go to /root;').waitFor();
  const move = main.getByRole('button', { name: 'Move' });
  assert.match((await move.getAttribute('title')) ?? '', /not UTF-8; move it by a command/);
  await main.getByLabel('Files to upload').setInputFiles({ name: 'beside.txt', mimeType: 'text/plain', buffer: Buffer.from('beside') });
  await page.getByRole('status').getByText('Uploaded beside.txt.').waitFor();
  const { stdout } = await suite.skep.call('POST', `/api/swarm/vm/${pid}/exec`, { command: 'cat beside.txt' });
  assert.equal(stdout, 'beside');
});
