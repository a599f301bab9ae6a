const UNITS = ['bytes', 'KiB', 'MiB', 'GiB', 'TiB'] as const;

/** Such as "1.5 GiB". */
export function bytes(value: number): string {
  const step = value < 1 ? 0 : Math.min(Math.floor(Math.log2(value) / 10), UNITS.length - 1);
  const scaled = value / 1024 ** step;
  return `${step > 0 && scaled < 10 ? scaled.toFixed(1) : Math.round(scaled)} ${UNITS[step]}`;
}
