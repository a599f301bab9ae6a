import assert from 'node:assert/strict';
import { test } from 'node:test';

import type { Page } from 'playwright-core';

import { Suite } from './harness/suite.ts';

const suite = new Suite();

/** The least contrast of text that WCAG 2.2 allows at level AA. */
const LEAST = 4.5;
const SURFACES = ['surface', 'surface-raised', 'surface-sunken', 'surface-hover'];
const STATES = ['good', 'warning', 'danger', 'info'];

/** Colours of text, with the background that each stands on somewhere. */
const PAIRS: readonly (readonly [string, string])[] = [
  ...['text', 'text-muted', 'accent', ...STATES].flatMap((text) => SURFACES.map((surface) => [text, surface] as const)),
  ...STATES.map((state) => [state, `${state}-surface`] as const),
  ...[...STATES, 'accent'].map((state) => ['text', `${state}-surface`] as const),
  ['accent', 'accent-surface'],
  ['on-accent', 'accent'],
];

/** The contrast of pairs of tokens, as the browser computes their colours. */
async function contrasts(page: Page, pairs: readonly (readonly [string, string])[]): Promise<{ pair: string; contrast: number }[]> {
  return page.evaluate((pairs) => {
    const probe = document.body.appendChild(document.createElement('span'));
    const channels = (token: string): number[] => {
      probe.style.color = '';
      probe.style.color = `var(--${token})`;
      const text = getComputedStyle(probe).color;
      const found = /^rgb\((\d+), (\d+), (\d+)\)$/.exec(text);
      if (!found) throw new Error(`--${token} is ${text}, and no opaque colour`);
      return found.slice(1).map(Number);
    };
    const luminance = (token: string): number => {
      const [red = 0, green = 0, blue = 0] = channels(token).map((value) => {
        const part = value / 255;
        return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
      });
      return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const measured = pairs.map(([text, surface]) => {
      const [lighter = 0, darker = 0] = [luminance(text), luminance(surface)].sort((a, b) => b - a);
      return { pair: `${text} on ${surface}`, contrast: (lighter + 0.05) / (darker + 0.05) };
    });
    probe.remove();
    return measured;
  }, pairs);
}

for (const [system, chosen] of [
  ['light', ''],
  ['dark', ''],
  ['light', 'dark'],
  ['dark', 'light'],
] as const) {
  test(`text has enough contrast on each surface, ${chosen || 'as the system says'} on a ${system} system`, async () => {
    const profile = await suite.profile({ colorScheme: system });
    const page = await profile.loggedIn(suite.skep.key, '/ui/none');
    if (chosen) {
      await page.keyboard.press('Control+k');
      const field = page.getByRole('combobox', { name: 'Page, ticket, or VM by name or pid' });
      await field.fill(`Colours: ${chosen}`);
      await page.getByRole('option', { name: `Colours: ${chosen}` }).first().waitFor();
      await field.press('Enter');
      await page.waitForFunction((theme) => document.documentElement.dataset.theme === theme, chosen);
    }
    const measured = await contrasts(page, PAIRS);
    const low = measured.filter(({ contrast }) => !(contrast >= LEAST));
    assert.deepEqual(low, []);
    assert.equal(measured.length, PAIRS.length);

    // The measure knows black on white, and finds what is hard to read.
    await page.evaluate(() => {
      for (const [name, value] of [['black', '#000000'], ['white', '#ffffff'], ['pale', '#999999']]) {
        document.documentElement.style.setProperty(`--${name}`, value ?? '');
      }
    });
    const [known, pale] = await contrasts(page, [['black', 'white'], ['pale', 'white']]);
    assert.equal(known?.contrast.toFixed(2), '21.00');
    assert.ok((pale?.contrast ?? 0) < LEAST);
  });
}

test('the two themes have other colours', async () => {
  const shown = async (colorScheme: 'light' | 'dark'): Promise<string> => {
    const profile = await suite.profile({ colorScheme });
    const page = await profile.loggedIn(suite.skep.key, '/ui/none');
    return page.evaluate(() => getComputedStyle(document.documentElement).backgroundColor);
  };
  assert.notEqual(await shown('light'), await shown('dark'));
});
