import { once } from 'node:events';
import http from 'node:http';
import type { AddressInfo, Socket } from 'node:net';

/** A proxy in front of a server, which counts what only the server's side of a connection shows: a shared worker's requests. */
export class Proxy {
  url = '';
  /** The paths of the requests whose answers are not complete. */
  readonly open: string[] = [];
  /** What requests for events wait for before they are forwarded. */
  eventRequests: Promise<void> = Promise.resolve();
  /** The time from the head of an answer with events to its body. */
  eventDelayMs = 0;
  readonly #sockets = new Set<Socket>();
  readonly #server: http.Server;

  private constructor(target: () => string) {
    this.#server = http.createServer((request, response) => {
      const { hostname, port } = new URL(target());
      const path = new URL(request.url ?? '/', target()).pathname;
      this.open.push(path);
      response.on('close', () => this.open.splice(this.open.indexOf(path), 1));
      const { method, url, headers } = request;
      const hasEvents = path === '/api/events';
      const forward = (): void => {
        if (response.destroyed) return;
        const forwarded = http.request({ hostname, port, method, path: url, headers }, (answer) => {
          response.writeHead(answer.statusCode ?? 502, answer.headers);
          response.flushHeaders();
          const send = (): unknown => response.destroyed || answer.pipe(response);
          if (hasEvents) setTimeout(send, this.eventDelayMs);
          else send();
        });
        forwarded.on('error', () => response.destroy());
        response.on('close', () => forwarded.destroy());
        request.pipe(forwarded);
      };
      if (hasEvents) void this.eventRequests.then(forward);
      else forward();
    });
    this.#server.on('connection', (socket) => {
      this.#sockets.add(socket);
      socket.on('close', () => this.#sockets.delete(socket));
    });
  }

  /** Starts a proxy, which browsers reach at the name `host`. `target` is the address of the server, once there are requests. */
  static async start(target: () => string, host: string): Promise<Proxy> {
    const proxy = new Proxy(target);
    proxy.#server.listen(0, '127.0.0.1');
    await once(proxy.#server, 'listening');
    proxy.url = `http://${host}:${(proxy.#server.address() as AddressInfo).port}`;
    return proxy;
  }

  async stop(): Promise<void> {
    this.#server.close();
    this.#server.closeAllConnections();
    await once(this.#server, 'close');
  }
}
