/** The place of the page, below `/ui/`. */
class Place {
  path = $state(location.pathname);
  search = $state(location.search);

  constructor() {
    window.addEventListener('popstate', () => this.#read());
    document.addEventListener('click', (event) => this.#followLink(event));
  }

  /** Shows another page. `replace` keeps it out of the history, for changes of filters. */
  go(target: string, { replace = false } = {}): void {
    if (replace) history.replaceState(null, '', target);
    else history.pushState(null, '', target);
    this.#read();
  }

  /** Sets parameters of the query in place; null removes one. */
  setQuery(changes: Record<string, string | null>): void {
    const query = new URLSearchParams(this.search);
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === '') query.delete(name);
      else query.set(name, value);
    }
    const text = query.toString();
    this.go(this.path + (text ? `?${text}` : ''), { replace: true });
  }

  #read(): void {
    this.path = location.pathname;
    this.search = location.search;
  }

  /** Links below `/ui/` change the page without loading it again. */
  #followLink(event: MouseEvent): void {
    if (event.defaultPrevented || event.button !== 0 || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) {
      return;
    }
    const link = event.target instanceof Element ? event.target.closest('a') : null;
    if (!link?.href || link.target || link.hasAttribute('download')) return;
    const target = new URL(link.href);
    if (target.origin !== location.origin || !target.pathname.startsWith('/ui/')) return;
    // A place on the same page, such as `#main`: the browser goes there and moves the focus.
    if (target.hash && target.pathname === location.pathname && target.search === location.search) return;
    event.preventDefault();
    this.go(target.pathname + target.search + target.hash);
  }
}

export const place = new Place();
