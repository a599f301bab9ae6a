export type Theme = 'system' | 'light' | 'dark';

const STORED = 'theme';

function stored(): Theme {
  const value = localStorage.getItem(STORED);
  return value === 'light' || value === 'dark' ? value : 'system';
}

export const theme: { value: Theme } = $state({ value: stored() });

export function setTheme(value: Theme): void {
  theme.value = value;
  if (value === 'system') localStorage.removeItem(STORED);
  else localStorage.setItem(STORED, value);
  apply();
}

function apply(): void {
  if (theme.value === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme.value;
}

apply();
