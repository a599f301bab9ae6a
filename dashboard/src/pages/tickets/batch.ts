import type { Schema } from '../../api/client';

type BatchTicket = Schema<'BatchTicket'>;

/** A ticket of a pasted list, and the line that it is from. */
export interface Planned {
  line: number;
  /** Levels below the first one. */
  depth: number;
  title: string;
  /** The lines of the tickets that it waits for. */
  waitsFor: number[];
}

const MARKER = /^(?:[-*+]|\d+[.)])\s+(?:\[[ xX]\]\s+)?/;

/**
 * Reads a list, one ticket a line. List markers and boxes are taken off. A line that is indented more than the line before
 * it is a part of that one, which waits for all of its parts.
 */
export function plan(text: string): Planned[] {
  const planned: Planned[] = [];
  const open: { indent: number; own: Planned }[] = [];
  text.split('\n').forEach((line, index) => {
    const content = line.trim();
    const title = content.replace(MARKER, '').trim();
    if (!title) return;
    const indent = line.replaceAll('\t', '    ').length - line.replaceAll('\t', '    ').trimStart().length;
    while (open.length > 0 && (open.at(-1)?.indent ?? 0) >= indent) open.pop();
    const own: Planned = { line: index + 1, depth: open.length, title, waitsFor: [] };
    open.at(-1)?.own.waitsFor.push(own.line);
    open.push({ indent, own });
    planned.push(own);
  });
  return planned;
}

/** The body of the request that creates what was planned. */
export function batchOf(planned: readonly Planned[], labels: string[], priority: Schema<'Priority'>): { tickets: BatchTicket[] } {
  const ref = (line: number): string => `line-${line}`;
  return {
    tickets: planned.map(({ line, title, waitsFor }) => ({
      ref: ref(line),
      title,
      priority,
      ...(labels.length > 0 && { labels }),
      ...(waitsFor.length > 0 && { dependencies: waitsFor.map((other) => `ref:${ref(other)}`) }),
    })),
  };
}
