import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';

import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

// Browsers keep the files for ever, so that this name changes with its content too: the licences are those of the packages.
const packages = createHash('sha256').update(readFileSync('package-lock.json')).digest('hex').slice(0, 8);
const licences = `files/licenses-${packages}.txt`;

export default defineConfig({
  base: '/ui/',
  plugins: [svelte()],
  // Declared in src/build.d.ts.
  define: { LICENCES: JSON.stringify(`/ui/${licences}`) },
  build: {
    assetsDir: 'files',
    // The licences of what the bundle contains.
    license: { fileName: licences },
    // The policy of the page allows files of the server only.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: 'es2023',
  },
  worker: { format: 'es' },
  // The host stays that of the page, because a session may only write from its own origin.
  server: { proxy: { '/api': { target: process.env.SKEP_URL ?? 'http://127.0.0.1:7700', changeOrigin: false } } },
});
