// Figures over time: the last minutes of each process, and a line that shows them.

const SAMPLES = 150; // five minutes, one each two seconds
const SAMPLES_AT_FIRST = 30; // the line of a new process is as long as a minute's
const MOST_PROCESSES = 500;
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 120;
const HEIGHT = 28;

/** The last samples of each process: {cpu: [], memory: []}. */
export class History {
  #of = new Map();

  add(id, cpu, memory) {
    if (!this.#of.has(id) && this.#of.size >= MOST_PROCESSES) return;
    const series = this.#of.get(id) ?? { cpu: [], memory: [] };
    this.#of.set(id, series);
    series.cpu.push(cpu ?? 0);
    series.memory.push(memory ?? 0);
    if (series.cpu.length > SAMPLES) {
      series.cpu.shift();
      series.memory.shift();
    }
  }

  get(id) {
    return this.#of.get(id) ?? { cpu: [], memory: [] };
  }

  /** Forget all but these. */
  keep(ids) {
    const kept = new Set(ids);
    for (const id of this.#of.keys()) if (!kept.has(id)) this.#of.delete(id);
  }

  clear() {
    this.#of.clear();
  }
}

function shape(name, attributes) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

/** A small line, newest at the right; `least` is the value that fills it at least. */
export class Sparkline {
  #line = shape("polyline", { class: "line", points: "" });
  #area = shape("polygon", { class: "area", points: "" });
  #least;

  constructor(kind, least) {
    this.#least = least;
    this.element = shape("svg", {
      class: `spark ${kind}`, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true",
    });
    this.element.append(this.#area, this.#line);
  }

  draw(values) {
    if (values.length === 0) {
      this.#line.setAttribute("points", "");
      this.#area.setAttribute("points", "");
      return;
    }
    const top = Math.max(this.#least, ...values) * 1.1;
    const step = WIDTH / (Math.max(SAMPLES_AT_FIRST, values.length) - 1);
    const points = values.map((value, at) => {
      const x = WIDTH - (values.length - 1 - at) * step;
      return `${x.toFixed(1)},${(HEIGHT - 1 - (value / top) * (HEIGHT - 2)).toFixed(1)}`;
    });
    if (points.length === 1) points.unshift(`${WIDTH - step},${points[0].split(",")[1]}`);
    this.#line.setAttribute("points", points.join(" "));
    const first = points[0].split(",")[0];
    this.#area.setAttribute("points", `${first},${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`);
  }
}
