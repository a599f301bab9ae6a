/** A file to upload, and its path below the folder that it goes to. */
export interface Upload {
  path: string;
  /** Why it cannot be uploaded, where it cannot. */
  file: File | Error;
}

/** The most files of one upload. */
const MAX_FILES = 10_000;

/** What browsers write in a name for bytes that are not UTF-8. */
const NOT_UTF8 = '\uFFFD';
const UNKNOWN_NAME = 'its name is not UTF-8, and the browser does not tell it. Rename the file, or upload an archive of the folder.';

/** The files that were chosen, those of a folder with their paths in it. */
export function chosenFiles(files: Iterable<File>): Upload[] {
  return limited([...files].map((file) => uploadOf(file.webkitRelativePath || file.name, file)));
}

/** The files that were dropped, and those of dropped folders. Must be called while the event is handled. */
export async function droppedFiles({ items }: DataTransfer): Promise<Upload[]> {
  // The browser takes the items away with the end of the event.
  const entries = [...items].flatMap((item) => item.webkitGetAsEntry() ?? []);
  const found: Upload[] = [];
  for (const entry of entries) await collect(entry, entry.name, found);
  return found;
}

function uploadOf(path: string, file: File | Error): Upload {
  return { path, file: path.includes(NOT_UTF8) ? new Error(UNKNOWN_NAME) : file };
}

async function collect(entry: FileSystemEntry, path: string, found: Upload[]): Promise<void> {
  // Chromium gives a file or folder whose name is not UTF-8 an empty name, under which it is not found.
  if (entry.name === '') found.push({ path: `A file of ${path}`, file: new Error(UNKNOWN_NAME) });
  else if (entry.isDirectory) return collectFolder(entry as FileSystemDirectoryEntry, path, found);
  else {
    const reading = new Promise<File>((resolve, reject) => (entry as FileSystemFileEntry).file(resolve, reject));
    found.push(uploadOf(path, await reading.catch((error: Error) => error)));
  }
  limited(found);
}

async function collectFolder(folder: FileSystemDirectoryEntry, path: string, found: Upload[]): Promise<void> {
  const reader = folder.createReader();
  // The browser gives some entries at once, and none at the end.
  for (;;) {
    const entries = await new Promise<FileSystemEntry[]>((resolve, reject) => reader.readEntries(resolve, reject));
    if (entries.length === 0) return;
    for (const entry of entries) await collect(entry, entry.name ? `${path}/${entry.name}` : path, found);
  }
}

function limited(files: Upload[]): Upload[] {
  if (files.length > MAX_FILES) {
    throw new Error(`More than ${MAX_FILES.toLocaleString('en')} files were chosen. Upload an archive of them, and unpack it in the VM.`);
  }
  return files;
}
