// Texts that come from a box, as texts that can be shown: what controls a terminal or the direction of
// writing, and what cannot be seen, appears as an escape.  Pure.

const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]|\p{Surrogate}/gu;

function escaped(character) {
  const code = character.codePointAt(0);
  // A byte of a name that is no UTF-8 comes as a lone surrogate.
  if (code >= 0xdc80 && code <= 0xdcff) return `\\x${(code - 0xdc00).toString(16)}`;
  if (code < 0x100) return `\\x${code.toString(16).padStart(2, "0")}`;
  return code > 0xffff ? `\\u{${code.toString(16)}}` : `\\u${code.toString(16).padStart(4, "0")}`;
}

/** Return a text in which nothing is hidden. */
export function visible(text) {
  return String(text).replace(HIDDEN, escaped);
}

/** Return the same in parts: [{text, escaped}]. */
export function visibleParts(text) {
  const whole = String(text);
  const parts = [];
  let end = 0;
  for (const found of whole.matchAll(HIDDEN)) {
    if (found.index > end) parts.push({ text: whole.slice(end, found.index), escaped: false });
    parts.push({ text: escaped(found[0]), escaped: true });
    end = found.index + found[0].length;
  }
  if (end < whole.length) parts.push({ text: whole.slice(end), escaped: false });
  return parts;
}

/** Return a command's words as one would type them in a shell. */
export function commandLine(argv) {
  return argv.map((word) => (/^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`)).join(" ");
}

/** Return a path for a query: bytes that are no UTF-8 (lone surrogates) become %80 to %FF. */
export function pathInQuery(path) {
  return path.replace(/[\udc80-\udcff]|[\s\S]/gu, (character) => {
    const code = character.codePointAt(0);
    if (code >= 0xdc80 && code <= 0xdcff) return `%${(code - 0xdc00).toString(16).toUpperCase()}`;
    return encodeURIComponent(character);
  });
}

/** Return the path of a name in a folder. */
export function joined(folder, name) {
  return folder.endsWith("/") ? folder + name : `${folder}/${name}`;
}

/** Return the folder of a path, "/" for the root itself. */
export function parentOf(path) {
  return path.replace(/\/+$/, "").replace(/\/[^/]*$/, "") || "/";
}

/** Return the last part of a path. */
export function nameOf(path) {
  return path.replace(/\/+$/, "").split("/").pop() || "/";
}
