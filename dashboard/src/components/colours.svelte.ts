const system = matchMedia('(prefers-color-scheme: dark)');

function isDark(): boolean {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === 'dark' : system.matches;
}

/** Which colours the page has, for what cannot take them from style sheets. */
export const colours: { dark: boolean } = $state({ dark: isDark() });

const read = (): void => void (colours.dark = isDark());
system.addEventListener('change', read);
new MutationObserver(read).observe(document.documentElement, { attributeFilter: ['data-theme'] });
