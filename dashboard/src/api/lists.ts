interface PageOf<Row> {
  rows: Row[];
  next: string | null | undefined;
}

/** Rows that were read, and whether the API has more of them. */
export interface Listing<Row> {
  rows: Row[];
  more: boolean;
  /** The pages that were asked for. */
  pages: number;
}

/** Reads the first `pages` pages of a list, so that reading it again after an event keeps what the viewer opened. */
export async function readPages<Row>(
  pages: number,
  read: (cursor: string | undefined) => Promise<PageOf<Row>>,
): Promise<Listing<Row>> {
  const rows: Row[] = [];
  let cursor: string | undefined;
  for (let count = 0; count < pages; count += 1) {
    const page = await read(cursor);
    rows.push(...page.rows);
    if (!page.next) return { rows, more: false, pages };
    cursor = page.next;
  }
  return { rows, more: true, pages };
}
