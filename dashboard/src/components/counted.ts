/** Such as "1 ticket" or "1,200 tickets". `many`: the plural, where it is not that with an "s". */
export function counted(count: number, one: string, many = `${one}s`): string {
  return `${count.toLocaleString('en')} ${count === 1 ? one : many}`;
}
