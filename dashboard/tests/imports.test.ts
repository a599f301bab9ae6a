import assert from 'node:assert/strict';
import fs from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';

const SOURCE = path.join(import.meta.dirname, '../src');

/** What the folders may import, beside their own files: the rule of README.md. */
const MAY_IMPORT: Readonly<Record<string, readonly string[]>> = {
  api: [],
  live: ['api', 'components'],
  session: ['api', 'live'],
  components: ['api', 'live', 'session'],
  // The address, the properties of pages and the theme.
  pages: ['api', 'live', 'session', 'components', 'app/location.svelte', 'app/routes', 'app/theme.svelte'],
};

interface Import {
  file: string;
  target: string;
}

/** The relative imports of a text that stands in `file`, both below `src`. */
function importsOf(file: string, text: string): Import[] {
  return [...text.matchAll(/(?:from|import)\s*\(?\s*'(\.[^']+)'/g)].map(([, name = '']) => ({
    file,
    target: path.join(path.dirname(file), name),
  }));
}

/** The imports that the rule forbids. */
function forbidden(imports: readonly Import[]): string[] {
  return imports
    .filter(({ file, target }) => {
      const [folder = '', section = ''] = file.split('/');
      const [other = '', otherSection = ''] = target.split('/');
      if (folder === other) return folder === 'pages' && section !== otherSection;
      return !(MAY_IMPORT[folder]?.some((allowed) => target === allowed || target.startsWith(`${allowed}/`)) ?? true);
    })
    .map(({ file, target }) => `${file} imports ${target}`);
}

test('folders import only what the rule of README.md allows, and a page nothing of another section', () => {
  const files = fs.readdirSync(SOURCE, { recursive: true, encoding: 'utf8' }).filter((file) => /\.(ts|svelte)$/.test(file));
  const imports = files.flatMap((file) => importsOf(file, fs.readFileSync(path.join(SOURCE, file), 'utf8')));
  assert.ok(imports.length > 100, `only ${imports.length} imports were found`);
  assert.deepEqual(forbidden(imports), []);
});

test('an import of another section and one against the direction are found', () => {
  const text = "import { x } from '../swarm/actions';\nconst y = await import('../../components/Button.svelte');";
  assert.deepEqual(forbidden(importsOf('pages/tickets/A.svelte', text)), ['pages/tickets/A.svelte imports pages/swarm/actions']);
  assert.deepEqual(forbidden(importsOf('api/a.ts', "import '../live/hub';")), ['api/a.ts imports live/hub']);
});
