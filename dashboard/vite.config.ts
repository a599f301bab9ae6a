import { svelte } from '@sveltejs/vite-plugin-svelte';
import { defineConfig } from 'vite';

export default defineConfig({
  base: '/ui/',
  plugins: [svelte()],
  build: {
    assetsDir: 'files',
    // The licences of what the bundle contains.
    license: { fileName: 'files/licenses.txt' },
    // The policy of the page allows files of the server only.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    target: 'es2023',
  },
  worker: { format: 'es' },
  // The host stays that of the page, because a session may only write from its own origin.
  server: { proxy: { '/api': { target: process.env.SKEP_URL ?? 'http://127.0.0.1:7700', changeOrigin: false } } },
});
