import assert from 'node:assert/strict';
import { after, test } from 'node:test';

import type { Page } from 'playwright-core';

import { Proxy } from './harness/proxy.ts';
import { Suite } from './harness/suite.ts';

// All keys have their sessions at one host where the server has a public URL, here that of a proxy in front of it.
const proxy = Proxy.start(() => suite.skep.url, 'localhost');
const suite = new Suite(
  '--public-url',
  proxy.then(({ url }) => url),
);
after(async () => (await proxy).stop());

test('a link replaces a session only after a question, and all tabs get to know it', async () => {
  const { key } = await suite.newKey('was there before', ['admin', 'tickets:read']);
  const link = async (): Promise<string> => (await suite.skep.call('POST', '/api/session/links')).url;
  const profile = await suite.profile();
  const page = await profile.loggedIn(key, '/ui/keys');
  const keyOf = (tab: Page) => tab.getByRole('banner').locator('bdi').first();
  await keyOf(page).getByText('was there before').waitFor();
  const tab = await profile.newPage(await link());
  const question = tab.getByRole('dialog', { name: 'Log in by the link?' });
  await question.getByText('was there before').waitFor();
  await question.getByRole('button', { name: 'Cancel' }).click();
  await tab.reload();
  await keyOf(tab).getByText('was there before').waitFor();

  const used = await link();
  const second = await profile.newPage(used);
  await second.getByRole('dialog').getByRole('button', { name: 'Log in by the link' }).click();
  const { name } = (await suite.skep.call('GET', '/api/whoami')).key;
  for (const each of [second, page, tab]) await keyOf(each).getByText(name, { exact: true }).waitFor();

  // A link that is refused leaves the session as it is.
  const third = await profile.newPage(used);
  await third.getByRole('dialog').getByRole('button', { name: 'Log in by the link' }).click();
  await third.getByText(/^The link was used before, or has expired.* You are still logged in as before\.$/).waitFor();
  await keyOf(third).getByText(name, { exact: true }).waitFor();
});

test('a question of a session is gone once another one has replaced it', async () => {
  const { id } = await suite.newKey('to be kept');
  const { key } = await suite.newKey('asks', ['admin', 'tickets:read']);
  const profile = await suite.profile();
  const page = await profile.loggedIn(key, '/ui/keys');
  await page.getByRole('button', { name: 'Actions for the key to be kept' }).click();
  await page.getByRole('menuitem', { name: 'Revoke' }).click();
  const question = page.getByRole('dialog', { name: 'Revoke the key to be kept?' });
  await question.waitFor();
  const tab = await profile.newPage((await suite.skep.call('POST', '/api/session/links')).url);
  await tab.getByRole('dialog').getByRole('button', { name: 'Log in by the link' }).click();
  await question.waitFor({ state: 'detached' });
  assert.equal((await suite.skep.call('GET', `/api/keys/${id}`)).revoked_at ?? null, null);
});
