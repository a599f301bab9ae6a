import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { test } from 'node:test';
import { promisify } from 'node:util';

import { live } from './harness/browser.ts';
import { Suite } from './harness/suite.ts';

const suite = new Suite();
const run = promisify(execFile);

/** The status with which the API answers curl. */
async function curl(key: string): Promise<string> {
  const command = ['-s', '-o', '/dev/null', '-w', '%{http_code}', '-H', `Authorization: Bearer ${key}`];
  return (await run('curl', [...command, `${suite.skep.url}/api/whoami`])).stdout;
}

test('a key that is created in the dashboard works with curl, is shown once, and is revoked', async () => {
  const profile = await suite.profile();
  const page = await profile.loggedIn(suite.skep.key, '/ui/keys');
  await live(page);
  await page.getByRole('button', { name: 'Create key' }).click();
  const form = page.getByRole('dialog', { name: 'Create a key' });
  await form.getByLabel('Name', { exact: true }).fill('made in a browser');
  await form.getByRole('button', { name: 'Create', exact: true }).click();
  const shown = page.getByRole('dialog', { name: 'The key made in a browser' });
  const secret = shown.getByText(/^sk-skep-\S+$/);
  await secret.waitFor();
  const key = ((await secret.textContent()) ?? '').trim();
  assert.equal(await curl(key), '200');
  await shown.getByRole('button', { name: 'I have copied it' }).click();
  const row = page.getByRole('row').filter({ hasText: 'made in a browser' });
  await row.getByText('active').waitFor();
  assert.ok(!(await page.content()).includes(key), 'the key is still in the page');

  await row.getByRole('button', { name: 'Actions for the key made in a browser' }).click();
  await page.getByRole('menuitem', { name: 'Revoke' }).click();
  assert.equal(await curl(key), '200', 'the key was revoked before the question was answered');
  await page.getByRole('dialog', { name: 'Revoke the key made in a browser?' }).getByRole('button', { name: 'Revoke' }).click();
  await row.waitFor({ state: 'detached' });
  assert.equal(await curl(key), '403');
});
