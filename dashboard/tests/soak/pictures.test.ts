import fs from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';

import { FOR_CONTENT, open, pagesOf, populate } from '../harness/pages.ts';
import { Suite } from '../harness/suite.ts';

// Addresses of documentation, which nothing answers, taken for public ones.
const suite = new Suite(...FOR_CONTENT, '--egress-public', '203.0.113.0/24', '--egress-resolver', '203.0.113.53:53');
const FOLDER = path.join(import.meta.dirname, '../../../target/pictures');

const FORMS = [
  { form: 'dark', colorScheme: 'dark', viewport: { width: 1440, height: 900 } },
  { form: 'light', colorScheme: 'light', viewport: { width: 1440, height: 900 } },
  { form: 'narrow', colorScheme: 'light', viewport: { width: 390, height: 844 } },
] as const;

/** Leaves files, a repository with a change, refused tries to connect, lines on the console, and a program that runs. */
const WORK = `
  mkdir parser && cd parser && git init -q && git config user.name Ada && git config user.email ada@mail.example.org
  printf 'def parse(text):\n    return text.split("-")\n' > dates.py && git add . && git commit -qm 'Split dates at their dashes'
  printf 'def parse(text):\n    return [int(part) for part in text.split("-")]\n' > dates.py
  getent ahosts evil.test; getent ahosts other.test
  echo 'the parser is built' > /dev/console
  sleep 1000 < /dev/null > /dev/null 2>&1 &`;

test('a picture of each page, dark, light and narrow', { timeout: 600_000 }, async () => {
  fs.mkdirSync(FOLDER, { recursive: true });
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', { name: 'pictured', egress: { allow: ['a.test'] } });
  await suite.skep.call('POST', `/api/swarm/vm/${vms[0].pid}/exec`, { command: WORK });
  await suite.skep.call('POST', '/api/swarm/boot', { name: 'asleep' });
  await suite.skep.call('POST', '/api/swarm/vm/pictured/snapshot', { name: 'with-the-parser', description: 'The parser, and what it needs' });
  await suite.skep.call('POST', '/api/swarm/vm/asleep/pause', { to: 'disk' });
  const content = await populate(suite.skep, 'Repair the parser of dates', vms[0].pid);
  await suite.skep.call('POST', `/api/webhooks/${content.webhook}/test`);
  for (const { form, ...options } of FORMS) {
    const profile = await suite.profile(options);
    const login = await profile.newPage();
    await login.getByLabel('Key', { exact: true }).waitFor();
    await login.screenshot({ path: path.join(FOLDER, `login-${form}.png`) });
    const page = await profile.loggedIn(suite.skep.key);
    for (const { name, path: address } of pagesOf(content)) {
      await open(page, address);
      await page.screenshot({ path: path.join(FOLDER, `${name}-${form}.png`), fullPage: true });
    }
  }
});
