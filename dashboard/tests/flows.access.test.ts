import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { test } from 'node:test';
import { promisify } from 'node:util';

import { live } from './harness/browser.ts';
import { Suite } from './harness/suite.ts';
import { eventually } from './harness/wait.ts';

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
  await page.getByRole('button', { name: 'Create a key' }).click();
  const form = page.getByRole('dialog');
  await form.getByLabel('Name').fill('made in a browser');
  await form.getByRole('button', { name: /^Create/ }).click();
  const secret = page.getByText(/^sk-skep-[\w-]{20,}$/);
  await secret.waitFor();
  const key = ((await secret.textContent()) ?? '').trim();
  assert.equal(await curl(key), '200');
  await page.getByRole('dialog').getByRole('button', { name: /^(Done|Close|I have)/ }).last().click();
  await page.getByRole('link', { name: 'made in a browser' }).waitFor();
  assert.ok(!(await page.content()).includes(key), 'the key is still in the page');

  await page.getByRole('link', { name: 'made in a browser' }).click();
  await page.getByRole('button', { name: 'Revoke' }).click();
  await page.getByRole('dialog').getByRole('button', { name: 'Revoke' }).click();
  await eventually('the refusal of the revoked key', async () => ((await curl(key)) === '403' ? true : undefined));
  assert.ok(!(await page.content()).includes(key));
});
