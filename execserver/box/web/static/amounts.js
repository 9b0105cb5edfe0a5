// Numbers as a person reads them.  Pure.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

/** Return a number of bytes, or a dash for null. */
export function bytes(count) {
  if (count === null || count === undefined) return "–";
  let unit = 0;
  let value = count;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

/** Return a share of one processor, or a dash for null. */
export function percent(value) {
  if (value === null || value === undefined) return "–";
  return `${value >= 10 ? Math.round(value) : value.toFixed(1)} %`;
}

/** Return how long ago a time in Unix milliseconds is. */
export function age(at, now) {
  if (!at) return "–";
  const seconds = Math.max(0, Math.round((now - at) / 1000));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

/** Return a time in Unix milliseconds in the reader's own zone, or a dash for null. */
export function moment(at) {
  if (at === null || at === undefined) return "–";
  const when = new Date(at);
  const two = (number) => String(number).padStart(2, "0");
  const day = `${when.getFullYear()}-${two(when.getMonth() + 1)}-${two(when.getDate())}`;
  return Number.isNaN(when.getTime()) ? "–" : `${day} ${two(when.getHours())}:${two(when.getMinutes())}`;
}

/** Return a mode as `ls` writes its permissions, or nothing for null. */
export function permissions(mode) {
  if (mode === null || mode === undefined) return "";
  return [6, 3, 0].map((at) => [..."rwx"].map((sign, i) => ((mode >> at) & (4 >> i) ? sign : "-")).join("")).join("");
}
