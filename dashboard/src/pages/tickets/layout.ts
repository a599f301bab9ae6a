import ELK from 'elkjs/lib/elk-api.js';
import workerUrl from 'elkjs/lib/elk-worker.min.js?url';

export const NODE_WIDTH = 230;
export const NODE_HEIGHT = 64;

/** Lays graphs out in a worker, because a thousand nodes take seconds. */
const elk = new ELK({ workerUrl });

/** The place of each node of a graph whose edges go from a dependency to what waits for it. */
export async function layOut(
  ids: readonly string[],
  edges: readonly { source: string; target: string }[],
): Promise<Map<string, { x: number; y: number }>> {
  const placed = await elk.layout({
    id: 'root',
    layoutOptions: { 'elk.algorithm': 'layered', 'elk.direction': 'RIGHT', 'elk.layered.spacing.nodeNodeBetweenLayers': '60' },
    children: ids.map((id) => ({ id, width: NODE_WIDTH, height: NODE_HEIGHT })),
    edges: edges.map(({ source, target }) => ({ id: `${source}-${target}`, sources: [source], targets: [target] })),
  });
  return new Map(placed.children?.map(({ id, x = 0, y = 0 }) => [id, { x, y }]));
}
