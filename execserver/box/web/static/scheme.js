// Light or dark, as the person's system says.

const dark = matchMedia("(prefers-color-scheme: dark)");

/** Call a function when the scheme changes; returns a function that ends this. */
export function onScheme(changed) {
  dark.addEventListener("change", changed);
  return () => dark.removeEventListener("change", changed);
}

const LIGHT = {
  background: "#ffffff", foreground: "#1c2430", cursor: "#0f766e", cursorAccent: "#ffffff",
  selectionBackground: "#b9dcd8", black: "#1c2430", red: "#b42318", green: "#1a7f37", yellow: "#8a5a00",
  blue: "#1d4ed8", magenta: "#9333a8", cyan: "#0e7490", white: "#6b7686", brightBlack: "#566173",
  brightRed: "#d92d20", brightGreen: "#2c9a4b", brightYellow: "#a86f00", brightBlue: "#2f6bff",
  brightMagenta: "#b44ccb", brightCyan: "#1591b3", brightWhite: "#39424f",
};
const DARK = {
  background: "#10151c", foreground: "#dbe2ea", cursor: "#5eead4", cursorAccent: "#10151c",
  selectionBackground: "#24504d", black: "#39424f", red: "#ff7b72", green: "#6fd58a", yellow: "#e3b341",
  blue: "#79a8ff", magenta: "#d2a8ff", cyan: "#67d4e8", white: "#c3ccd6", brightBlack: "#8592a3",
  brightRed: "#ffa198", brightGreen: "#8fe9a5", brightYellow: "#f2cc60", brightBlue: "#a5c5ff",
  brightMagenta: "#e2c5ff", brightCyan: "#a0e9f5", brightWhite: "#ffffff",
};

/** Return xterm's colours for now. */
export function terminalTheme() {
  return dark.matches ? DARK : LIGHT;
}
