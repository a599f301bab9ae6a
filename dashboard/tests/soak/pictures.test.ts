import fs from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';

import { FOR_CONTENT, open, pagesOf, populate } from '../harness/pages.ts';
import { Suite } from '../harness/suite.ts';

const suite = new Suite(...FOR_CONTENT);
const FOLDER = path.join(import.meta.dirname, '../../../target/pictures');

const FORMS = [
  { form: 'dark', colorScheme: 'dark', viewport: { width: 1440, height: 900 } },
  { form: 'light', colorScheme: 'light', viewport: { width: 1440, height: 900 } },
  { form: 'narrow', colorScheme: 'light', viewport: { width: 390, height: 844 } },
] as const;

test('a picture of each page, dark, light and narrow', { timeout: 600_000 }, async () => {
  fs.mkdirSync(FOLDER, { recursive: true });
  const { vms } = await suite.skep.call('POST', '/api/swarm/boot', { name: 'pictured' });
  const content = await populate(suite.skep, 'Repair the parser of dates', vms[0].pid);
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
