/** Copies a text. Over plain HTTP browsers have no clipboard API, so that a hidden field stands in. */
export async function copyText(text: string): Promise<boolean> {
  if (window.isSecureContext) {
    try {
      await navigator.clipboard.writeText(text);
      return true;
    } catch {
      return false;
    }
  }
  const field = document.createElement('textarea');
  field.value = text;
  field.className = 'visually-hidden';
  // Within a modal dialog only its own content can be selected.
  (document.querySelector('dialog[open]') ?? document.body).append(field);
  field.select();
  const copied = document.execCommand('copy');
  field.remove();
  return copied;
}
